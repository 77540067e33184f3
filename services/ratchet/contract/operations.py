"""Messages for operators: alerts, and messages that could not be handled."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus import deadletter
from ratchet.bus.message import JsonObject, Message


class Alert(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Something an operator should know about. `key` deduplicates; `cleared` ends it."""

    TOPIC: ClassVar[str] = "agent.rl.alert.v1"

    alert_id: str
    key: str
    severity: str
    """`info`, `warning` or `critical`."""
    summary: str
    source: str
    at: datetime
    cleared: bool = False
    role: str | None = None
    labels: JsonObject | None = None

    @property
    def event_id(self) -> str:
        return self.alert_id


class DeadLetter(deadletter.DeadLetter, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, kept whole so that it can be looked at and replayed."""

    TOPIC: ClassVar[str] = "agent.rl.deadletter.v1"
