"""The gate that sees whether the engine's chat template shows a policy the tools of its agents, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from starlette.responses import Response

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain import decisions, gating
from ratchet.canary_deployer.domain.rollout import (
    FAILED,
    ITSELF,
    NEEDS_APPROVAL,
    NOT_RUN,
    PASSED,
    Decision,
    GateResult,
    Verdict,
)
from ratchet.canary_deployer.domain.serving import staged_policy
from ratchet.canary_deployer.gates.takes_tools import TakesToolsGate
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.core.errors import Unavailable
from ratchet.core.rules.figures import CONVERSATIONS_WITHOUT_TOOLS
from tests.support.canary_world import policy, served
from tests.support.scoring_engine import Answers, Fleet, ScoringEngine, refused

CANDIDATE, STABLE = policy(2).name, policy(1).name


@dataclass
class World:
    """Replicas, and a candidate that has learned from conversations with tools, or from none."""

    engines: list[ScoringEngine] = field(default_factory=lambda: [ScoringEngine(), ScoringEngine()])
    offered: int = 0

    async def ask(self, *, first: bool = False) -> GateResult:
        fleet = Fleet(dict(zip("ab", self.engines, strict=False)))
        candidate = policy(2, metrics={CONVERSATIONS_WITHOUT_TOOLS: float(self.offered)})
        gate = TakesToolsGate(ReplicaChecks(fleet.served(), lambda: 1000.0))
        return await gate.check(candidate, None if first else policy(1))


def without(*names: str, answers: Answers | None = None) -> ScoringEngine:
    return ScoringEngine(without_tools=set(names), answers=answers)


def to_tools(answer: Response) -> Answers:
    """Answers so to the candidate's chat with a tool."""
    return lambda path, body: answer if path == "/tokenize" and body["model"] == CANDIDATE and "tools" in body else None


async def test_a_template_that_shows_tools_passes_on_every_replica() -> None:
    result = await World().ask()
    assert (result.outcome, result.reason) == (PASSED, "its engine's chat template shows it tools")
    assert result.evidence == {
        "takes_tools": True,
        "replicas": {"small at http://a": True, "small at http://b": True},
    }


@pytest.mark.parametrize("first", [False, True])
async def test_policy_without_tools_for_a_role_with_tools_is_refused_in_words(first: bool) -> None:
    result = await World([without(CANDIDATE)], offered=12).ask(first=first)
    assert result.outcome == FAILED
    assert result.reason.startswith(
        "its engine's chat template shows it no tools, and 12 conversations that it learned from offer some: train it "
        "from a base model whose template does, or start the engine with such a template"
    )
    assert not result.evidence["takes_tools"]


async def test_a_role_that_uses_no_tools_loses_nothing() -> None:
    result = await World([without(CANDIDATE)]).ask(first=True)
    assert (result.outcome, result.evidence["takes_tools"]) == (PASSED, False)
    assert result.reason.endswith("the gateway answers calls that offer some with 400")


async def test_where_stable_takes_tools_a_person_is_asked() -> None:
    result = await World([without(CANDIDATE)]).ask()
    assert result.outcome == NEEDS_APPROVAL
    assert "but stable takes them: approve it where no agent of the role offers any" in result.reason


async def test_where_stable_takes_none_either_nothing_gets_worse() -> None:
    result = await World([without(CANDIDATE, STABLE)], offered=12).ask()
    assert (result.outcome, result.evidence["takes_tools"]) == (PASSED, False)
    assert "and so it is with stable" in result.reason


async def test_a_template_that_refuses_tools_takes_none() -> None:
    engine = without(answers=to_tools(refused(400, "this model has no tools")))
    assert not (await World([engine]).ask(first=True)).evidence["takes_tools"]


async def test_replicas_that_differ_are_named_and_waited_for() -> None:
    with pytest.raises(Unavailable, match=r"^small at http://b: its engine's chat template shows it no tools; but not"):
        await World([ScoringEngine(), without(CANDIDATE)]).ask()


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_that_gives_no_token_ids_is_not_checked(status: int) -> None:
    engine = ScoringEngine(answers=lambda path, _: refused(status, "Not Found") if path == "/tokenize" else None)
    result = await World([engine], offered=12).ask()
    assert (result.outcome, result.evidence) == (NOT_RUN, {})


async def test_an_engine_that_fails_is_asked_again() -> None:
    engine = without(answers=to_tools(refused(500, "CUDA out of memory")))
    with pytest.raises(Unavailable, match="answers 500"):
        await World([engine]).ask()


@pytest.mark.parametrize("takes", [True, False])
def test_the_registry_remembers_what_the_gate_saw(takes: bool) -> None:
    opened = decisions.new_rollout(policy(2), served(1), None, Decision(Verdict.START, "registered", ITSELF), START)
    seen = decisions.with_gate_result(opened, GateResult("takes_tools", PASSED, "", {"takes_tools": takes}))
    assert staged_policy(policy(2), opened).takes_tools is None
    staged = staged_policy(policy(2), seen)
    assert staged.takes_tools is takes
    assert staged_policy(staged, opened).takes_tools is takes  # of a later rollout, a revert
    assert staged_policy(policy(1, takes_tools=True), seen).takes_tools is True


def test_a_refusal_of_tools_can_be_overridden_and_one_of_the_probe_cannot() -> None:
    waived = gating.waived_results(policy(2), list(gating.CHECKS), "ann", "no agent offers tools")
    assert "takes_tools" in {one.gate for one in waived}
