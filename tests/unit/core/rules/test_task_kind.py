"""Domain and complexity of a trajectory whose agent named none: from its words, the same for everyone who asks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import Trajectory
from ratchet.core.contract.trajectory import Action, Observation, TaskContext, TrajectoryTurn, TurnResult
from ratchet.core.contract.values import DOMAINS
from ratchet.core.rules.task_kind import complexity_of, domain_of
from tests.support.messages import AT, trajectory


def asked(words: str | list[Any], instructions: str = "", tools: int = 0, calls: int = 1, **task: Any) -> Trajectory:
    entries = [
        TrajectoryTurn(
            turn_id=number,
            timestamp=AT,
            observation=Observation(type="user_message" if number == 1 else "tool_result", content=words),
            action=Action(type="tool_call", tool_name=f"tool {number}" if number <= tools else None),
            result=TurnResult(success=True),
        )
        for number in range(1, calls + 1)
    ]
    return trajectory(turns=entries, task_context=TaskContext(task_id="t", instructions=instructions, **task))


@pytest.mark.parametrize(
    ("words", "domain"),
    [
        ("Fix the failing test, here is the traceback.", "debugging"),
        ("Write a function in Python that sorts a list.", "coding"),
        ("Plot the average of each column of this CSV.", "data_analysis"),
        ("Find papers on sleep and cite your sources.", "research"),
        ("Draft a letter to my landlord.", "writing"),
        ("Where is my order?", "general"),
        ("WRITE an ESSAY", "writing"),
        ([{"type": "text", "text": "Translate this poem."}, {"type": "image_url", "image_url": {}}], "writing"),
        ("I had a prefix and a classic encoder.", "general"),
        ("", "general"),
    ],
)
def test_domain_is_the_one_that_the_request_names_most(words: str | list[Any], domain: str) -> None:
    assert domain_of(asked(words)) == domain


def test_domain_of_the_agent_and_of_its_request_come_before_instructions() -> None:
    assert domain_of(asked("Draft a letter.", domain="law")) == "law"
    assert domain_of(asked("Draft a letter.", "You write code.")) == "writing"
    assert domain_of(asked("Hello!", "You implement Python functions.")) == "coding"


def test_complexity_grows_with_calls_tools_and_words() -> None:
    least, most = asked("Hi"), asked("x" * 4000, tools=8, calls=32)
    assert (complexity_of(least), complexity_of(most)) == (0.0, 1.0)
    middle = [asked("x" * 2000), asked("x" * 2000, calls=8), asked("x" * 2000, tools=4, calls=8)]
    scores = [complexity_of(one) for one in middle]
    assert scores == sorted(scores)
    assert len(set(scores)) == 3
    assert complexity_of(asked("Hi", complexity_score=0.7)) == 0.7


@given(st.text(max_size=2000), st.text(max_size=200), st.integers(1, 60), st.integers(0, 60))
def test_any_words_have_one_domain_and_a_complexity_in_range(
    words: str, instructions: str, calls: int, tools: int
) -> None:
    one = asked(words, instructions, tools=tools, calls=calls)
    assert domain_of(one) in DOMAINS
    assert 0.0 <= complexity_of(one) <= 1.0
    assert domain_of(msgspec.json.decode(msgspec.json.encode(one), type=Trajectory)) == domain_of(one)
