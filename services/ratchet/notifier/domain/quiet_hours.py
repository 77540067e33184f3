"""Hours of the day in which a receiver gets only what is critical."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_FORM = re.compile(r"(\d{1,2}:\d{2})-(\d{1,2}:\d{2})(?: (\S+))?")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` up to `end` by the clock on the wall of `zone`, every day; over midnight where `end` is earlier.

    Where that clock is set forward over an hour, the hour is neither quiet nor loud: it does not come. Where it is set
    back, the hour that comes twice is the same both times.
    """

    start: time
    end: time
    zone: ZoneInfo

    def cover(self, at: datetime) -> bool:
        """Whether it is quiet at an instant."""
        wall = at.astimezone(self.zone).time()
        if self.start < self.end:
            return self.start <= wall < self.end
        return wall >= self.start or wall < self.end


def quiet_hours(text: str) -> QuietHours:
    """The hours that a text such as `22:00-07:00 Europe/Berlin` names; without a zone they are of UTC.

    Raises `ValueError`.
    """
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError(f"{text!r} names no hours: write them as 22:00-07:00 Europe/Berlin")
    start, end, zone = form.groups()
    hours = QuietHours(_time(start), _time(end), _zone(zone or "UTC"))
    if hours.start == hours.end:
        raise ValueError(f"{text!r} begins when it ends: leave quiet_hours out, or name hours")
    return hours


def _time(text: str) -> time:
    hour, minute = text.split(":")
    return time(int(hour), int(minute))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}: write one such as Europe/Berlin") from error
