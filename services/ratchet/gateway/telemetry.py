"""`POST /v1/traces` and `/v1/logs`: OTLP over HTTP. 200 means that the broker has stored every span that was taken.

Nothing of it waits in this process: what the broker does not take now is refused with 503, and its sender, which keeps
it, sends it again. The answer is in the request's content type, that to an error too (`status_body`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import structlog
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.core.contract.erasure import TRAJECTORY
from ratchet.core.errors import BadRequest, Unavailable
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.asgi import Request, Response, body_too_large
from ratchet.core.service.problems import HttpError
from ratchet.dialects.telemetry.otlp import JSON, LOGS, PROTOBUF, TRACES
from ratchet.gateway import metrics
from ratchet.gateway.domain.prices import Prices
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_process import Recorded
from ratchet.gateway.span_records import SpansJob, TakenSpans, words_of
from ratchet.gateway.unrecorded import Unrecorded, is_off

log = structlog.get_logger()

SIGNALS = (TRACES, LOGS)
RETRY_S = 5
"""When a sender should try again what could not be stored."""
LARGEST = 16 * 1024 * 1024
"""Most bytes of a request, unpacked: a recorder reads it within a few seconds. SDKs send a few megabytes at most."""
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 413: 3, 415: 3, 429: 8, 503: 14}
"""gRPC's code of a status: INVALID_ARGUMENT, UNAUTHENTICATED, ..., UNAVAILABLE; else INTERNAL."""
_INTERNAL = 13


@dataclass(frozen=True)
class Telemetry:
    """The handlers of OTLP."""

    recorder: Recorder
    connected: Callable[[], Bus | None]
    """The broker, while it is connected."""
    roles: Mapping[str, str]
    """Service (`service.name`) to role."""
    other_role: str
    """The role of all other services."""
    user_key: str | None
    unrecorded: Unrecorded
    prices: Prices
    now: Callable[[], datetime]
    _storing: set[asyncio.Task[TakenSpans]] = field(default_factory=set[asyncio.Task[TakenSpans]], init=False)

    async def take(self, signal: str, request: Request, _: str | None) -> Response:
        """Store what a request brings. Raises `HttpError`, `BadRequest`, or `Unavailable` when it cannot be stored."""
        content_type = content_type_of(request.header(b"content-type") or JSON)
        if len(request.body) > LARGEST:
            raise body_too_large(LARGEST)
        if is_off(request):
            return answer(signal, content_type, TakenSpans())
        bus = self.connected()
        if bus is None:
            raise _try_again("the broker is not connected")
        # Also what its sender does not wait for is stored: on a busy machine it would be read in vain again and again.
        storing = asyncio.create_task(self._stored(bus, self._job(signal, content_type, request, bus.largest)))
        self._storing.add(storing)
        storing.add_done_callback(self._forget)
        return answer(signal, content_type, await asyncio.shield(storing))

    def _forget(self, storing: asyncio.Task[TakenSpans]) -> None:
        self._storing.discard(storing)
        if not storing.cancelled():
            storing.exception()  # its sender may have gone away: then no answer needs it

    async def _stored(self, bus: Bus, job: SpansJob) -> TakenSpans:
        """What was taken of a request, once the stream has it. Raises as `take` does."""
        recorded = await self._recorded(job)
        if recorded is None or recorded.spans is None:
            raise HttpError(413, "the request cannot be read in time: send smaller batches", code="body_too_large")
        taken = recorded.spans
        if taken.unreadable is not None:
            raise BadRequest(taken.unreadable, code="invalid_otlp")
        await self._store(bus, taken)
        for reason, number in taken.refused.items():
            log.info("spans refused", reason=reason, number=number)
        metrics.SPANS.labels("taken").inc(taken.taken)
        metrics.SPANS.labels("refused").inc(sum(taken.refused.values()))
        return taken

    def _job(self, signal: str, content_type: str, request: Request, largest: int) -> SpansJob:
        caller, known = request.caller, {self.other_role, *self.roles.values()}
        return SpansJob(
            signal=signal,
            content_type=content_type,
            body=request.body,
            received_at=self.now(),
            host=request.header(b"host") or "",
            roles=dict(self.roles),
            other_role=self.other_role,
            reported=_allowed(caller, KeyScope.INFER, known),
            rated=_allowed(caller, KeyScope.FEEDBACK, known),
            largest=largest,
            key_id=caller.key_id,
            user_key=self.user_key,
            prices=self.prices.by_model(),
        )

    async def _recorded(self, job: SpansJob) -> Recorded | None:
        """What a recorder makes of it; None when it gave up. Raises `HttpError` (503) when there is no room for it."""
        done: asyncio.Future[Recorded | None] = asyncio.get_running_loop().create_future()

        def finish(recorded: Recorded | None) -> None:
            if not done.done():  # the sender went away
                done.set_result(recorded)

        try:
            self.recorder.record_spans(job, finish)
        except Unavailable as error:
            raise _try_again(str(error)) from error
        return await done

    async def _store(self, bus: Bus, taken: TakenSpans) -> None:
        """Raises `HttpError` (503) unless the stream has all of it, without what is about who has opted out."""
        kept, dropped = list[Record](), set[tuple[str, str]]()
        for record, (role, refs) in zip(taken.records, taken.whose, strict=True):
            if self.unrecorded.known.covers(role, refs):
                dropped |= {(role, ref) for kind, ref in refs if kind == TRAJECTORY}
            else:
                kept.append(record)
        for role, run in sorted(dropped):  # the other spans of its trace may name no one
            if not self.unrecorded.known.covers(role, [(TRAJECTORY, run)]):
                self.unrecorded.send(TRAJECTORY, run, role, erases=False)
        results = await asyncio.gather(*map(bus.publish_record, kept), return_exceptions=True)
        for result in results:
            if isinstance(result, Unavailable):
                raise _try_again(str(result))
            if result is not None:
                raise result


def content_type_of(header: str) -> str:
    """The content type of a request, one of OTLP's. Raises `HttpError` (415)."""
    kind = header.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise HttpError(415, f"send {PROTOBUF} or {JSON}", code="unsupported_media_type")
    return kind


def answer(signal: str, content_type: str, taken: TakenSpans) -> Response:
    """200, with what was not taken as `partial_success`, and a warning about calls without content."""
    number, words = sum(taken.refused.values()), words_of(taken.refused, taken.silent)
    member = "rejectedSpans" if signal == TRACES else "rejectedLogRecords"
    if content_type == JSON:
        partial = {**({member: str(number)} if number else {}), "errorMessage": words}
        return Response(200, msgspec.json.encode({"partialSuccess": partial} if words else {}))
    made: ExportTraceServiceResponse | ExportLogsServiceResponse
    if signal == TRACES:
        made = ExportTraceServiceResponse()
        made.partial_success.rejected_spans = number
    else:
        made = ExportLogsServiceResponse()
        made.partial_success.rejected_log_records = number
    made.partial_success.error_message = words
    body = made.SerializeToString() if words else b""
    return Response(200, body, [(b"content-type", PROTOBUF.encode())])


def status_body(status: int, message: str, content_type: str) -> bytes:
    """The body of an error as OTLP has it: a `google.rpc.Status` with code and message."""
    code = _CODES.get(status, _INTERNAL)
    if content_type != PROTOBUF:
        return msgspec.json.encode({"code": code, "message": message})
    text = message.encode()
    length, size = bytearray(), len(text)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((8, code, 18)) + bytes((*length, size)) + text


def _try_again(reason: str) -> HttpError:
    return HttpError(503, f"not stored: {reason}", code="unavailable", retry_after_s=RETRY_S)


def _allowed(caller: Caller, scope: KeyScope, roles: Iterable[str]) -> list[str]:
    return [role for role in sorted(roles) if caller.allows(scope, role)]
