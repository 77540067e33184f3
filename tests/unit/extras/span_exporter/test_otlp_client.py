"""Receivers of spans that are slow, wrong or hostile: what was taken is not sent again, and nothing else is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.asgi import Request, Response
from ratchet.dialects.telemetry.otlp import PROTOBUF
from ratchet.extras.span_exporter.domain import call_span
from ratchet.extras.span_exporter.otlp_client import ANSWER_BYTES, TIMEOUT_S, OtlpClient
from tests.support.messages import turn
from tests.support.running import listening
from tests.support.span_exports import delivered

SPANS = [span for index in range(3) if (span := call_span(delivered(turn(index=index)), content=False)) is not None]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"
LARGE = b"%x\r\n%s\r\n" % (ANSWER_BYTES, b"x" * ANSWER_BYTES)


class Receiver:
    """Answers every request alike."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def post(self, request: Request) -> Response:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]

    @asynccontextmanager
    async def client(self, now: Sequence[float] = (0.0,)) -> AsyncIterator[OtlpClient]:
        async with listening(lambda _method, _path: self.post) as url:
            client = OtlpClient(url, {"authorization": "Bearer secret"}, monotonic=lambda: now[-1])
            yield client
            await client.close()


def counted() -> tuple[float, float]:
    """Spans that were sent, and that were refused."""
    name = "ratchet_exported_spans_total"
    sent, refused = (REGISTRY.get_sample_value(name, {"outcome": outcome}) for outcome in ("sent", "refused"))
    return sent or 0.0, refused or 0.0


@pytest.mark.parametrize(
    ("answer", "timeout_s"),
    [
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + LARGE + LARGE, TIMEOUT_S),
        (HEAD + b"content-length: 9\r\n\r\nx", 2.0),
        (HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nzzzz", TIMEOUT_S),
        (HEAD + b"content-length: 4\r\n\r\n\xff\xff\xff\xff", TIMEOUT_S),
    ],
    ids=["floods", "hangs", "packs", "is garbage"],
)
async def test_spans_are_taken_whatever_follows_the_status(answer: bytes, timeout_s: float) -> None:
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = OtlpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, timeout_s)
    sent, _ = counted()
    await client.send(SPANS)
    assert (counted()[0], await client.check()) == (sent + 3, None)
    done.set()
    await client.close()
    server.close()


async def test_receiver_that_asks_for_patience_is_asked_no_sooner() -> None:
    receiver, now = Receiver(Response(429, b"", [(b"retry-after", b"60")]), Response(200, b"")), [0.0]
    async with receiver.client(now) as client:
        for at_s in (0.0, 1.0, 59.0):
            now.append(at_s)
            with pytest.raises(Unavailable, match="answered 429"):
                await client.send(SPANS)
        assert receiver.asked == 1
        now.append(60.0)
        await client.send(SPANS)
        assert await client.check() is None


@pytest.mark.parametrize(("rejected", "refused"), [(2, 2), (-5, 0), (10**12, 3)])
async def test_refused_spans_are_counted_however_a_receiver_counts(rejected: int, refused: int) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message="no")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    before = counted()
    async with Receiver(Response(200, answer, [(b"content-type", PROTOBUF.encode())])).client() as client:
        await client.send(SPANS)
    assert counted() == (before[0] + 3 - refused, before[1] + refused)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_several_spans_that_are_refused_may_be_sent_apart(status: int) -> None:
    before = counted()
    async with Receiver(Response(status, b"")).client() as client:
        with pytest.raises(Rejected):
            await client.send(SPANS)
        assert counted() == before
        await client.send(SPANS[:1])
    assert counted() == (before[0], before[1] + 1)


async def test_redirect_is_not_followed_and_named() -> None:
    async with Receiver(Response(307, b"", [(b"location", b"http://127.0.0.1:1/")])).client() as client:
        with pytest.raises(Unavailable, match="answered 307: redirects are not followed"):
            await client.send(SPANS)


async def test_words_of_a_receiver_are_in_no_log() -> None:
    async with Receiver(Response(415, b"no such key: Bearer secret")).client() as client:
        with capture_logs() as logs:
            await client.send(SPANS)
    assert [(line["event"], line["refused"]) for line in logs] == [("spans refused", 3)]
    assert "secret" not in str(logs)
