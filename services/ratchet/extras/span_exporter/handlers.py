"""A batch of messages becomes a request: it is acknowledged once the receiver has the spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.bus.consumer import BatchHandler, Done, Outcome, Retry
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.extras.span_exporter.otlp_client import OtlpClient

M = TypeVar("M", bound=Message)


def exporting(client: OtlpClient, span_of: Callable[[Received[M]], Span | None]) -> BatchHandler:
    """The handler of messages that `span_of` makes spans of.

    It raises `TooLarge` for a batch that the receiver may take in halves: the consumer hands them in.
    """

    async def handle(batch: Sequence[Received[M]]) -> Sequence[Outcome]:
        spans = [span for received in batch if (span := span_of(received)) is not None]
        later = await client.send(spans) if spans else None
        outcome = Done() if later is None else Retry(later.reason, delay_s=later.after_s, away=True)
        return [outcome] * len(batch)

    return handle
