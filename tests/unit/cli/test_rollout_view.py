"""What people see of rollouts and of an audit."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.cli.rollout import show, show_audit

WHOLE: dict[str, Any] = {
    "role": "support",
    "decisions": 3,
    "whole": True,
    "problem": None,
    "since": "2026-11-21T12:00:00Z",
    "complete": True,
    "first_break": None,
}


def test_a_whole_log_is_one_line(capsys: pytest.CaptureFixture[str]):
    show_audit(WHOLE)
    said = capsys.readouterr().out
    assert said == "3 decisions about support since 2026-11-21 12:00:00 UTC: the log is whole\n"
    show_audit(WHOLE | {"complete": False})
    assert "older ones have left the stream" in capsys.readouterr().out


def test_a_broken_log_names_the_decision(capsys: pytest.CaptureFixture[str]):
    broken = {"event_id": "e1", "actor": "nobody", "verdict": "promote"}
    show_audit(WHOLE | {"whole": False, "problem": "it is not what was decided", "first_break": broken})
    said = capsys.readouterr().out
    for words in ("it is not what was decided", "e1", "nobody", "promote"):
        assert words in said


def test_only_a_rollout_with_traffic_has_a_stage_and_a_weight(capsys: pytest.CaptureFixture[str]):
    ended = {"role": "support", "state": "promoted", "stage": 0, "weight": 0.0, "reason": "none"}
    show([ended, ended | {"role": "sales", "state": "canary", "stage": 2, "weight": 0.5}])
    support, sales = capsys.readouterr().out.splitlines()[1:]
    assert support.split() == ["support", "promoted", "-", "-", "-", "-", "none"]
    assert sales.split() == ["sales", "canary", "-", "-", "2", "0.5", "none"]
