"""Rows of messages: what an agent's clock may set."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from ratchet.core.contract import Feedback, Turn
from ratchet.trajectory_collector.rows import EARLIEST, TABLES, row_of
from tests.support.messages import AT, trajectory, turn
from tests.support.rewards import feedback, received

HOUR, CENTURY = timedelta(hours=1), timedelta(days=36_500)


@pytest.mark.parametrize(
    ("ended_at", "placed_at"),
    [(AT - HOUR, AT - HOUR), (AT + HOUR, AT), (AT + CENTURY, AT), (AT - 2 * CENTURY, EARLIEST)],
    ids=["right", "an hour ahead", "a century ahead", "before the first instant of ClickHouse"],
)
def test_run_of_a_clock_that_is_ahead_stands_behind_later_ends(ended_at: datetime, placed_at: datetime) -> None:
    one = msgspec.structs.replace(trajectory(), start_timestamp=ended_at, end_timestamp=ended_at)
    row = row_of(TABLES[one.TOPIC], replace(received(one), time=AT), "made/0", AT)
    assert (row["started_at"], row["ended_at"]) == (placed_at, placed_at)


@pytest.mark.parametrize("one", [turn(timestamp=AT + CENTURY), feedback(at=AT + CENTURY)])
def test_call_and_opinion_are_placed_no_later_than_they_were_stored(one: Turn | Feedback) -> None:
    row = row_of(TABLES[one.TOPIC], replace(received(one), time=AT), "made/0", AT)
    assert row["at"] == AT
