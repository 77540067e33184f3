"""A message as it came off a stream: the typed body, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from ratchet.bus.message import Cause, Message

M_co = TypeVar("M_co", bound=Message, covariant=True)


@dataclass(frozen=True, slots=True)
class Received(Generic[M_co]):
    """One delivery of one message."""

    message: M_co
    subject: str
    stream: str
    sequence: int
    """Its place in the stream, 1 for the first: the same for every delivery."""
    delivered: int
    """How often it was delivered to this consumer, this time included."""
    event_id: str
    time: datetime
    """When the stream stored it."""
    correlation_id: str
    """Id of the first event of the causal chain."""
    causation_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    """The plain JSON, members that the schema does not know included; of an older version, the upgraded one."""

    @property
    def identity(self) -> str:
        """Tells events apart that publishers gave one id: with it goes the one that follows from the message, where
        that is another."""
        own = self.message.event_id
        return self.event_id if own == self.event_id else f"{self.event_id}\x1f{own}"

    def as_cause(self) -> Cause:
        """What an answer to this message has to name; small enough to be kept until the answer is published."""
        traceparent = self.headers.get("traceparent")
        return Cause(event_id=self.event_id, correlation_id=self.correlation_id, traceparent=traceparent)


Causing = Received[Message] | Cause
"""What a message can follow from: a delivery, or what was kept of one."""
