"""Messages for operators: alerts, and messages that could not be handled."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus import deadletter
from ratchet.bus.message import JsonObject, Message, Value


class Alert(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A condition that operators should know about. `key` deduplicates; `cleared` ends it."""

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


class SequenceRange(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Messages that follow one another in a stream; first and last included."""

    first: int
    last: int


class Stored(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a stream are in the history: a query of ClickHouse sees them."""

    TOPIC: ClassVar[str] = "agent.rl.stored.v1"

    stream: str
    generation: str
    """The life of the stream: a stream that was lost and created anew counts from 1 again."""
    sequences: list[SequenceRange]
    """Their places in the stream, as ranges without gaps."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.stream}"


class DeadLetter(deadletter.DeadLetter, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, kept whole for people to look at and to replay."""

    TOPIC: ClassVar[str] = "agent.rl.deadletter.v1"
