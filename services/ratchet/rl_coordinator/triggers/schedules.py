"""Times of a schedule in cron's five fields, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

FIELDS = 5


def schedule_problem(cron: str) -> str | None:
    """Why the text is no schedule; None for one."""
    if len(cron.split()) != FIELDS:
        return f"cron {cron!r} does not have five fields: minute, hour, day of month, month, day of week"
    try:
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return f"cron {cron!r}: {error}"
    except StopIteration:
        return f"cron {cron!r} never comes"
    return None


def newest_time(cron: str, now: datetime) -> datetime:
    """The last time of the schedule until `now`, `now` included."""
    return next(CronSim(cron, now.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1), reverse=True))


def next_time(cron: str, now: datetime) -> datetime:
    """The first time of the schedule after `now`."""
    return next(CronSim(cron, now.astimezone(UTC)))


def is_due(cron: str, seen: datetime | None, now: datetime) -> bool:
    """Whether a time has come since `seen`: however many have, it is due once."""
    return seen is not None and newest_time(cron, now) > seen


def corrected(cron: str, seen: datetime | None, now: datetime) -> datetime | None:
    """What to note without a training: the beginning of a schedule that is new here, and the present after a clock that
    was far ahead; None when nothing is to be corrected."""
    if seen is None or seen > next_time(cron, now):
        return newest_time(cron, now)
    return None
