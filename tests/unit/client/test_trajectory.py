"""A recorder records the agent's work, and never gets in its way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ratchet.client.trajectory import Agent, TrajectoryRecorder
from ratchet.core.contract import Trajectory
from ratchet.core.contract.trajectory import Action, Observation, Outcome, TaskContext, TrajectoryMetadata, TurnResult
from ratchet.core.rules.chat import chat_messages
from ratchet.core.service.contracts import load_contracts

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
CONTRACTS = load_contracts()
AGENT = Agent(agent_id="agent-zero-main", role="support", session_id="session")
IDS = iter(f"01a1b2c3-0000-7000-8000-{n:012d}" for n in range(1, 1_000_000))


class Notes:
    """Collects what recorders publish and report."""

    def __init__(self) -> None:
        self.published: list[Trajectory] = []
        self.reported: list[Exception] = []

    def recorder(self, **changes: Any) -> TrajectoryRecorder:
        values: dict[str, Any] = {
            "trajectory_id": next(IDS),
            "agent": AGENT,
            "task": TaskContext(task_id="t1", instructions="Help.", domain="general", group_key="g1"),
            "metadata": TrajectoryMetadata(model="gpt-4o", temperature=0.2),
            "publish": self.published.append,
            "report": self.reported.append,
            "new_id": lambda: next(IDS),
            "now": lambda: NOON,
        }
        return TrajectoryRecorder(**{**values, **changes})

    @property
    def one(self) -> Trajectory:
        (trajectory,) = self.published
        CONTRACTS.check_strict(trajectory)
        return trajectory


def test_all_that_was_recorded_is_in_the_message() -> None:
    notes = Notes()
    with notes.recorder(labels={"release": "7"}) as t:
        t.turn(
            observation="where is my order?",
            action={"type": "tool_call", "tool_name": "lookup", "tool_args": {"id": "K47"}},
            result={"success": True, "output": "shipped", "execution_time_ms": 12.5},
            thought_process=["look it up"],
        )
        t.turn(observation={"type": "tool_result", "content": "shipped"}, action="It is on its way.")
        t.outcome("success", verified_by="tests", score=0.9)
        t.quality(tests_passed=3, tests_total=4)
        t.usage(tokens=100, cost_usd=0.25)
        t.usage(tokens=20)
    made = notes.one
    assert (made.agent_id, made.role, made.session_id, made.labels) == (
        "agent-zero-main",
        "support",
        "session",
        {"release": "7"},
    )
    assert (made.task_context.task_id, made.task_context.group_key, made.metadata.model) == ("t1", "g1", "gpt-4o")
    assert (made.metadata.total_tokens, made.metadata.total_cost_usd, made.metadata.source) == (120, 0.25, "client")
    first, second = made.turns
    assert first.observation == Observation(type="user_message", content="where is my order?")
    assert first.action == Action(type="tool_call", tool_name="lookup", tool_args={"id": "K47"})
    assert first.result == TurnResult(success=True, output="shipped", execution_time_ms=12.5)
    assert first.thought_process == ["look it up"]
    assert second.observation.type == "tool_result"
    assert second.action == Action(type="response", raw_response="It is on its way.")
    assert made.outcome == Outcome(status="success", verified_by="tests", score=0.9)
    assert made.quality is not None
    assert made.quality.tests_passed == 3


def test_a_whole_chat_can_be_recorded() -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]
    notes = Notes()
    with notes.recorder() as t:
        t.chat(chat, tools=[{"type": "function", "function": {"name": "lookup"}}])
    assert chat_messages(notes.one) == chat
    assert notes.one.task_context.tools == [{"type": "function", "function": {"name": "lookup"}}]


def test_exception_is_a_failure_that_the_agent_reported_itself_and_goes_on() -> None:
    notes = Notes()
    with pytest.raises(ZeroDivisionError), notes.recorder() as t:  # noqa: PT012 - the block is what is tested
        t.turn(observation="a", action="b")
        t.outcome("success")
        raise ZeroDivisionError
    assert notes.one.outcome == Outcome(status="failure")


def test_a_verified_outcome_survives_a_later_exception() -> None:
    notes = Notes()
    with pytest.raises(ZeroDivisionError), notes.recorder() as t:  # noqa: PT012
        t.turn(observation="a", action="b")
        t.outcome("success", verified_by="tests")
        raise ZeroDivisionError
    assert notes.one.outcome == Outcome(status="success", verified_by="tests")


def test_a_trajectory_is_published_once_and_only_if_something_happened() -> None:
    notes = Notes()
    with notes.recorder() as t:
        t.turn(observation="a", action="b")
        t.end()
    with notes.recorder():
        pass
    assert len(notes.published) == 1


async def test_it_is_an_asynchronous_context_manager_as_well() -> None:
    notes = Notes()
    async with notes.recorder() as t:
        t.turn(observation="a", action="b")
    assert notes.one.turns[0].turn_id == 1


def test_later_changes_to_the_agents_objects_do_not_reach_the_record() -> None:
    notes = Notes()
    arguments = {"id": 1}
    with notes.recorder() as t:
        t.turn(observation="a", action=Action(type="tool_call", tool_name="x", tool_args=arguments))
        arguments["id"] = 2
    assert notes.one.turns[0].action.tool_args == {"id": 1}


def test_an_object_without_a_form_in_json_becomes_text() -> None:
    notes = Notes()
    with notes.recorder() as t:
        t.turn(observation={"at": NOON, "problem": ValueError("x")}, action="b", result=None)
    assert notes.one.turns[0].observation.content == {"at": "2026-11-21T12:00:00Z", "problem": "x"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"observation": "a", "action": {"no": "type"}},
        {"observation": "a", "action": 7},
        {"observation": "half a character: \ud800", "action": "b"},
        {"observation": "a", "action": "b", "result": {"success": "perhaps"}},
        {"observation": "a", "action": "b", "thought_process": 3},
    ],
)
def test_turn_of_a_wrong_shape_is_reported_and_its_trajectory_held_back(wrong: Any) -> None:
    notes = Notes()
    with notes.recorder() as t:
        t.turn(observation="a", action="b")
        t.turn(**wrong)
    assert notes.published == []
    assert len(notes.reported) == 1


def test_a_broken_chat_is_reported() -> None:
    notes = Notes()
    with notes.recorder() as t:
        t.chat([{"role": "martian", "content": "hi"}])
    assert "martian" in str(notes.reported[0])


def test_a_subordinate_is_linked_to_its_parent_and_its_session() -> None:
    notes = Notes()
    with notes.recorder(user_ref="u" * 64) as t, t.subordinate("researcher", task_id="t2") as child:
        child.turn(observation="a", action="b")
    made = notes.one
    assert (made.parent_trajectory_id, made.subordinate_profile) == (t.trajectory_id, "researcher")
    assert (made.session_id, made.role, made.user_ref) == ("session", "support", "u" * 64)
