"""Calls to one engine over HTTP: retries of refused connections, a failure for each cause, errors without our key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

from ratchet.core.errors import BadRequest
from ratchet.core.service.asgi import Headers
from ratchet.core.service.problems import HttpError
from ratchet.dialects.streams import EventSplitter, is_event
from ratchet.gateway.domain.replicas import Health
from ratchet.gateway.engines.base import EngineFailed, EventReply, Reply
from ratchet.gateway.engines.http_connection import ConnectFailed, ExchangeFailed, HttpReply, TooSlow
from ratchet.gateway.engines.http_pool import HttpPool

CONNECT_TRIES = 3
"""A refused connection was never a call, so the gateway tries again; it repeats nothing that may have arrived."""
HEALTH = "/health"
"""Where vLLM and engine_local tell whether they work; any answer below 500 is a sign of life."""
HEALTH_S = 2.0
"""Longest wait for it."""
CONNECT_PAUSE_S = 0.1
"""Before the second try; doubled before each later one."""
EVENTS = 1024
"""Most events of a stream that are read at once: between them the loop serves others."""
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, unpacked: a long one with the log-probabilities of every token has a few."""
MASK = b"***"
SHORTEST = 6
"""Bytes of a key. What is shorter is no secret but a word like `none`, or `x`, which errors are full of."""
_OF_KEYS = (b"authorization", b"x-api-key")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is, and how long it may take."""

    url: str
    """In front of every path."""
    headers: Mapping[str, str]
    connect_s: float
    answer_s: float
    """Longest wait for the begin of an answer, for all of it where it is no stream, and between two events of one that
    sends comments."""
    idle_s: float
    """Longest silence within a stream: without an event, and without a comment."""
    connect_tries: int = CONNECT_TRIES


class HttpTransport:
    """Sends calls to one engine. Raises `ConfigError` for an invalid address."""

    def __init__(self, name: str, address: Address, replica: str | None = None) -> None:
        """`name`: of the engine, in errors; `replica`: which one of the engine's this is."""
        self._name = name
        self._replica = replica
        self._address = address
        headers = {"content-type": "application/json", **address.headers}
        self._pool = HttpPool(address.url, headers, connect_s=address.connect_s)
        self._keys = KeyMask(self._pool.headers)

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> Reply:
        """The engine's reply, whatever its status.

        Raises `EngineFailed` 502, or 504 when the engine took too long, and `BadRequest` for a path or a header that
        HTTP cannot carry.
        """
        with self._causes():
            return await self._whole(await self._answered(path, body, headers))

    async def stream(self, path: str, body: bytes, headers: Headers = ()) -> Reply | EventReply:
        """The stream that the engine begins, or its whole answer. Raises as `post` does."""
        with self._causes():
            asked_s = asyncio.get_running_loop().time()
            answer = await self._answered(path, body, headers)
            if answer.status == 200 and answer.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                return EventReply(self._events(answer, asked_s), answer.raw_headers, self._replica)
            return await self._whole(answer)

    async def check_health(self) -> Health:
        """Whether the server works, by its own word."""
        try:
            answer = await self._pool.get(HEALTH, first_byte_s=HEALTH_S)
            async with aclosing(answer):
                await answer.read(LARGEST_ANSWER, HEALTH_S)
        except TooSlow:
            return Health.SILENT
        except ConnectFailed as error:
            return Health.UNKNOWN if error.own_limit else Health.GONE
        except ExchangeFailed:
            return Health.GONE
        return Health.WELL if answer.status < 500 else Health.GONE

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def _whole(self, answer: HttpReply) -> Reply:
        raw = answer.arrived(LARGEST_ANSWER)
        if raw is None:
            try:
                async with asyncio.timeout(self._address.answer_s):
                    raw = await answer.read(LARGEST_ANSWER, self._address.answer_s)
            except TimeoutError as error:
                raise TooSlow("body", self._address.answer_s) from error
        headers = answer.raw_headers
        if answer.status >= 400 or b'"error"' in raw:
            raw, headers = self._keys.masked(raw), self._keys.masked_headers(headers)
        return Reply(answer.status, raw, headers, self._replica)

    async def _events(self, answer: HttpReply, asked_s: float) -> AsyncGenerator[list[bytes], None]:
        splitter, now, answer_s = EventSplitter(), asyncio.get_running_loop().time, self._address.answer_s
        waits_s, silent_s = asked_s, 0.0  # since when it waits for the engine; how long it has in all, without an event
        with self._causes():
            async with aclosing(answer), aclosing(answer.chunks(self._address.idle_s)) as pieces:
                async for piece in pieces:
                    events, silent_s = splitter.feed(piece), silent_s + now() - waits_s
                    if any(map(is_event, events)):
                        silent_s = 0.0
                    elif silent_s > answer_s:
                        raise TooSlow("body", answer_s)
                    events = self._keys.masked_events(events)
                    for start in range(0, len(events), EVENTS):
                        yield events[start : start + EVENTS]
                        if start + EVENTS < len(events):
                            await asyncio.sleep(0)
                    waits_s = now()
            if rest := splitter.rest():
                yield self._keys.masked_events(rest)

    async def _answered(self, path: str, body: bytes, headers: Headers) -> HttpReply:
        """The head of the answer, after a few tries to connect."""
        tries = self._address.connect_tries
        for attempt in range(tries):
            try:
                answer = await self._pool.post(path, body, headers, first_byte_s=self._address.answer_s)
            except ConnectFailed as error:
                if error.own_limit:
                    message = f"the gateway has no connection to {self._name} left; try again in a moment"
                    raise HttpError(503, message, code="overloaded") from error
                if attempt + 1 == tries:
                    why = f"{tries} connections failed, the last with: {error}"
                    message = f"{self._name} is not reachable: {why}; see that it runs and that its URL is right"
                    raise EngineFailed(502, message, code="engine_unavailable", unreachable=True) from error
                await asyncio.sleep(CONNECT_PAUSE_S * 2**attempt)
            except ValueError as error:
                raise BadRequest(f"the engine cannot get this request: {error}") from error
            else:
                if 300 <= answer.status < 400:
                    await answer.aclose()
                    message = f"{self._name} answered with a redirect: correct its URL"
                    raise EngineFailed(502, message, code="engine_invalid")
                return answer
        raise AssertionError("unreachable: the last try returns or raises")

    @contextmanager
    def _causes(self) -> Generator[None, None, None]:
        """Raises `EngineFailed` in the place of the client's errors."""
        try:
            yield
        except TooSlow as error:
            message = f"{self._name} took too long: {error}; ask for fewer tokens"
            raise EngineFailed(504, message, code="engine_timeout") from error
        except ExchangeFailed as error:
            happened = f"{self._name} broke off before its answer was whole ({error})"
            message = f"{happened}: see that it runs and that its URL is right, then try again"
            raise EngineFailed(502, message, code="engine_unavailable", broken_off=True) from error
        except ValueError as error:
            raise EngineFailed(502, f"{self._name} sent {error}", code="engine_invalid") from error


class KeyMask:
    """Takes the gateway's own key, of the headers that go with every request, out of answers that repeat it."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """`headers`: by lower-case name."""
        keys = [headers[name].split()[-1] for name in _OF_KEYS if headers.get(name, b"").split()]
        self._spellings = [spelling for key in keys if len(key) >= SHORTEST for spelling in _spellings(key)]

    def masked(self, raw: bytes) -> bytes:
        """The bytes with `MASK` in the place of each key."""
        for spelling in self._spellings:
            raw = raw.replace(spelling, MASK)
        return raw

    def masked_headers(self, headers: Headers) -> Headers:
        """The headers with masked values."""
        return [(name, self.masked(value)) for name, value in headers]

    def masked_events(self, events: list[bytes]) -> list[bytes]:
        """The events of a stream, those that may be errors masked."""
        if not any(b"error" in event for event in events):
            return events
        return [self.masked(event) if b"error" in event else event for event in events]


def _spellings(key: bytes) -> Iterable[bytes]:
    """The key as it is, in JSON, in JSON as some libraries write it (`\\/`, `\\u003d`), and in a URL.

    The longest first: no spelling cuts another one up.
    """
    in_json = json.dumps(key.decode("latin-1"))[1:-1].encode()
    in_html = in_json
    for letter in b"<>&='":
        in_html = in_html.replace(bytes([letter]), b"\\u%04x" % letter)
    url = quote_from_bytes(key, safe="").encode()
    return sorted({key, in_json, in_json.replace(b"/", b"\\/"), in_html, url}, key=len, reverse=True)
