"""How long rows are kept, by table and role, and how far back the audit may ask for them."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from ratchet.core.datasets.archives import Folder
from ratchet.core.errors import ConfigError
from ratchet.core.service.settings import read
from ratchet.trajectory_collector.archiving import condition
from ratchet.trajectory_collector.clickhouse_retention import days_by_table, expression, least_age
from ratchet.trajectory_collector.settings import MOST_DAYS, Settings


def settings(retention: str = "{}") -> Settings:
    return read(Settings, {"RATCHET_COLLECTOR_RETENTION": retention})


def test_days_of_a_role_take_what_they_leave_open_from_the_others() -> None:
    kept = settings('{"*": {"hot": 14}, "support": {"labels": 900}}').days_kept
    assert (kept["*"].hot, kept["*"].archived, kept["*"].labels) == (14, 90, 365)
    assert (kept["support"].hot, kept["support"].whole, kept["support"].labels) == (14, 104, 900)


@pytest.mark.parametrize("wrong", ['{"support": {"hot": 7}}', '{"*": {"warm": 9}}', '{"Support\'": {"hot": 9}}'])
def test_days_that_cannot_be_kept_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        settings(wrong)


def test_the_audit_asks_for_no_row_that_any_role_may_have_archived() -> None:
    days = days_by_table(settings('{"support": {"hot": 10}, "other": {"hot": 60}}'))
    assert least_age(days, ["turns", "trajectory_ends"]) == timedelta(days=10)
    assert least_age(days, ["feedback", "preferences"]) == timedelta(days=365)
    assert least_age({"calls": {"*": 0}}, ["calls"]) is None


def test_an_age_is_by_role_and_none_where_rows_stay_for_ever() -> None:
    assert expression("at", {}) == expression("at", {"*": 0}) == ""
    assert expression("at", {"*": 20}) == "toDateTime(at) + toIntervalDay(20)"
    by_role = f"toDateTime(at) + toIntervalDay(multiIf(role = 'a', 9, {MOST_DAYS}))"
    assert expression("at", {"a": 9, "*": 0}) == by_role


def test_a_deletion_names_a_day_and_the_newest_message_of_each_generation() -> None:
    made = condition(Folder("turns", "support", date(2026, 1, 5)), [("b/1", 3), ("a/1", 9), ("a/1", 7)])
    assert made == (
        "(role = 'support' AND ingested_at >= toDateTime64('2026-01-05 00:00:00', 3, 'UTC')"
        " AND ingested_at < toDateTime64('2026-01-06 00:00:00', 3, 'UTC')"
        " AND ((generation = 'a/1' AND sequence <= 9) OR (generation = 'b/1' AND sequence <= 3)))"
    )
