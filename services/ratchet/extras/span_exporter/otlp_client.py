"""Posts spans by OTLP over HTTP: messages are acknowledged once the receiver has their spans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client import Counter

from ratchet.bus.consumer import BatchHandler, Done, Outcome
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer, Stream
from ratchet.dialects.telemetry.otlp import PROTOBUF
from ratchet.extras.span_exporter.domain import request_of
from ratchet.extras.span_exporter.settings import PATH

M = TypeVar("M", bound=Message)

log = structlog.get_logger()
SPANS = Counter("ratchet_exported_spans_total", "Spans, by what became of them: sent or refused.", ["outcome"])

TIMEOUT_S = 30.0
ANSWER_BYTES = 1 << 20
REFUSED = frozenset({400, 413, 415, 422})
"""Answers that the same spans would get again. All others may end: a wrong key and a wrong path are put right."""
WRONG_FORM = 415
"""The answer that fewer spans would get as well."""
LONGEST_S = 300.0
"""Most that is waited for because a receiver asks for it."""


class OtlpClient:
    """One receiver of spans."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        timeout_s: float = TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        peer = Peer("the receiver of spans", url, headers, timeout_s=timeout_s, answer_bytes=ANSWER_BYTES)
        self._http = AsyncApiClient(peer)
        self._monotonic = monotonic
        self._asked_again_at = 0.0
        """When the receiver may be asked again, which asked for patience."""
        self.failing: str | None = None
        """Why the receiver takes nothing now."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def check(self) -> str | None:
        """A note: why the receiver takes nothing. None while it does."""
        return self.failing

    def exporting(self, span_of: Callable[[Received[M]], Span | None]) -> BatchHandler:
        """The handler of messages that `span_of` makes spans of. It raises as `send` does: a batch that is refused is
        handled in halves."""

        async def handle(batch: Sequence[Received[M]]) -> Sequence[Outcome]:
            if spans := [span for received in batch if (span := span_of(received)) is not None]:
                await self.send(spans)
            return [Done()] * len(batch)

        return handle

    async def send(self, spans: Sequence[Span]) -> None:
        """Returns once the receiver has them, or has refused the only one for good, which is counted and logged.

        Raises `Rejected` for several that it refuses, some of which it may take, and `Unavailable` while it takes
        nothing.
        """
        if self._monotonic() < self._asked_again_at:
            raise Unavailable(self.failing or "the receiver of spans asked for patience")
        try:
            status, refused = await self._post(request_of(spans).SerializeToString())
        except Unavailable as error:
            self.failing = str(error)
            raise
        self.failing = None
        if status in REFUSED:
            if len(spans) > 1 and status != WRONG_FORM:
                raise Rejected(f"the receiver of spans answered {status}")
            refused = len(spans)
        refused = min(max(refused, 0), len(spans))
        if refused:  # its words may quote a prompt or a key
            log.warning("spans refused", status=status, refused=refused)
        SPANS.labels("refused").inc(refused)
        SPANS.labels("sent").inc(len(spans) - refused)

    async def _post(self, body: bytes) -> tuple[int, int]:
        """Status, and how many spans are refused of a request that was taken. Raises `Unavailable`."""
        answer = await self._http.stream("POST", PATH, body=body, headers={"content-type": PROTOBUF})
        try:
            if 200 <= answer.status < 300:
                return answer.status, await self._refused_in(answer)
            if answer.status in REFUSED:
                return answer.status, 0
            self._asked_again_at = self._monotonic() + _patience_s(answer.headers.get("retry-after", ""))
            redirected = ": redirects are not followed" if 300 <= answer.status < 400 else ""
            raise Unavailable(f"the receiver of spans answered {answer.status}{redirected}")
        finally:
            await answer.close()

    async def _refused_in(self, answer: Stream) -> int:
        """How many spans an answer refuses. One that never ends, or is no answer of OTLP, refuses none: it is 2xx."""
        try:
            async with asyncio.timeout(self._http.peer.timeout_s):
                content = await answer.whole()
            if not answer.headers.get("content-type", "").startswith(PROTOBUF):
                return 0
            return ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans
        except (DecodeError, TimeoutError, Unavailable):
            return 0


def _patience_s(retry_after: str) -> float:
    return min(LONGEST_S, float(retry_after)) if retry_after.isdecimal() else 0.0
