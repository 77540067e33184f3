"""What people see of rollouts and of an audit."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ratchet.cli.rollout import show, show_audit, show_one
from ratchet.core.contract.http.rollouts import AuditOut, RolloutOut
from tests.support.contract_files import ROOT

WHOLE: dict[str, Any] = {
    "role": "support",
    "decisions": 3,
    "whole": True,
    "problem": None,
    "since": "2026-11-21T12:00:00Z",
    "complete": True,
    "first_break": None,
}

ROLLOUT: dict[str, Any] = {
    **json.loads((ROOT / "http/examples/deployer/RolloutOut.json").read_text()),
    "parked": True,
    "queue": [],
    "stable": None,
    "weight": 0.0,
    "reason": "none",
    "late": None,
}


def audit(**changes: Any) -> AuditOut:
    return msgspec.convert(WHOLE | changes, AuditOut)


def rollout(**changes: Any) -> RolloutOut:
    return msgspec.convert(ROLLOUT | changes, RolloutOut)


def test_a_whole_log_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_audit(audit())
    output = capsys.readouterr().out
    assert output == "3 decisions about support since 2026-11-21 12:00:00 UTC: the log is whole\n"
    show_audit(audit(complete=False))
    assert "older ones have left the stream" in capsys.readouterr().out


def test_a_broken_log_names_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    broken = {
        "event_id": "e1",
        "rollout_id": "r1",
        "sequence": 2,
        "timestamp": "2026-11-21T12:00:00Z",
        "verdict": "promote",
        "actor": "an intruder",
        "reason": "none",
    }
    show_audit(audit(whole=False, problem="it is not what was decided", first_break=broken))
    output = capsys.readouterr().out
    for words in ("it is not what was decided", "e1", "an intruder", "promote", "2026-11-21T12:00:00Z"):
        assert words in output


def test_only_a_rollout_with_traffic_has_a_stage_and_a_weight(capsys: pytest.CaptureFixture[str]) -> None:
    ended = rollout(state="promoted", progress=None)
    running = msgspec.structs.replace(ended, role="sales", state="canary", stage=2, weight=0.5, queue=["sales@4-1"])
    show([ended, running])
    support, sales = capsys.readouterr().out.splitlines()[1:]
    assert support.split() == ["support", "promoted", "support@3-3c1a3c1a", "-", "-", "-", "-", "none"]
    assert sales.split() == ["sales", "canary", "support@3-3c1a3c1a", "-", "2", "0.5", "1", "none"]


def test_a_rollout_shows_how_far_its_gate_has_come(capsys: pytest.CaptureFixture[str]) -> None:
    show([rollout(state="gating", progress="mirroring 34 of 200 calls")])
    assert capsys.readouterr().out.splitlines()[1].endswith("mirroring 34 of 200 calls")


@pytest.mark.parametrize(("parked", "ends"), [(False, "this rollout ends"), (True, "the queue goes on")])
def test_a_rollout_names_the_candidates_that_wait(capsys: pytest.CaptureFixture[str], parked: bool, ends: str) -> None:
    show_one(rollout(queue=["support@6-66666666", "support@5-55555555"], parked=parked))
    shown = f"next: support@6-66666666 waits until {ends}, and then supersedes support@5-55555555\n"
    assert shown in capsys.readouterr().out


def test_a_rollout_is_shown_with_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(rollout())
    output = " ".join(capsys.readouterr().out.split())
    for words in (
        "expected: 2.4 days for a policy equal to stable, at 1200 trajectories a day of 480 subjects (0.5,",
        "subjects: 212 seen in this rollout, before it 400 in 1000 starts",
        "horizon: an outcome that has not come after 1800 s is missing (the setting",
        "the queue is parked: `ratchet rollout resume support` lets it go on",
        "heldout_tasks passed 0.81 against 0.78",
        "arm started trajectories failures failure_rate",
        "canary 130 130 22 0.1692",
        "promotion combined 6",
        "thresholds: rollback 40, complaints 200, promotion 20, run 0.005",
        "waiting for 40 of 200 canary trajectories in this stage",
    ):
        assert words in output


def test_complaints_are_shown_with_their_margin_and_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(rollout())
    output = " ".join(capsys.readouterr().out.split())
    assert "complaints of users: compared; more than 1.5 times as many as stable's, within the horizon" in output
    assert "a rollback by a metric needs 4% more evidence than without complaints" in output


def test_cost_is_shown_with_what_it_takes_and_how_much_dearer(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(rollout())
    output = " ".join(capsys.readouterr().out.split())
    assert "cost: compared up to 0.24 USD a trajectory (4 times the 0.06 USD" in output
    assert "a rollback by another metric needs 4% more evidence than without cost" in output
    assert "the canary is 21% cheaper: between 44% cheaper and 6% dearer" in output


def test_cost_that_is_not_compared_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(rollout(cost={"basis": "12 of 100 priced trajectories of stable are known from before"}))
    assert "cost: not compared (12 of 100 priced trajectories" in capsys.readouterr().out
