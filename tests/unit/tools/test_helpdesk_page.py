"""The report of self-learning on the help desk says what its acts came to, and nothing better."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.building import trajectory_from
from tools.analyst.helpdesk import conversation
from tools.analyst.helpdesk_page import page

AT = "2026-03-01T10:00:00+00:00"


def plan(kind: str, state: str, **change: Any) -> dict[str, Any]:
    triggers = [{"attribute": "task_type", "value": "refund too late"}]
    described = {"kind": kind, "summary": "It changes.", **change}
    return {
        "pattern_id": "p",
        "state": state,
        "risk": "medium",
        "triggers": triggers,
        "verdict": "So.",
        "change": described,
    }


def carried_out(plan: dict[str, Any]) -> dict[str, Any]:
    arms = {arm: {"failures": 3, "trajectories": 4} for arm in ("canary", "stable")}
    return {"plan": plan, "rollout": {"arms": arms}, "gates": {"probe": "passed"}, "gate": "better", "job": None}


def acts(state: str, seen_at: str) -> dict[str, Any]:
    look = {"trajectories": [9, 9], "tested": 1, "opened": ["p"], "until": AT}
    pattern = {
        "pattern_id": "p",
        "statement": "They fail | more.",
        "confidence": 1.0,
        "reward_cost": 2.0,
        "action": "bundle",
    }
    run = {"analysis": {**look, "patterns": [{**pattern, "seen_at": seen_at}]}, "seconds": 60}
    counts = {"@all": [50, 100], "@cluster": [9, 10], "refund too late": [9, 10]}
    training = {"dataset": {"filter": {"min_reward": 0.5}}, "hyperparameters": {"learning_rate": 0.002}}
    helpful = carried_out(plan("training", state, training=training)) | {"job": {"rows": 7, "seconds": 2.0}}
    return {
        "began": {"commit": "c", "at": AT, "cores": 2},
        "spent": {"wall_s": 60.0, "cpu_s": 60.0, "load": 2.0},
        "first_policy": {"policy": "helpdesk@1", "tickets": 5},
        "past": run,
        "live": {"tickets": 2},
        "harmful": carried_out(plan("bundle", "rolled_back", bundle={"instructions": {"text": "Check."}})),
        "second": run,
        "helpful": helpful,
        "after": {"tickets": 3},
        "third": run,
        "compared": {
            "counts": dict.fromkeys(("day 1", "day 2", "after"), counts),
            "report": {"figures": {"plans_validated": 0, "plans_rolled_back": 2}},
        },
    }


@pytest.mark.parametrize(
    ("seen_at", "words"), [(AT, "still sees the pattern"), ("2026-02-28T10:00:00+00:00", "does not see the pattern")]
)
def test_page_states_whether_the_pattern_is_seen_at_the_end(seen_at: str, words: str) -> None:
    assert words in page(acts("validated", seen_at))


@pytest.mark.parametrize("state", ["validated", "rolled_back", "rejected"])
def test_page_states_how_the_training_ended(state: str) -> None:
    assert f"**{state.replace('_', ' ')}**" in page(acts(state, AT)).partition("## A training")[2]


def test_page_counts_what_fails_of_those_that_match() -> None:
    assert "| failing, of those that match | 9 of 10 (90.0%;" in page(acts("validated", AT))


def test_a_ticket_of_the_past_keeps_its_time_kind_and_outcome() -> None:
    messages = [{"role": "user", "content": "refund order #A10"}, {"role": "assistant", "content": "all done"}]
    record = {"task": "t", "kind": "refund too late", "solved": False, "messages": messages}
    times = {"started_at": "2026-02-28T10:00:00+00:00", "ended_at": AT}
    made = trajectory_from(conversation(record | times), ImportOptions(outcome="solved"), "python")
    assert made.outcome is not None
    assert (made.outcome.status, made.end_timestamp.isoformat()) == ("failure", AT)
    assert made.labels is not None
    assert made.labels["task_type"] == "refund too late"
