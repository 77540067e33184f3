"""An episode holds what is stored of a trajectory, bounded, and the advice of the patterns that it matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ratchet.analyst.episodes import DEEP, LETTERS, Known, episode_of
from ratchet.analyst.http_episodes import matching
from ratchet.core.contract import Feedback, Outcome, Reward, Trajectory
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.stores.trajectories import Branch
from tests.support.contract_files import example

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ID = "0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11"
CALL = {"prompt_tokens": 100, "completion_tokens": 20, "cost_usd": 0.5, "error": None, "provider_model": "m-1"}


def turn(number: int, **parts: Any) -> TrajectoryTurn:
    values: dict[str, Any] = {
        "turn_id": number,
        "timestamp": NOON,
        "observation": Observation(type="user_message", content="refund order 7"),
        "action": Action(type="tool_call", tool_name="refund", tool_args={"order": 7}),
        "result": TurnResult(success=True, execution_time_ms=12.5),
    }
    return TrajectoryTurn(**{**values, **parts})


def trajectory(**changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "trajectory_id": ID,
        "session_id": "s",
        "agent_id": "desk",
        "start_timestamp": NOON,
        "end_timestamp": NOON + timedelta(seconds=3),
        "turns": [turn(1)],
        "task_context": TaskContext(task_id="t", instructions="Help.", domain="refunds", complexity_score=0.5),
        "metadata": TrajectoryMetadata(model="gpt", total_tokens=7, total_cost_usd=0.25),
        "role": "support",
    }
    return Trajectory(**{**values, **changes})


def known(of: Trajectory | None = None, **changes: Any) -> Known:
    nothing: dict[str, Any] = {"calls": [], "rewards": [], "feedback": [], "run": []}
    return Known(of or trajectory(), **{**nothing, **changes})


def pattern(*triggers: Trigger, advice: str = "Look at the date first.") -> Pattern:
    return Pattern(
        pattern_id="a" * 32,
        role="support",
        kind="association",
        finding="attribute",
        statement="Refunds fail.",
        focus_area="decision_making",
        triggers=triggers,
        effect=Effect(measure="failure", value=0.2, low=0.1, high=0.3),
        share=0.1,
        count=50,
        confidence=0.9,
        p_value=0.001,
        advice=advice,
        opened_at=NOON,
        seen_at=NOON,
    )


def test_episode_has_what_was_done_and_why() -> None:
    turns = [
        turn(1, thought_process=["it is late", "refund"], result=TurnResult(success=False, error="too late")),
        turn(2, action=Action(type="response", raw_response="I cannot.")),
    ]
    episode = episode_of(known(trajectory(turns=turns, outcome=Outcome(status="failure"))), ["a", "b", "a"])
    assert episode.episode_type == "refunds"
    assert (episode.context["task_id"], episode.context["complexity_score"]) == ("t", 0.5)
    assert [(each["tool"], each["arguments"], each["success"], each["error"]) for each in episode.actions] == [
        ("refund", {"order": 7}, False, "too late"),
        (None, None, True, None),
    ]
    assert [(each["turn"], each["reasoning"], each["chosen"]) for each in episode.decisions] == [
        (1, ["it is late", "refund"], "refund"),
        (2, [], "I cannot."),
    ]
    assert (episode.errors, episode.suggestions) == (["too late"], ["a", "b"])
    assert episode.outcome == {"status": "failure"}
    assert "outcome=failure" in episode.tags


def test_episode_counts_calls_of_the_gateway_first() -> None:
    used = ("tokens", "cost_usd", "seconds", "calls", "models")
    agents, gateways = episode_of(known(), []), episode_of(known(calls=[CALL, {**CALL, "error": "timeout"}]), [])
    assert [agents.resources[name] for name in used] == [7, 0.25, 3.0, 1, ["gpt"]]
    assert [gateways.resources[name] for name in used] == [240, 1.0, 3.0, 2, ["m-1"]]
    assert gateways.errors == ["timeout"]


def test_communication_is_who_asked_whom_in_the_run() -> None:
    run = [
        Branch(0, "p", "support", "desk", 2, "success"),
        Branch(1, "c1", "research", "desk/researcher", 1, None),
        Branch(2, "c2", "research", "desk/researcher/clerk", 1, "failure"),
        Branch(1, "c3", "support", "desk/writer", 3, "success"),
        Branch(0, "q", "support", "other", 3, "success"),
    ]
    asked = [(call["from"], call["to"], call["outcome"]) for call in episode_of(known(run=run), []).communication]
    assert asked == [
        ("desk", "desk/researcher", None),
        ("desk/researcher", "desk/researcher/clerk", "failure"),
        ("desk", "desk/writer", "success"),
    ]


def test_rewards_and_feedback_of_every_kind_stand_in_an_episode() -> None:
    reward = msgspec.convert(example("reward.v1"), Reward)
    given = [msgspec.convert(example("feedback.v1", name), Feedback) for name in ("error-analysis", "efficiency")]
    episode = episode_of(known(rewards=[reward], feedback=given), [])
    assert [each.reward_id for each in episode.rewards] == [reward.reward_id]
    assert [each.kind for each in episode.feedback] == ["error_analysis", "efficiency"]


def test_hostile_members_are_bounded() -> None:
    nested: dict[str, Any] = {}
    for _ in range(50):
        nested = {"deeper": nested, "x" * 9_000: "y"}
    long = turn(1, action=Action(type="tool_call", tool_name="t" * 9_000, tool_args=nested))
    many = [msgspec.structs.replace(long, turn_id=number) for number in range(1, 1_000)]
    body = msgspec.json.encode(episode_of(known(trajectory(turns=many, labels={"a": "b" * 9_000})), []))
    assert len(body) < 200 * LETTERS * (DEEP + 4)


def test_advice_is_of_the_patterns_whose_triggers_all_hold() -> None:
    domain, tool = Trigger(attribute="domain", value="refunds"), Trigger(attribute="tool", value="refund")
    other = Trigger(attribute="tool", value="cancel")
    of_role, both, one_of_two = pattern(), pattern(domain, tool), pattern(domain, other)
    assert matching(known(), [of_role, both, one_of_two]) == [both]


def test_advice_goes_by_retrieved_documents_too() -> None:
    about_terms = pattern(Trigger(attribute="document", value="terms.pdf"))
    assert matching(known(trajectory(labels={"documents": ["terms.pdf", "faq.md"]})), [about_terms]) == [about_terms]
    assert matching(known(), [about_terms]) == []
