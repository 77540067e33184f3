"""Messages for operators: alerts, and messages that could not be handled."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.messages.base import JsonObject, Message, named_id


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


class DeadLetter(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, kept whole so that it can be looked at and replayed."""

    TOPIC: ClassVar[str] = "agent.rl.deadletter.v1"

    stream: str
    sequence: int
    consumer: str
    original_subject: str
    reason: str
    """A token: `invalid`, `undecodable`, `rejected`, `exhausted`."""
    detail: str
    at: datetime
    headers: dict[str, str]
    body: str
    """The original body, or this part of it, base64."""
    part: int | None = None
    """Which part of the body this dead letter holds, 1 for the first; absent when it holds all of it."""
    parts: int | None = None
    """Number of dead letters that the body is split over."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.stream}.{self.reason}"

    @property
    def event_id(self) -> str:
        later = (self.part,) if self.part is not None and self.part > 1 else ()
        return named_id(self.TOPIC, self.stream, self.sequence, self.consumer, *later)
