"""An engine's answer on its way to the agent: whole, or a stream that has begun.

A call that streams is a stream at the engine too, and one that does not is none: to ask every engine for a stream and
fold it would bound its silence as well, but the answer would not be the provider's own bytes, and cost a chunk for each
token. Until the first event that holds any of the answer nothing is sent but comments, so that another engine may take
over; a chunk that only names the role is held back, for it is worth nothing to the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.service.asgi import Headers
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.requests import MAX_CHOICES, Body, CallRequest
from ratchet.dialects.streams import (
    BETWEEN,
    LAST_EVENTS,
    UNREADABLE,
    chunk_of,
    data_of,
    datas,
    error_status,
    events_of,
)
from ratchet.gateway.engines.base import INVALID, EngineAnswer, EngineFailed, EventReply, Reply, chunk_in, envelope_of
from ratchet.gateway.recorder import StreamMemory

END_S = 1.0
"""How long the gateway waits for the end of a connection whose stream has said that nothing follows."""
EVENT_BYTES = 64
"""What an event takes up beside its bytes."""
_FAILED = (b"event: error", b"event:error")
"""How the event of an error may begin, whatever its data is."""
LARGEST_STREAM = 64 * 1024 * 1024
"""Bytes of a stream that the gateway keeps for its turn."""
UNANSWERED = 1024 * 1024
"""Bytes of a stream before its first content that the gateway holds where it has no room to keep the stream."""
COMMENTS = 16
"""Most comments of an engine before its first content that the agent gets: from then on it gets the gateway's own."""
LAST_BYTES = 64 * 1024
"""Of a stream that is not kept, the last events still tell its usage, unless one is larger."""


@dataclass(slots=True)
class Answered:
    """A whole answer of an engine, or of the cache in its place."""

    dialect: ApiDialect
    """In which the engine answered: the agent's own, or that of its translation."""
    request: CallRequest
    """The call in this dialect."""
    raw: bytes
    """The body as it came."""
    of_policy: bool
    """It holds log-probabilities and token ids for which only the gateway had asked."""
    headers: Headers = ()
    choices: int = 1
    ended: bool = True
    error: str | None = None
    begun_s: float | None = None
    streamed: bool = False
    kept: bool = True
    """It is there to be recorded, all of it."""
    messages: Sequence[JsonObject] | None = None
    """What the answers say, where that was read without reading all of them."""

    def message(self, number: int) -> JsonObject:
        """What one of the answers says, as an assistant message; empty where it says nothing. Raises what `UNREADABLE`
        names."""
        if self.messages is not None:
            return self.messages[number]
        return self.dialect.answer(self.whole(), number).message or {}

    def whole(self) -> Body:
        """The answer, decoded."""
        return msgspec.json.decode(self.raw)

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """The answer as the events of a stream, for an agent that asked for one."""
        yield events_of(self.dialect.replay(self.whole()))

    def over(self, failure: EngineFailed | None = None) -> None:
        """Nothing: the way to the engine has read the answer."""

    async def close(self) -> None:
        """Nothing: the answer is whole."""


@dataclass(slots=True)
class LiveAnswer:
    """A stream that has begun to answer: no other engine can take over."""

    dialect: ApiDialect
    request: CallRequest
    reply: EventReply
    of_policy: bool
    memory: StreamMemory
    begun_s: float | None = None
    """When its first content came (`time.perf_counter`)."""
    ended: bool = False
    """The engine has said that nothing follows."""
    error: str | None = None
    """What the engine reported within its stream."""
    _failure: EngineFailed | None = None
    """The same, unless the call itself is to blame."""
    events: list[bytes] = field(default_factory=list[bytes])
    """The events with data so far, for the turn; where they are too large for it, the first and the last ones."""
    kept: bool = True
    """The events are there to be recorded, all of them."""
    size: int = 0
    """Bytes that came, but for comments after the first content."""
    _held: int = 0
    """Bytes of the memory that the events take up."""
    _comments: int = 0
    _unread: list[bytes] = field(default_factory=list[bytes])
    """Events that came before the stream began, which the agent has not got yet."""
    _whole: Body | None = None
    _written: bytes = b""

    @property
    def headers(self) -> Headers:
        """Headers of the engine's answer."""
        return self.reply.headers

    @property
    def choices(self) -> int:
        """How many answers the agent asked for."""
        return self.request.choices

    @property
    def streamed(self) -> bool:
        """Whether `raw` holds events."""
        return self._whole is None

    @property
    def raw(self) -> bytes:
        """The answer for its turn: the stream so far as it came, or the answer that `whole` has made of it. Where it is
        not kept, the events that tell its usage."""
        if self._whole is not None:
            self._written = self._written or msgspec.json.encode(self._whole)
            return self._written
        return BETWEEN.join(self.events)

    def whole(self) -> Body:
        """The answer that the stream is, once it is over. Raises what `UNREADABLE` names."""
        if not self.kept:
            raise ValueError("the stream is too large to be kept")
        if self._whole is None:
            self._whole = self._folded()
        return self._whole

    def message(self, number: int) -> JsonObject:
        """See `Answered`; once the stream is over."""
        return self.dialect.answer(self.whole(), number).message or {}

    async def begin(self) -> None:
        """Wait for the first event that holds any of the answer. Raises `EngineFailed`: another engine may answer."""
        async for events in self.reply.events:
            self._unread += self._taken(events)
            if self.begun_s is not None:
                return
            if self.error is not None:
                raise EngineFailed(502, self.error, code="engine_failed")
            if self.size > (LARGEST_STREAM if self.kept else UNANSWERED):
                raise EngineFailed(502, "the engine streams without an answer", code=INVALID)
        raise EngineFailed(502, "the engine ended its stream before it answered", code="engine_unavailable")

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """The events, those that came together at a time. Raises `EngineFailed` where the stream breaks off."""
        unread, self._unread = self._unread, []
        yield unread
        while not self.ended:
            events = await anext(self.reply.events, None)
            if events is None:
                if self.error is None and not self.is_whole():
                    message = "the engine ended its stream before its answer was whole"
                    raise EngineFailed(502, message, code="engine_unavailable")
                return
            yield self._taken(events)
        with suppress(TimeoutError, EngineFailed):  # the answer is there; to read its end keeps the connection
            async with asyncio.timeout(END_S):
                await anext(self.reply.events, None)

    def over(self, failure: EngineFailed | None = None) -> None:
        """Tell the way to the engine what became of the stream, as the gateway sees it."""
        self.reply.over(failure or self._failure)

    async def close(self) -> None:
        """End the engine's work, unless it is done."""
        self.forget()
        await self.reply.events.aclose()

    def forget(self) -> None:
        """Free the memory: the stream is recorded, or never will be."""
        self.memory.give_back(self._held)
        self._held = 0

    def is_whole(self) -> bool:
        """Whether every answer has its end. Of a stream that is not kept, its last events must say so."""
        try:
            whole = self.whole() if self.kept else self._folded()
            return all(self.dialect.answer(whole, number).finish_reason for number in range(self.choices))
        except UNREADABLE:
            return False

    def _folded(self) -> Body:
        return self.dialect.fold(map(chunk_of, datas(self.events)))

    def _taken(self, events: list[bytes]) -> list[bytes]:
        """The events that the agent gets: none that follow the last one, and no crowd of comments before the first."""
        shown = list[bytes]()
        for event in events:
            data = data_of(event)
            if data is not None or self.begun_s is None:
                self.size += len(event) + EVENT_BYTES
            if data is None:
                self._comments += self.begun_s is None
                if self.begun_s is not None or self._comments <= COMMENTS:
                    shown.append(event)
                continue
            self._keep(event)
            shown.append(event)
            if self.dialect.ends(data):
                self.ended = True
                break
            failed = event.startswith(_FAILED)
            if failed or self.begun_s is None or b'"error"' in data:
                chunk, begins = chunk_in(self.dialect, data)
                if failed or chunk.get("error"):
                    self.error = Reply(200, data).reason
                    if (error_status(data) or 502) >= 500:
                        self._failure = EngineFailed(502, self.error, code="engine_failed")
                elif begins and self.begun_s is None:
                    self.begun_s = time.perf_counter()
        return shown

    def _keep(self, event: bytes) -> None:
        """Keep an event for the turn, while there is room for all of them."""
        size = len(event) + EVENT_BYTES
        if self.kept and self._held + size <= LARGEST_STREAM and self.memory.take(size):
            self._held += size
            self.events.append(event)
            return
        self.kept = False
        self.forget()
        self.events = [kept for kept in (*self.events, event) if len(kept) <= LAST_BYTES]
        del self.events[1:-LAST_EVENTS]


Answer = Answered | LiveAnswer


def checked(name: str, answer: EngineAnswer, reply: Reply) -> Answered:
    """The whole answer. Raises `EngineFailed` for one that an SDK could not read, or of more choices than any call
    asks for."""
    envelope = reply.envelope or envelope_of(name, answer.dialect, reply.raw)
    if len(envelope.choices) > MAX_CHOICES:
        message = f"{name} gave {len(envelope.choices)} choices, where a call asks for {MAX_CHOICES} at most"
        raise EngineFailed(502, message, code=INVALID)
    return Answered(
        answer.dialect,
        answer.request,
        reply.raw,
        answer.of_policy,
        headers=reply.headers,
        choices=min(len(envelope.choices), answer.request.choices),
        messages=envelope.messages(),
    )
