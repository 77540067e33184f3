"""When is a trace over? Decided by what came when, so that every collector decides alike, also after a restart.

A trace is closed 60 s after a span without a parent had ended; where its topmost span has a parent in another service,
after 10 idle minutes; else after 75; a day after its first span at the latest. It is revised 75 idle minutes after the
last span that came late, a day after the first of those at the latest.

What comes after a trace was closed makes one revision; what comes after that is counted, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

ROOT = timedelta(seconds=60)
"""After the root has ended: exporters send what ended before it within seconds."""
ENTRY = timedelta(minutes=10)
"""Where only another service could tell the end: a run that is silent for so long is over, as behind the gateway."""
IDLE = timedelta(minutes=75)
"""An agent may wait an hour for a tool, or for a person."""
LONGEST = timedelta(days=1)
"""A trace whose ids are used again and again never ends by itself."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Some spans of a trace were stored."""

    at: datetime
    spans: int
    has_root: bool = False
    has_entry: bool = False
    calls: int = 0
    evaluations: int = 0


@dataclass(slots=True)
class Life:
    """What is known of one trace; each part in the order in which it was stored."""

    first: datetime
    last: datetime
    root: datetime | None = None
    """When the first span without a parent came that had ended."""
    has_entry: bool = False
    late_first: datetime | None = None
    late_last: datetime | None = None
    calls: int = 0
    """Spans that are about an agent; without any there is nothing to assemble."""
    late: int = 0
    """Spans that came after it was closed."""
    too_late: int = 0
    """Spans that came after its revision."""
    judged: datetime | None = None
    """When the last evaluation came, of those that came after it was closed."""

    @classmethod
    def of(cls, heard: Heard) -> Life:
        """A trace of which this is the first part."""
        life = cls(heard.at, heard.at)
        life._take(heard)
        return life

    def hear(self, heard: Heard) -> None:
        """Take in the next part."""
        if heard.at <= self.closes_at:
            self._take(heard)
            return
        revises_at = self.revises_at
        if revises_at is not None and heard.at > revises_at:
            self.too_late += heard.spans
        elif heard.calls or heard.spans > heard.evaluations:
            self.late += heard.spans
            self.late_first, self.late_last = self.late_first or heard.at, heard.at
            self.calls += heard.calls
        if heard.evaluations:
            self.judged = heard.at

    @property
    def closes_at(self) -> datetime:
        """When it is over, unless more comes before."""
        silent = self.last + (ENTRY if self.has_entry else IDLE)
        ends = [silent, self.first + LONGEST, *([self.root + ROOT] if self.root else [])]
        return min(ends)

    @property
    def revises_at(self) -> datetime | None:
        """When what came late is over, unless more comes before; None while nothing did."""
        if self.late_first is None or self.late_last is None:
            return None
        return min(self.late_last + IDLE, self.late_first + LONGEST)

    def due(self, now: datetime) -> datetime | None:
        """The newest of these instants that has passed; None while the trace is open."""
        revises_at = self.revises_at
        if revises_at is not None and revises_at < now:
            return revises_at
        return self.closes_at if self.closes_at < now else None

    def is_over(self, now: datetime) -> bool:
        """Whether nothing that comes now would change anything any more."""
        return max(self.closes_at, self.revises_at or self.closes_at) + IDLE < now

    def _take(self, heard: Heard) -> None:
        self.last = heard.at
        self.calls += heard.calls
        self.has_entry |= heard.has_entry
        if heard.has_root and self.root is None:
            self.root = heard.at
