"""Messages for operators: alerts, and messages that could not be handled."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from ratchet.bus import deadletter
from ratchet.bus.message import JsonObject, Message, Value
from ratchet.core.contract.values import Ordinal, Role, Text, Uuid, listed, matching


class Alert(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A condition that operators should know about. `key` deduplicates; `cleared` ends it."""

    TOPIC: ClassVar[str] = "agent.rl.alert.v1"

    alert_id: Uuid
    key: Text
    """Alerts with the same key are one alert."""
    severity: Annotated[str, listed("info", "warning", "critical")]
    """`info`, `warning` or `critical`."""
    summary: Text
    source: Text
    """Which service noticed."""
    at: datetime
    cleared: bool = False
    """True when it is over."""
    role: Role | None = None
    """Role it concerns, if one."""
    labels: JsonObject | None = None
    """Free-form labels of your own."""

    @property
    def event_id(self) -> str:
        return self.alert_id


class SequenceRange(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Messages that follow one another in a stream; first and last included."""

    first: Ordinal
    """Sequence of the first one."""
    last: Ordinal
    """Sequence of the last one."""


class Stored(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a stream are in the history: a query of ClickHouse sees them."""

    TOPIC: ClassVar[str] = "agent.rl.stored.v1"

    stream: Annotated[str, matching(r"^[A-Z0-9_]{1,64}$")]
    """The stream that they are messages of."""
    generation: Text
    """The life of the stream: a stream that was lost and created anew counts from 1 again."""
    sequences: Annotated[list[SequenceRange], Meta(min_length=1)]
    """Their places in the stream, as ranges without gaps."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.stream}"


class DeadLetter(deadletter.DeadLetter, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be handled, for people to look at and to replay."""

    TOPIC: ClassVar[str] = "agent.rl.deadletter.v1"
