"""One call records a whole episode; every kind of feedback is said by a keyword."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from ratchet.client.opt_outs import OptOuts
from ratchet.client.recording import Recording
from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import Agent
from ratchet.core.contract import Feedback, Message, Outcome, Trajectory
from ratchet.core.errors import Rejected
from ratchet.core.service.contracts import load_contracts

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
CONTRACTS = load_contracts()


def recording(put: list[Message], *, strict: bool = True) -> Recording:
    return Recording(
        agent=Agent(agent_id="desk", role="support", session_id="session"),
        settings=ClientSettings(),
        contracts=CONTRACTS,
        put=put.append,
        opt_outs=OptOuts(None, lambda: None, lambda: None),
        strict=strict,
        now=lambda: NOON,
    )


def test_episode_is_a_trajectory_and_its_feedback() -> None:
    put: list[Message] = []
    episode = recording(put).record_episode(
        context={"task_id": "order-17", "instructions": "Help.", "domain": "refunds"},
        actions=[
            {"observation": "refund it", "action": {"type": "tool_call", "tool_name": "refund", "tool_args": {}}},
            {"observation": "done", "action": "It is refunded.", "thought_process": ["tell the user"]},
        ],
        outcome={"status": "partial", "completion_percentage": 50},
        resources={"tokens": 120, "cost_usd": 0.25},
        feedback=[{"outcome_evaluation": 0.5, "rater": "ann"}, {"error_analysis": "it did not look at the date"}],
    )
    trajectory, *opinions = put
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.trajectory_id, len(trajectory.turns), trajectory.task_context.domain) == (episode, 2, "refunds")
    assert trajectory.outcome == Outcome(status="partial", completion_percentage=50)
    assert (trajectory.metadata.total_tokens, trajectory.metadata.total_cost_usd) == (120, 0.25)
    given = [
        (opinion.trajectory_id, opinion.kind, opinion.value) for opinion in opinions if isinstance(opinion, Feedback)
    ]
    assert given == [
        (episode, "outcome_evaluation", 0.5),
        (episode, "error_analysis", "it did not look at the date"),
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"actions": [{"observation": "a", "action": {"typ": "x"}}]},
        {"actions": [{"observation": "a"}]},
        {"feedback": [{"stars": 4}, {"star": 3}]},
        {"feedback": [{"stars": 9}]},
        {"feedback": [{"thumbs": "up"}]},
        {"feedback": [{"stars": 4, "thumbs": True}]},
        {"feedback": [{"comment": "fine"}, {}]},
        {"outcome": "nonsense"},
        {"resources": {"token": 3}},
        {"context": {"task": "t"}},
        {"started_at": "2026-11-21T12:00:00Z"},
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_episode_with_a_part_of_the_wrong_shape_is_refused_whole(part: dict[str, Any], strict: bool) -> None:
    put: list[Message] = []
    episode: dict[str, Any] = {"context": {"task_id": "t"}, "actions": [{"observation": "a", "action": "b"}]}
    with pytest.raises(Rejected, match="not recorded"):
        recording(put, strict=strict).record_episode(**{**episode, **part})
    assert put == []


def test_episode_has_the_start_and_the_end_that_are_given() -> None:
    put, hour = list[Message](), timedelta(hours=1)
    act = [{"observation": "a", "action": "b"}]
    made = recording(put)
    made.record_episode(context={"task_id": "t"}, actions=act, started_at=NOON - 3 * hour, ended_at=NOON - hour)
    made.record_episode(context={"task_id": "t"}, actions=act, started_at=NOON - hour)
    given = [(run.start_timestamp, run.end_timestamp) for run in put if isinstance(run, Trajectory)]
    assert given == [(NOON - 3 * hour, NOON - hour), (NOON - hour, NOON)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(NOON, NOON - timedelta(seconds=1)), (NOON.replace(tzinfo=None), NOON), (NOON.replace(tzinfo=None), None)],
)
def test_an_episode_that_goes_back_in_time_is_refused_at_once(start: datetime, end: datetime | None) -> None:
    with pytest.raises(Rejected, match="time zone"):
        recording([]).record_episode(
            context={"task_id": "t"}, actions=[{"observation": "a", "action": "b"}], started_at=start, ended_at=end
        )


def test_an_episode_without_an_action_is_refused_at_once() -> None:
    with pytest.raises(Rejected, match="at least one action"):
        recording([]).record_episode(context={"task_id": "t"}, actions=[])


@pytest.mark.parametrize("given", [{}, {"thumbs": True, "stars": 4}])
def test_feedback_that_is_dropped_leaves_in_the_log_what_to_give(given: dict[str, Any]) -> None:
    put: list[Message] = []
    with capture_logs() as logs:
        recording(put, strict=False).feedback("0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11", **given)
    assert not put
    assert "give exactly one of thumbs, stars, correction" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("keyword", "kind", "value"),
    [
        ("stars", "rating", 4),
        ("metric", "metric", -3.5),
        ("observation", "observation", "it asked twice"),
        ("error_analysis", "error_analysis", "a timeout"),
        ("efficiency", "efficiency", 0.0),
        ("outcome_evaluation", "outcome_evaluation", 1.0),
    ],
)
def test_feedback_has_a_keyword_for_each_kind(keyword: str, kind: str, value: Any) -> None:
    put: list[Message] = []
    recording(put).feedback("0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11", **{keyword: value})
    assert [(opinion.kind, opinion.value) for opinion in put if isinstance(opinion, Feedback)] == [(kind, value)]


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([{"role": "my account 'K47'", "content": "x"}], "message 0 has the role '…'"),
        ("my account", "message 0 is not an object"),
    ],
)
def test_log_names_what_is_wrong_with_a_chat_without_its_content(chat: Any, reason: str) -> None:
    with capture_logs() as lines, recording([], strict=False).trajectory(task_id="t") as t:
        t.chat(chat)
    (line,) = lines
    assert (line["error"], line["reason"]) == ("ChatError", reason)
    assert "account" not in repr(lines)
