"""Since when the coordinator hears its workers: after an outage of our own, silence is not their fault."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Listening:
    """`since`: start of the present stretch without a gap; `last`: the newest look."""

    since: datetime
    last: datetime


def look(before: Listening | None, now: datetime, gap_s: float) -> Listening:
    """After one more successful look at the broker. A pause longer than `gap_s` starts a new stretch."""
    if before is None or now - before.last > timedelta(seconds=gap_s) or now < before.last:
        return Listening(since=now, last=now)
    return Listening(since=before.since, last=now)
