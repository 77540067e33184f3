"""Which logged prompts may be replayed, and what the prompt of one call is."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest

from ratchet.bus.message import named_id
from ratchet.datasets.domain.replay import (
    LARGEST_PROMPT,
    CapturedTrajectory,
    Lineage,
    Prompt,
    prompt_of,
    reason_against_calls,
    unseen,
)
from tests.support.training import NOON, conversation

LINEAGE = Lineage([3, 2, 1], NOON, frozenset({"learned"}), frozenset({"task of the lineage"}))
TOOLS = [{"type": "function", "function": {"name": "refund"}}]


def logged(
    name: str, task: str | None = None, began: datetime = NOON + timedelta(hours=1), arm: str = "stable"
) -> CapturedTrajectory:
    return CapturedTrajectory(name, task or f"task of {name}", began, frozenset({arm}))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (logged("a", began=NOON), "older_than_snapshot"),
        (logged("a", task="task of the lineage"), "group_of_lineage"),
        (logged("learned"), "group_of_lineage"),
        (logged("a", arm="pinned"), "mixed_or_pinned"),
        (logged("a", arm="mixed"), "mixed_or_pinned"),
        (logged("a", task="task of b"), "same_task"),
    ],
)
def test_what_the_lineage_may_have_learned_from_is_left_out(one: CapturedTrajectory, reason: str):
    kept, left_out = unseen([logged("b"), one], LINEAGE)
    assert ([found.trajectory_id for found in kept], dict(left_out)) == (["b"], {reason: 1})


def test_the_prompt_of_a_call_is_all_that_was_asked_before_it_and_no_answer_of_its_own():
    prompts: list[Prompt] = []
    for number in range(40):
        turns, _ = conversation(named_id("trajectory", number), [3, 3, 3], tools_digest="a" * 64)
        told = [msgspec.structs.replace(turns[0], tools=TOOLS), *turns[1:]]
        found = prompt_of(told[::-1])
        assert isinstance(found, Prompt)
        assert found == prompt_of(told), "the order in which turns are read says nothing"
        prompts.append(found)
    said = {len(one.messages): [message["content"] for message in one.messages] for one in prompts}
    assert said[1] == ["question 0"]
    assert said[3] == ["question 0", "answer 0", "question 1"]
    assert said[5] == ["question 0", "answer 0", "question 1", "answer 1", "question 2"]
    assert all(one.tools == TOOLS and one.sampling.temperature == 0.7 for one in prompts)


def test_a_call_without_tools_is_replayed_without_those_of_an_earlier_one():
    turns, _ = conversation(named_id("trajectory", 0), [3])
    found = prompt_of([msgspec.structs.replace(turns[0], tools=TOOLS, tools_digest=None)])
    assert isinstance(found, Prompt)
    assert found.tools == []


def test_what_cannot_be_replayed_says_why():
    turns, _ = conversation(named_id("trajectory", 0), [3, 3])
    assert prompt_of([]) == "no_answered_call"
    assert prompt_of([msgspec.structs.replace(turns[0], response=None)]) == "no_answered_call"
    assert prompt_of(turns[1:]) == "unreadable_chat"
    large = [{"role": "user", "content": "x" * LARGEST_PROMPT}]
    assert prompt_of([msgspec.structs.replace(turns[0], messages=large)]) == "too_large"
    deep: object = "x"
    for _ in range(300):
        deep = [deep]
    nested = [{"role": "user", "content": [{"type": "text", "text": "x", "more": deep}]}]
    assert prompt_of([msgspec.structs.replace(turns[0], messages=nested)]) == "too_deep"


def test_the_first_calls_of_a_trajectory_that_was_open_for_weeks_count():
    """The list of trajectories knew only what came later."""
    turns, _ = conversation(named_id("trajectory", 0), [3, 3], timestamp=NOON + timedelta(hours=1))
    assert reason_against_calls(turns, LINEAGE) is None
    early = msgspec.structs.replace(turns[0], timestamp=NOON - timedelta(days=20))
    assert reason_against_calls([early, turns[1]], LINEAGE) == "older_than_snapshot"
    pinned = msgspec.structs.replace(turns[0], policy=msgspec.structs.replace(turns[0].policy, arm="pinned"))
    assert reason_against_calls([pinned, turns[1]], LINEAGE) == "mixed_or_pinned"
