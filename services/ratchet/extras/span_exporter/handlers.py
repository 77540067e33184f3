"""A batch of messages becomes a request: it is acknowledged once the receiver has the spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.bus.consumer import BatchHandler, Done, Outcome
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.extras.span_exporter.otlp_client import OtlpClient

M = TypeVar("M", bound=Message)


def exporting(client: OtlpClient, span_of: Callable[[Received[M]], Span | None]) -> BatchHandler:
    """The handler of messages that `span_of` makes spans of. What `OtlpClient.send` raises means what it means of any
    batch handler: a batch that is refused comes again in halves."""

    async def handle(batch: Sequence[Received[M]]) -> Sequence[Outcome]:
        if spans := [span for received in batch if (span := span_of(received)) is not None]:
            await client.send(spans)
        return [Done()] * len(batch)

    return handle
