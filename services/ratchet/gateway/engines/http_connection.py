"""One HTTP/1.1 connection to a server: a request goes out, and its answer comes in piece by piece.

Errors say how far the exchange came:

    ExchangeFailed
    ├── ConnectFailed   no connection, so nothing was sent
    ├── BrokenOff       the connection ended before the answer did; the server may have acted
    ├── TooSlow         no head within its time, or a pause in the body that was too long
    └── BadAnswer       what came is no answer, or more than the caller takes

Every one of them has closed the connection, and so has a cancelled wait.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ratchet.core.errors import Unavailable
from ratchet.core.service.http_encoding import NotUnpacked, Unpacker

KEEP_ALIVE_S = 4.0
"""Longest life of an idle connection, below the five seconds of uvicorn and vLLM: the client must close it first."""
LARGE = 1024 * 1024
"""A larger body goes out in pieces, between which the loop serves others."""
PIECE = 256 * 1024
HELD = 256 * 1024
"""Bytes of an answer that wait for their reader; beyond them the connection is not read."""
OVERHEAD = 64 * 1024
"""Most bytes of an answer's head, and of what stands between two pieces of its body."""

_TIMEOUT = re.compile(rb"timeout\s*=\s*(\d{1,6})", re.IGNORECASE)
_WITHOUT_BODY = frozenset({204, 304})


class ExchangeFailed(Unavailable):
    """No whole answer came."""


class ConnectFailed(ExchangeFailed):
    """There is no connection, and so there was no call."""

    def __init__(
        self, message: str, *, os_error: OSError | None = None, timed_out: bool = False, own_limit: bool = False
    ) -> None:
        super().__init__(message)
        self.os_error = os_error
        """What the system said, if it said anything."""
        self.timed_out = timed_out
        self.own_limit = own_limit
        """This process or its machine has no room for a connection: the server is not to blame."""


class BrokenOff(ExchangeFailed):
    """The connection ended before the answer did. The server may have received the request, and acted."""


class TooSlow(ExchangeFailed):
    """The server took too long."""

    def __init__(self, waiting_for: Literal["head", "body"], limit_s: float) -> None:
        what = "no answer" if waiting_for == "head" else "no more of the answer"
        super().__init__(f"{what} within {limit_s:g} s")
        self.waiting_for = waiting_for
        self.limit_s = limit_s


class BadAnswer(ExchangeFailed):
    """What came is no answer as HTTP defines it, is packed in an unknown way, or is larger than the caller takes."""


@dataclass(slots=True, eq=False)
class _Answer:
    status: int = 0
    """0 before the whole head is there."""
    raw_headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    pieces: deque[bytes] = field(default_factory=deque[bytes])
    """Of the body, not yet taken."""
    held: int = 0
    """Bytes of the pieces."""
    complete: bool = False
    error: ExchangeFailed | None = None


class HttpReply:
    """An answer whose head is there.

    Read the body by `chunks` or `read`, and call `aclose` in any case: it closes the connection unless the whole answer
    has arrived. A connection whose answer has arrived is free for the next request, read or not.
    """

    def __init__(self, connection: Connection, answer: _Answer) -> None:
        self._connection = connection
        self._answer = answer
        encoding = answer.headers.get(b"content-encoding")
        self._unpacker = Unpacker(encoding) if encoding is not None else None

    @property
    def status(self) -> int:
        """200 to 599: 1xx are passed over."""
        return self._answer.status

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By lower-case name; the last of a repeated one."""
        return self._answer.headers

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """All of them in their order, spelled as they came."""
        return self._answer.raw_headers

    async def chunks(self, idle_s: float) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, without HTTP's framing and unpacked; no chunk is empty.

        What arrived between two chunks comes as one chunk. Raises `BrokenOff`, `BadAnswer`, and `TooSlow` when no byte
        comes for so long.
        """
        unpacker = self._unpacker
        try:
            while piece := await self._connection.next_piece(self._answer, idle_s):
                if unpacker is None:
                    yield piece
                    continue
                for part in unpacker.feed(piece):
                    yield part
                    await asyncio.sleep(0)  # a few bytes may unpack to very many
            if unpacker is not None:
                unpacker.end()
        except NotUnpacked as error:
            await self.aclose()
            raise BadAnswer(str(error)) from error

    def arrived(self, limit: int) -> bytes | None:
        """The whole body where it is here already, as it came; None while more is awaited, and where it is packed.

        Raises `BadAnswer` for more than `limit` bytes.
        """
        if not self._answer.complete or self._unpacker is not None:
            return None
        body = b"".join(self._answer.pieces)
        self._answer.pieces.clear()
        if len(body) > limit:
            raise BadAnswer(f"an answer of more than {limit} bytes")
        return body

    async def read(self, limit: int, idle_s: float) -> bytes:
        """The whole body, unpacked. Raises as `chunks` does, and `BadAnswer` for more than `limit` bytes."""
        pieces, size = list[bytes](), 0
        async with aclosing(self.chunks(idle_s)) as chunks:
            async for piece in chunks:
                size += len(piece)
                if size > limit:
                    await self.aclose()
                    raise BadAnswer(f"an answer of more than {limit} bytes")
                pieces.append(piece)
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Close the connection unless the whole answer has arrived."""
        self._connection.give_up(self._answer)


class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time.

    `on_free` gets it back after an exchange that leaves it usable, with the seconds that it may be kept; `on_lost` once
    it is closed.
    """

    def __init__(self, on_free: Callable[[Connection, float], None], on_lost: Callable[[Connection], None]) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        self._readable = select.poll()
        self._answer: _Answer | None = None
        self._sending = False
        """A part of a large request is not yet written."""
        self._may_write = True
        self._reads = True
        self._interim = False
        """The message that is being parsed is a 1xx."""
        self._until_eof = False
        """The answer has no length: the end of the connection is its end."""
        self._keep = False
        self._overhead = 0
        """Bytes since the request, or since the last piece of the answer's body."""
        self._bad: str | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self.idle_until = 0.0
        """Of the loop's clock. For the owner of idle connections."""

    # What its owner does

    @property
    def closing(self) -> bool:
        """It takes no more requests."""
        return self._transport.is_closing()

    def usable(self) -> bool:
        """Whether an idle connection can take a request: neither its end nor a stray byte is there, read or unread."""
        return not self._transport.is_closing() and not self._readable.poll(0)

    async def exchange(self, head: bytes, body: Sequence[bytes], first_byte_s: float) -> HttpReply:
        """Send a request and wait for the head of its answer, for `first_byte_s` in all. Raises `ExchangeFailed`."""
        answer = self._answer = _Answer()
        self._overhead = 0
        deadline = self._loop.time() + first_byte_s
        try:
            if sum(map(len, body)) <= LARGE:
                self._transport.write(b"".join((head, *body)))
            else:
                await self._send_large(answer, head, body, deadline)
            while not answer.status:
                if answer.error is not None:
                    raise answer.error
                if not await self._wait(answer, deadline):
                    raise TooSlow("head", first_byte_s)
            return HttpReply(self, answer)
        except NotUnpacked as error:
            self.give_up(answer)
            raise BadAnswer(str(error)) from error
        except BaseException:
            self.give_up(answer)
            raise

    async def next_piece(self, answer: _Answer, idle_s: float) -> bytes:
        """What has arrived of the body since the last call, waiting for it if need be; nothing at its end."""
        while not answer.pieces:
            if answer.error is not None:
                raise answer.error
            if answer.complete:
                return b""
            if not await self._wait(answer, self._loop.time() + idle_s):
                answer.error = TooSlow("body", idle_s)
                self.give_up(answer)
        piece = answer.pieces.popleft() if len(answer.pieces) == 1 else b"".join(answer.pieces)
        answer.pieces.clear()
        answer.held = 0
        if self._answer is answer:
            self._read(on=True)
        return piece

    def give_up(self, answer: _Answer) -> None:
        """Close the connection if it is still busy with this answer."""
        if self._answer is answer:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.set_write_buffer_limits(high=PIECE)
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # bytes that no request asked for
            self.abort()
            return
        surplus = False
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            surplus = answer.complete
            self._bad = self._bad or f"no answer of HTTP/1.1: {error}"
        if answer.complete:
            self._finish(answer, keep=self._keep and not surplus)
        elif self._overhead > OVERHEAD:
            self._fail(answer, BadAnswer(f"more than {OVERHEAD} bytes of an answer that are no body"))
        elif self._bad is not None:
            self._fail(answer, BadAnswer(self._bad))
        elif answer.held > HELD:
            self._read(on=False)
        self._wake()

    def eof_received(self) -> None:
        answer = self._answer
        if answer is not None and answer.status and self._until_eof:
            answer.complete = True
            self._finish(answer, keep=False)
            self._wake()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        del self._parser  # it holds this connection
        answer, self._answer = self._answer, None
        if answer is not None and answer.error is None:
            answer.error = BrokenOff(f"the connection ended before the answer did{f': {exc}' if exc else ''}")
        self._wake()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake()

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._answer is not None and self._answer.complete:
            raise ValueError("bytes after the end of the answer")  # ends the parsing

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and not self._answer.status:  # later ones are trailers
            self._answer.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None:
            return
        self._interim = 100 <= status < 200
        if self._interim:
            answer.raw_headers.clear()
            return
        answer.headers = {name.lower(): value for name, value in answer.raw_headers}
        self._bad = _flaw(status, answer)
        self._until_eof = (
            b"content-length" not in answer.headers
            and b"transfer-encoding" not in answer.headers
            and status not in _WITHOUT_BODY
        )
        if self._bad is None:
            answer.status = status

    def on_body(self, body: bytes) -> None:
        if self._answer is not None and self._bad is None:
            self._overhead = 0
            self._answer.pieces.append(body)
            self._answer.held += len(body)

    def on_message_complete(self) -> None:
        if self._interim or self._answer is None or self._bad is not None:
            return
        self._answer.complete = True
        self._keep = self._parser.should_keep_alive()

    # Its own

    async def _send_large(self, answer: _Answer, head: bytes, body: Sequence[bytes], deadline: float) -> None:
        """Send in pieces, until an answer comes: it may be a refusal of the rest."""
        self._sending = True
        self._transport.write(head)
        for part in body:
            view = memoryview(part)
            for start in range(0, len(view), PIECE):
                if answer.status or answer.error is not None:
                    return
                self._transport.write(view[start : start + PIECE])
                await asyncio.sleep(0)
                while not self._may_write and not answer.status and answer.error is None:
                    if not await self._wait(answer, deadline):
                        return
        self._sending = False

    async def _wait(self, answer: _Answer, deadline: float) -> bool:
        """Until something happens; False when nothing did before the deadline.

        A timer that stands before the deadline stays: when it fires, it sets itself anew. So most waits set none.
        """
        if self._waiter is not None:
            raise RuntimeError("two readers of one answer")
        waiter = self._waiter = self._loop.create_future()
        self._deadline = deadline
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer()
        try:
            return await waiter
        except asyncio.CancelledError:
            self.give_up(answer)
            raise
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def _wake(self, *, something: bool = True) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(something)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            self._wake(something=False)

    def _read(self, *, on: bool) -> None:
        if self._reads != on and not self._transport.is_closing():
            self._reads = on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _fail(self, answer: _Answer, error: ExchangeFailed) -> None:
        answer.error = error
        self.abort()

    def _finish(self, answer: _Answer, *, keep: bool) -> None:
        """The answer is whole: the connection is free, or closed."""
        self._answer = None
        # How long the connection may be kept: a second less than the server says, and never longer than our limit.
        timeout = _TIMEOUT.search(answer.headers.get(b"keep-alive", b""))
        life_s = min(KEEP_ALIVE_S, int(timeout[1]) - 1.0) if timeout else KEEP_ALIVE_S
        unsent = self._sending or self._transport.get_write_buffer_size()
        if keep and life_s > 0 and not unsent and not self._transport.is_closing():
            self._read(on=True)
            self._on_free(self, life_s)
        else:
            self.abort()


def _flaw(status: int, answer: _Answer) -> str | None:
    """What is wrong with a head that the parser took, if anything."""
    if not 200 <= status <= 599:
        return f"an answer of status {status}"
    if sum(len(name) + len(value) + 4 for name, value in answer.raw_headers) > OVERHEAD:
        return f"more than {OVERHEAD} bytes of an answer that are no body"
    if b"transfer-encoding" in answer.headers:
        codings = [value.strip().lower() for name, value in answer.raw_headers if name.lower() == b"transfer-encoding"]
        if codings != [b"chunked"]:
            return "a transfer encoding other than chunked"
    return None
