"""Alerts on rewards as patterns: opposite directions, old ones, and odd numbers."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from ratchet.analyst.domain.alerts import alerted
from ratchet.analyst.domain.patterns import DISMISSED, settled
from ratchet.analyst.domain.windows import windows
from ratchet.core.contract import Alert
from tests.support.adaptation import NOW

NEWEST = windows(timedelta(hours=1), NOW)


def alert(**members: object) -> Alert:
    labels = {"metric": "efficiency", "rises": True, "before": 0.4, "after": 0.8, "trajectories": 60, "evidence": []}
    given = {"alert_id": str(uuid4()), "key": "k", "severity": "warning", "summary": "efficiency moved"}
    whole = {**given, "source": "reward_computer", "at": NOW, "role": "shop", "labels": labels, **members}
    return msgspec.convert(whole, Alert)


def test_a_fall_opens_though_the_rise_was_dismissed() -> None:
    (rise,) = alerted([alert()], [], [], NEWEST)
    known = [replace(rise, state=DISMISSED)]
    fallen = {**(alert().labels or {}), "rises": False, "after": 0.1}
    outcome = settled(known, alerted([alert(labels=fallen)], known, [], NEWEST), {}, NEWEST, None)
    assert [pattern.finding for pattern in outcome.opened] == ["component_fell"]


def test_a_warning_that_still_stands_opens_however_old_it_is() -> None:
    assert alerted([alert(at=NOW - timedelta(hours=6))], [], [], NEWEST)


def test_an_alert_whose_pattern_cannot_be_read_again_opens_none() -> None:
    odd = {**(alert().labels or {}), "trajectories": -1}
    assert alerted([alert(labels=odd)], [], [], NEWEST) == []
    assert len(alerted([alert(labels=odd), alert()], [], [], NEWEST)) == 1
