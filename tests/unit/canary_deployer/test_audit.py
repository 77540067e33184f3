"""The audit chain shows every change after the fact."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain.audit import audit_chain, first_break
from ratchet.core.contract import ModelRollout, decode, encode
from ratchet.core.contract.deployment import RolloutStage
from ratchet.core.rules.hash_chain import seal


def decision(sequence: int) -> ModelRollout:
    return ModelRollout(
        rollout_id="8c7a4d0e-5a43-5a0f-8d2b-1f0b8e1f2a3b",
        sequence=sequence,
        timestamp=START,
        role="support",
        to_version=2,
        stage=RolloutStage(index=0, weight=0.1),
        verdict="advance",
        reason=f"number {sequence}",
        actor="canary_deployer",
        e_values={"rollback": {"reward": 1.5, "failure": 0.25}},
        evidence={"b": 1, "a": [1.0, None]},
    )


def decisions() -> list[ModelRollout]:
    chain: list[ModelRollout] = []
    for number in range(4):
        chain.append(seal(decision(number), chain[-1].hash if chain else None))
    return chain


def test_an_untouched_chain_holds_also_after_a_json_round_trip() -> None:
    assert first_break(decisions()) is None
    assert first_break([decode(encode(one), ModelRollout) for one in decisions()]) is None
    assert first_break(decisions()[2:]) is None
    assert first_break([]) is None


def test_the_order_of_members_does_not_matter() -> None:
    one = msgspec.structs.replace(decisions()[0], evidence={"a": [1.0, None], "b": 1})
    assert first_break([one]) is None


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "insert"])
def test_a_changed_chain_breaks(change: str) -> None:
    chain = decisions()
    if change == "edit":
        chain[1] = msgspec.structs.replace(chain[1], reason="nothing to see")
    elif change == "remove":
        del chain[1]
    elif change == "swap":
        chain[1], chain[2] = chain[2], chain[1]
    else:
        chain.insert(1, seal(decision(9), chain[0].hash))
        assert first_break(chain) == 2
        return
    assert first_break(chain) == 1


MISSING = "the newest decisions are missing from the log"


def test_a_decision_published_again_word_for_word_breaks_nothing() -> None:
    chain = decisions()
    audit = audit_chain([*chain[:3], chain[1], chain[2], chain[3]], chain[-1].hash)
    assert (audit.problem, audit.decisions) == (None, 4)


def test_a_decision_published_again_with_other_content_breaks_the_chain() -> None:
    chain = decisions()
    audit = audit_chain([*chain, msgspec.structs.replace(chain[1], reason="nothing to see")], chain[-1].hash)
    assert audit.problem == "it is not what was decided"


def test_a_log_that_has_grown_since_the_route_was_read_is_whole() -> None:
    chain = decisions()
    assert audit_chain(chain, chain[2].hash).problem is None
    assert audit_chain(chain[:2], chain[2].hash).problem == MISSING


def test_the_log_may_lack_a_pending_decision_but_none_before_it() -> None:
    chain = decisions()
    assert audit_chain(chain[:3], chain[3].hash, pending=chain[3]).problem is None
    assert audit_chain(chain[:2], chain[3].hash, pending=chain[3]).problem == MISSING
    assert audit_chain([], chain[0].hash, pending=chain[0]).problem is None
    assert audit_chain(chain[:3], "0" * 64, pending=chain[3]).problem == MISSING
