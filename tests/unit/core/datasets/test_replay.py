"""Which logged prompts may be replayed, and what the prompt of one call is."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest

from ratchet.bus.message import named_id
from ratchet.core.datasets.domain.replay import (
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


def captured(
    name: str, task: str | None = None, began: datetime = NOON + timedelta(hours=1), arm: str = "stable"
) -> CapturedTrajectory:
    return CapturedTrajectory(name, task or f"task of {name}", began, frozenset({arm}))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (captured("a", began=NOON), "older_than_snapshot"),
        (captured("a", task="task of the lineage"), "group_of_lineage"),
        (captured("learned"), "group_of_lineage"),
        (captured("a", arm="pinned"), "mixed_or_pinned"),
        (captured("a", arm="mixed"), "mixed_or_pinned"),
        (captured("a", task="task of b"), "same_task"),
    ],
)
def test_a_trajectory_that_the_lineage_may_have_learned_from_is_left_out(one: CapturedTrajectory, reason: str) -> None:
    kept, left_out = unseen([captured("b"), one], LINEAGE)
    assert ([trajectory.trajectory_id for trajectory in kept], dict(left_out)) == (["b"], {reason: 1})


def test_the_prompt_of_a_call_holds_the_whole_chat_before_its_own_answer() -> None:
    prompts: list[Prompt] = []
    for number in range(40):
        turns, _ = conversation(named_id("trajectory", number), [3, 3, 3], tools_digest="a" * 64)
        turns = [msgspec.structs.replace(turns[0], tools=TOOLS), *turns[1:]]
        prompt = prompt_of(turns[::-1])
        assert isinstance(prompt, Prompt)
        assert prompt == prompt_of(turns), "the order in which turns are read does not matter"
        prompts.append(prompt)
    contents = {len(one.messages): [message["content"] for message in one.messages] for one in prompts}
    assert contents[1] == ["question 0"]
    assert contents[3] == ["question 0", "answer 0", "question 1"]
    assert contents[5] == ["question 0", "answer 0", "question 1", "answer 1", "question 2"]
    assert all(one.tools == TOOLS and one.sampling.temperature == 0.7 for one in prompts)


def test_a_call_without_tools_is_replayed_without_those_of_an_earlier_one() -> None:
    turns, _ = conversation(named_id("trajectory", 0), [3])
    prompt = prompt_of([msgspec.structs.replace(turns[0], tools=TOOLS, tools_digest=None)])
    assert isinstance(prompt, Prompt)
    assert prompt.tools == []


def test_a_trajectory_that_cannot_be_replayed_has_a_reason() -> None:
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


def test_the_first_calls_of_a_trajectory_that_was_open_for_weeks_count() -> None:
    """The catalogue read only the later calls."""
    turns, _ = conversation(named_id("trajectory", 0), [3, 3], timestamp=NOON + timedelta(hours=1))
    assert reason_against_calls(turns, LINEAGE) is None
    early = msgspec.structs.replace(turns[0], timestamp=NOON - timedelta(days=20))
    assert reason_against_calls([early, turns[1]], LINEAGE) == "older_than_snapshot"
    pinned = msgspec.structs.replace(turns[0], policy=msgspec.structs.replace(turns[0].policy, arm="pinned"))
    assert reason_against_calls([pinned, turns[1]], LINEAGE) == "mixed_or_pinned"
