"""When a report is due: a daily one at 08:00 UTC, a weekly one on Mondays, one of each training that has ended. Pure.

A receiver gets a report of a day or week once, by its end: late where no notifier ran then, and only the newest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.contract.notifications import SentReport
from ratchet.core.contract.state import Job, JobState
from ratchet.core.rules.alert_book import RECENTLY
from ratchet.core.rules.reports import DAILY, JOB, SPANS

HOUR = timedelta(hours=8)
"""Of the day, UTC."""
SETTLED = timedelta(minutes=1)
"""From the end of a day to its report: what happened in its last moments is stored meanwhile, and in no later one."""
SKEW = timedelta(hours=1)
"""Two notifiers' clocks differ by less: a report of a later time was sent by a clock that was wrong."""
REPORTED = frozenset({JobState.COMPLETED, JobState.FAILED})
"""Ends of a training that are reported: a person who cancels it knows."""


@dataclass(frozen=True, slots=True)
class DueReport:
    """A report that a receiver is to get."""

    kind: str
    until: datetime
    job: Job | None = None


def newest_end(kind: str, now: datetime) -> datetime:
    """The end of the newest day or week that is over, and settled."""
    end = (now - HOUR - SETTLED).replace(hour=0, minute=0, second=0, microsecond=0) + HOUR
    return end if kind == DAILY else end - timedelta(days=end.weekday())


def with_beginnings(reported: Mapping[str, datetime], kinds: Collection[str], now: datetime) -> dict[str, datetime]:
    """What a receiver has got, where it asks for a kind for the first time: all until now. Old trainings are forgotten.

    What a clock that ran ahead has noted is brought back, or nothing would be due until that time has come; of a
    training it stays, or that would be due at each look.
    """
    kept = {
        name: end
        for name, end in reported.items()
        if (now - end < 2 * RECENTLY if name.startswith(f"{JOB}:") else end - now < SKEW)
    }
    return {kind: now if kind == JOB else newest_end(kind, now) for kind in kinds} | kept


def due_report(
    reported: Mapping[str, datetime], kinds: Collection[str], jobs: Iterable[Job], now: datetime
) -> DueReport | None:
    """The next one. `jobs`: of the receiver's roles."""
    for kind in SPANS.keys() & kinds:
        end = newest_end(kind, now)
        if reported[kind] < end:
            return DueReport(kind, end)
    for job in jobs if JOB in kinds else ():
        end = job.finished_at
        is_new = end is not None and reported[JOB] < end and now - end < RECENTLY
        if end is not None and is_new and job.state in REPORTED and reported.get(f"{JOB}:{job.training_job_id}") != end:
            return DueReport(JOB, end, job)
    return None


def name_of(report: SentReport) -> str:
    """What a receiver remembers it by."""
    return f"{JOB}:{report.job_id}" if report.kind == JOB else report.kind
