"""Prompts come back exactly as the engine read them; otherwise no policy trains on the call."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from random import Random

from hypothesis import given, strategies as st

from ratchet.core.contract.snapshot import Call
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.turn import Trainable, Turn
from ratchet.core.datasets.domain.rows import calls_of
from ratchet.core.datasets.domain.sequences import pack, unpacked
from ratchet.core.rules.recorded import ids_digest
from tests.support.snapshot_rows import trajectory_row
from tests.support.training import changed, conversation, prompt_delta, turn


def complete(turns: Sequence[Turn], referenced: frozenset[str] | None = None) -> list[Call]:
    """The calls as an exported row has them."""
    made = pack(calls_of(turns, referenced))
    arrays = {"token_ids": made.token_ids, "logprobs": made.logprobs}
    return unpacked(trajectory_row(**arrays, sequences=made.sequences, spans=made.spans)).calls


def test_the_digest_is_that_of_little_endian_int32() -> None:
    ids = [1, 2, 70_000]
    assert ids_digest(ids) == hashlib.sha256(struct.pack("<3i", *ids)).hexdigest()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_prompts_are_rebuilt_from_deltas_in_any_order_of_turns(lengths: list[int], order: Random) -> None:
    turns, prompts = conversation("t", lengths)
    shuffled = list(turns)
    order.shuffle(shuffled)
    calls = complete(shuffled)
    assert [call.prompt_token_ids for call in calls] == prompts
    assert all(call.trainable for call in calls)
    assert [call.output_token_ids for call in calls] == [each.output_token_ids for each in turns]


def test_a_call_keeps_what_the_learner_needs() -> None:
    turns, prompts = conversation("t", [3])
    (call,) = complete(turns)
    assert (call.turn_id, call.prompt_token_ids, call.behavior_logprobs) == (
        turns[0].turn_id,
        prompts[0],
        [-0.5, -0.25],
    )
    assert (call.temperature, call.policy_version, call.policy_digest) == (0.7, 1, "d" * 64)
    assert (call.trainable, call.reason) == (True, None)


def test_a_call_that_the_gateway_calls_not_trainable_stays_so() -> None:
    turns, _ = conversation("t", [3], trainable=Trainable(ok=False, reason="top_p"))
    assert [(call.trainable, call.reason) for call in complete(turns)] == [(False, "top_p")]


def test_a_prompt_that_does_not_fit_its_parent_is_not_trained_on() -> None:
    turns, _ = conversation("t", [3, 2, 2])
    turns[0] = changed(turns[0], output_token_ids=[1, 2])
    calls = complete(turns)
    assert [call.reason for call in calls] == [None, "prefix_mismatch", "parent_missing"]


def test_a_missing_parent_spoils_only_the_calls_that_build_on_it() -> None:
    turns, _ = conversation("t", [3, 2])
    fresh = turn("t", 2, full_prompt=[7, 8, 9])
    calls = complete([turns[1], fresh])
    assert [(call.trainable, call.reason) for call in calls] == [(False, "parent_missing"), (True, None)]


def test_a_prefix_longer_than_the_parent_is_a_mismatch() -> None:
    turns, _ = conversation("t", [3, 2])
    long = changed(turns[1], prompt_token_ids=prompt_delta([1] * 50, [1] * 40))
    assert complete([turns[0], long])[1].reason == "prefix_mismatch"


def test_counts_that_disagree_are_not_trained_on() -> None:
    short = turn("t", 0, full_prompt=[1], behavior_logprobs=[-0.1])
    silent = turn("t", 1, full_prompt=[1], output_token_ids=[], behavior_logprobs=[])
    without = turn("t", 2, prompt_token_ids=None)
    assert [call.reason for call in complete([short, silent, without])] == [
        "count_mismatch",
        "no_token_ids",
        "no_token_ids",
    ]


def test_ids_and_logprobs_that_no_engine_can_mean_are_not_trained_on() -> None:
    large = turn("t", 0, full_prompt=[1], output_token_ids=[2**31, 1])
    likely = turn("t", 1, full_prompt=[1], behavior_logprobs=[-0.1, 5.0])
    odd = changed(turn("t", 2), prompt_token_ids=prompt_delta([-1, 2], []))
    assert [call.reason for call in complete([large, likely, odd])] == [
        "impossible_token_ids",
        "impossible_logprobs",
        "impossible_token_ids",
    ]


def test_only_the_calls_that_the_trajectory_refers_to_are_kept() -> None:
    turns, _ = conversation("t", [3, 2, 2])
    calls = complete(turns, referenced=frozenset({turns[2].turn_id}))
    assert [call.turn_id for call in calls] == [turns[2].turn_id]
    assert calls[0].trainable


def test_without_references_the_last_answered_attempt_counts() -> None:
    first = turn("t", 0, full_prompt=[1, 2], turn_id="first")
    again = turn("t", 0, full_prompt=[1, 2], turn_id="again", attempt=2)
    failed = turn("t", 0, full_prompt=[1, 2], turn_id="failed", attempt=3, response=None)
    assert [call.turn_id for call in complete([failed, again, first])] == ["again"]


def test_each_call_names_the_policy_that_answered_it() -> None:
    canary = PolicyClaim(role="support", version=2, digest="e" * 64, arm="canary", weight=0.1)
    (call,) = complete([turn("t", 0, full_prompt=[1], policy=canary)])
    assert (call.policy_version, call.policy_digest) == (2, "e" * 64)
