"""Posts spans by OTLP over HTTP, and says what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.core.errors import Unavailable
from ratchet.core.service.http_client import QUOTED, AsyncApiClient, Peer, Reply
from ratchet.dialects.telemetry.otlp import PROTOBUF
from ratchet.extras.span_exporter import metrics
from ratchet.extras.span_exporter.domain import request_of
from ratchet.extras.span_exporter.settings import PATH

log = structlog.get_logger()

TIMEOUT_S = 30.0
ANSWER_BYTES = 1 << 20
TOO_LARGE = 413
REFUSED = frozenset({400, TOO_LARGE, 415, 422})
"""Answers that the same spans would get again. All others may end: a wrong key and a wrong path are put right."""
LONGEST_S = 300.0
"""Most that is waited for because a receiver asks for it."""


@dataclass(frozen=True, slots=True)
class Later:
    """The receiver did not take them now."""

    reason: str
    after_s: float


class TooLarge(Exception):
    """The receiver takes no request of this size."""


class OtlpClient:
    """One receiver of spans."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = AsyncApiClient(
            Peer("the receiver of spans", url, headers, timeout_s=TIMEOUT_S, answer_bytes=ANSWER_BYTES)
        )
        self.failing: str | None = None
        """Why the receiver takes nothing now."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def check(self) -> str | None:
        """A note: why the receiver takes nothing. None while it does."""
        return self.failing

    async def send(self, spans: Sequence[Span]) -> Later | None:
        """None once the receiver has them, or has refused them for good, which is counted and logged.

        Raises `TooLarge` where fewer of them may be taken.
        """
        body = request_of(spans).SerializeToString()
        try:
            reply = await self._http.exchange("POST", PATH, body=body, headers={"content-type": PROTOBUF})
        except Unavailable as error:
            return self._later(str(error))
        if reply.status == TOO_LARGE and len(spans) > 1:
            raise TooLarge
        if reply.status not in REFUSED and not 200 <= reply.status < 300:
            return self._later(f"the receiver of spans answered {reply.status}", _retry_after_s(reply))
        self.failing = None
        refused, why = (len(spans), _words(reply)) if reply.status in REFUSED else _partly_refused(reply)
        if refused or why:
            log.warning("spans refused", status=reply.status, refused=refused, reason=why)
        metrics.SPANS.labels("refused").inc(refused)
        metrics.SPANS.labels("sent").inc(len(spans) - refused)
        return None

    def _later(self, reason: str, after_s: float = 1.0) -> Later:
        self.failing = reason
        return Later(reason, after_s)


def _retry_after_s(reply: Reply) -> float:
    asked = reply.headers.get("retry-after", "")
    return min(LONGEST_S, max(1.0, float(asked))) if asked.isdecimal() else 1.0


def _words(reply: Reply) -> str:
    return reply.content[:QUOTED].decode(errors="replace")


def _partly_refused(reply: Reply) -> tuple[int, str]:
    """How many spans of a request that was taken were not, and the receiver's words."""
    if not reply.headers.get("content-type", "").startswith(PROTOBUF):
        return 0, ""
    try:
        partial = ExportTraceServiceResponse.FromString(reply.content).partial_success
    except DecodeError:
        return 0, ""
    return partial.rejected_spans, partial.error_message[:QUOTED]
