"""What a report waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ratchet.bus.connection import Bus
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.alerts import AlertsFollower
from ratchet.core.service.settings import SharedSettings
from ratchet.notifier.domain.deliveries import Rules
from ratchet.notifier.reports import EndedJobs, Reports

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def away() -> Bus:
    raise BusUnavailable("the broker is away")


async def test_daily_report_waits_until_it_is_known_which_alerts_hold() -> None:
    followed, ended = AlertsFollower(away, None), EndedJobs(away, lambda: NOON)
    reports = Reports(SharedSettings(), followed, ended)
    rules = Rules(name="team", reports=frozenset({"daily"}))
    with pytest.raises(BusUnavailable, match="RL_ALERTS is not read"):
        await reports.due({"daily": NOON - timedelta(days=1)}, rules, NOON)
