"""When reports are due: once a day and week however the clock goes, and once for each training that ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from ratchet.core.contract.state import Job
from ratchet.notifier.domain.schedule import SETTLED, DueReport, due_report, newest_end, with_beginnings
from tests.support.training import job

MONDAY = datetime(2026, 3, 2, 8, tzinfo=UTC)
ALL = ("daily", "weekly", "job")


class Inbox:
    """A receiver that asks for some kinds, and what it was sent."""

    def __init__(self, *kinds: str) -> None:
        self.kinds, self.reported, self.got = kinds, dict[str, datetime](), list[DueReport]()

    def look(self, now: datetime, jobs: Sequence[Job] = ()) -> list[str]:
        """The kinds of reports that it gets at an instant."""
        new: list[DueReport] = []
        while True:
            self.reported = with_beginnings(self.reported, self.kinds, now)
            due = due_report(self.reported, self.kinds, jobs, now)
            if due is None:
                self.got += new
                return [report.kind for report in new]
            assert len(new) < len(ALL)
            name = due.kind if due.job is None else f"job:{due.job.training_job_id}"
            self.reported[name] = due.until
            new.append(due)


def test_daily_report_is_due_at_eight_once_what_happened_is_stored() -> None:
    inbox, day = Inbox("daily"), timedelta(days=1)
    assert inbox.look(MONDAY + timedelta(seconds=59)) == []
    assert inbox.look(MONDAY + timedelta(seconds=60)) == ["daily"]
    assert inbox.look(MONDAY + timedelta(hours=20)) == []
    assert inbox.look(MONDAY + day + timedelta(seconds=60)) == ["daily"]
    assert [report.until for report in inbox.got] == [MONDAY, MONDAY + day]


def test_new_receiver_gets_no_report_of_what_was_before_it() -> None:
    ended = job(state="completed", finished_at=MONDAY - timedelta(hours=1))
    assert Inbox(*ALL).look(MONDAY + timedelta(hours=3), [ended]) == []


def test_downtime_of_days_is_one_late_report() -> None:
    inbox = Inbox("daily")
    inbox.look(MONDAY)
    assert inbox.look(MONDAY + timedelta(days=4, hours=3)) == ["daily"]
    assert inbox.got[-1].until == MONDAY + timedelta(days=4)


def test_weekly_report_is_due_on_mondays() -> None:
    inbox = Inbox("weekly")
    looks = [inbox.look(MONDAY + timedelta(days=day, minutes=1)) for day in range(-1, 8)]
    assert looks == [[], ["weekly"], [], [], [], [], [], [], ["weekly"]]


def test_clock_set_back_sends_no_day_twice() -> None:
    inbox = Inbox("daily")
    inbox.look(MONDAY - timedelta(hours=1))
    assert inbox.look(MONDAY + timedelta(minutes=1)) == ["daily"]
    assert inbox.look(MONDAY - timedelta(minutes=20)) == []
    assert inbox.look(MONDAY + timedelta(minutes=2)) == []


def test_clock_that_ran_ahead_for_a_year_holds_no_report_back() -> None:
    inbox = Inbox("daily")
    inbox.look(MONDAY + timedelta(days=365))
    assert inbox.look(MONDAY + timedelta(hours=1)) == []
    assert inbox.look(MONDAY + timedelta(days=1, minutes=1)) == ["daily"]


@pytest.mark.parametrize(("state", "sent"), [("completed", ["job"]), ("failed", ["job"]), ("cancelled", [])])
def test_training_that_ended_is_reported_once(state: str, sent: list[str]) -> None:
    inbox = Inbox("job")
    inbox.look(MONDAY)
    ended = job(state=state, finished_at=MONDAY + timedelta(minutes=1))
    assert inbox.look(MONDAY + timedelta(minutes=2), [ended]) == sent
    assert inbox.look(MONDAY + timedelta(minutes=3), [ended]) == []


def test_training_that_ends_by_a_clock_ahead_is_reported_once() -> None:
    inbox = Inbox("job")
    inbox.look(MONDAY)
    ended = job(state="completed", finished_at=MONDAY + timedelta(hours=3))
    assert [inbox.look(MONDAY + timedelta(minutes=minutes), [ended]) for minutes in (1, 2, 300)] == [["job"], [], []]


def test_training_that_was_resumed_is_reported_again_at_its_end() -> None:
    inbox = Inbox("job")
    inbox.look(MONDAY)
    inbox.look(MONDAY + timedelta(minutes=2), [job(state="failed", finished_at=MONDAY + timedelta(minutes=1))])
    again = job(state="completed", finished_at=MONDAY + timedelta(minutes=9))
    assert inbox.look(MONDAY + timedelta(minutes=10), [again]) == ["job"]


def test_reported_trainings_are_forgotten_after_two_days() -> None:
    inbox = Inbox("job")
    inbox.look(MONDAY)
    inbox.look(MONDAY + timedelta(minutes=2), [job(state="failed", finished_at=MONDAY + timedelta(minutes=1))])
    inbox.look(MONDAY + timedelta(days=3))
    assert set(inbox.reported) == {"job"}


def test_week_ends_on_the_monday_before_now() -> None:
    assert newest_end("weekly", MONDAY + SETTLED) == MONDAY
    assert newest_end("weekly", MONDAY + SETTLED - timedelta(seconds=1)) == MONDAY - timedelta(weeks=1)
