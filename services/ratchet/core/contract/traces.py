"""Which span of an OpenTelemetry trace something is, and the W3C header that says so (Trace Context, level 1)."""

from __future__ import annotations

import re
import uuid

from ratchet.bus.message import Value
from ratchet.core.contract.values import SpanId, TraceId

TRACEPARENT = "traceparent"
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
BY_SPAN = "span"
"""By what the trajectory of a call is recognised that an agent's telemetry reports: the span is there already."""


class Trace(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A span of a trace: of a call the agent's own, which made it, as it came with the request."""

    trace_id: TraceId
    """Id of the trace, lower-case hexadecimal."""
    span_id: SpanId
    """Id of the span, lower-case hexadecimal."""
    baggage: str | None = None
    """The `baggage` header, redacted."""
    sampled: bool = True
    """Whether the agent records the trace."""

    @property
    def traceparent(self) -> str:
        """The header that continues the trace from this span."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"


def read_traceparent(header: str) -> Trace | None:
    """The span that a `traceparent` names; None for one that is invalid."""
    match = _HEADER.fullmatch(header.strip())
    if match is None or (match[1] == "00" and match[5]):
        return None
    return Trace(trace_id=match[2], span_id=match[3], sampled=bool(int(match[4], 16) & _SAMPLED))


def trace_id_of(event_id: str) -> str:
    """The trace of something that came with none: its own id."""
    return uuid.UUID(event_id).hex


def span_id_of(event_id: str) -> str:
    """The span that an event is: the same event always has the same."""
    return uuid.UUID(event_id).hex[16:]
