"""What people see of rollouts and of an audit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.cli.rollout import show, show_audit, show_one
from ratchet.core.contract.http.rollouts import AuditOut, RolloutOut

WHOLE: dict[str, Any] = {
    "role": "support",
    "decisions": 3,
    "whole": True,
    "problem": None,
    "since": "2026-11-21T12:00:00Z",
    "complete": True,
    "first_break": None,
}

ARM: dict[str, Any] = {
    "started": 10,
    "trajectories": 9,
    "failures": 1,
    "failure_rate": 0.25,
    "missing": 1,
    "unscored": 0,
    "reward_mean": "no rewards",
    "calls": 30,
    "error_rate": 0.0,
    "hung_calls": 0,
    "negative_feedback": "no feedback",
    "safety_violations": 0,
}
ROLLOUT: dict[str, Any] = {
    "rollout_id": "r1",
    "role": "support",
    "state": "running",
    "strategy": "canary",
    "parked": True,
    "forecast": {
        "trajectories_per_day": 100.0,
        "seen_in_s": 86400.0,
        "expected_days": 3.5,
        "expected_days_by_stage": [1.0, 2.5],
    },
    "horizon": {"seconds": 600.0, "basis": "the setting"},
    "candidate": {"version": 2, "name": "support@2-aaaaaaaa", "digest": "aa"},
    "stable": None,
    "stage": 0,
    "weight": 0.0,
    "stage_since": None,
    "waiting_for": ["40 more outcomes"],
    "stage_age_s": 1.0,
    "deadline_in_s": None,
    "reason": "none",
    "actor": "deployer",
    "approval": "automated",
    "created_at": "2026-11-21T12:00:00Z",
    "finished_at": None,
    "gates": [{"gate": "integrity", "outcome": "passed", "reason": "whole", "evidence": {}}],
    "arms": {"stable": ARM, "canary": ARM, "mixed": 0},
    "differences": {},
    "coverage": {},
    "run": 1.0,
    "thresholds": {"run": 0.01},
    "budget": {},
    "pending": 0,
    "noticed": [],
    "e_values": {"harm": {"failure": 1.5}},
    "margin": 0.1,
    "decisions": 1,
    "last_hash": None,
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
    ended = rollout(state="promoted")
    show([ended, msgspec.structs.replace(ended, role="sales", state="canary", stage=2, weight=0.5)])
    support, sales = capsys.readouterr().out.splitlines()[1:]
    assert support.split() == ["support", "promoted", "support@2-aaaaaaaa", "-", "-", "-", "none"]
    assert sales.split() == ["sales", "canary", "support@2-aaaaaaaa", "-", "2", "0.5", "none"]


def test_a_rollout_is_shown_with_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(rollout())
    output = " ".join(capsys.readouterr().out.split())
    for words in (
        "expected: 3.5 days for a policy equal to stable, at 100 trajectories a day (1, 2.5 by stage)",
        "horizon: an outcome that has not come after 600 s is missing (the setting)",
        "the queue is parked: `ratchet rollout resume support` lets it go on",
        "integrity passed whole",
        "arm started trajectories failures failure_rate",
        "canary 10 9 1 0.25",
        "harm failure 1.5",
        "thresholds: run 0.01",
        "waiting for 40 more outcomes",
    ):
        assert words in output
