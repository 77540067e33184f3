"""The way to an engine: each call goes to one of its replicas, and to another where that one fails before it answers.

Before it answers means before the first event of a stream that holds any of the answer, and before a whole answer is
there: until then the agent has got nothing, and to generate once more does no harm. Another replica gets the call
where the first one

    has no connection, or breaks it off          however it failed, it did not answer
    answers 408, 429, 502, 503 or 504            is busy, or does not work
    refuses key or policy (401, 403, 404, 424)   has other settings than the others, or every one of them refuses it
    streams an error, or ends, before that       vLLM whose core is dead
    answers what is none of its API              a proxy's page, a redirect, no choices
    answers nothing, its health neither          its open calls go elsewhere after `FAILED_CHECKS`

and never where it answers 400 or 500, which may be the call's own fault and would follow it, nor where the call's time
is up. Each replica gets the call at most once, and besides those without a connection and those that refuse it at most
`SENDS` of them: a call that makes them die stops there.

A refusal is quick, and would draw all calls to a replica that has nothing to do. It counts as a failure once another
replica has answered the same call: what every one of them refuses is the fault of none.

Here alone the outcome of a call is learnt: a whole answer has been read before it counts as one, and the reader of a
stream tells what became of it (`EventReply.over`). A stream that its agent leaves says nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import structlog

from ratchet.core.service.asgi import Headers
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.streams import data_of, error_status
from ratchet.gateway import metrics
from ratchet.gateway.domain.replicas import Circuit, Health, Replica, ReplicaSet
from ratchet.gateway.engines.base import (
    BUSY,
    INVALID,
    WRONG_KEY,
    EngineFailed,
    EventReply,
    Events,
    Reply,
    Transport,
    chunk_in,
    envelope_of,
    policy_refused,
)

log = structlog.get_logger()

SENDS = 2
"""Replicas that get one call, besides those without a connection and those that refuse it."""
ELSEWHERE = BUSY | {502, 503, 504}
"""Answers after which another replica may do better, besides refusals."""
COMMENTS = 16
"""Comments, and events that only say who speaks, after which a stream counts as begun."""
CHECK_EVERY_S = 0.25


class ReplicaTransport(Transport, Protocol):
    """The way to one replica."""

    async def check_health(self) -> Health:
        """Whether it works, by its own word."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    send: Callable[[Transport], Awaitable[Reply | EventReply]]
    near: str
    """Its trajectory."""
    dialect: ApiDialect | None
    """What its answer must be; None for one of another kind, which shows no more than that the replica lives."""


class Replicas:
    """Sends calls to one engine."""

    def __init__(
        self,
        engine: str,
        transports: Mapping[str, ReplicaTransport],
        answer_s: float,
        *,
        called: str = "the engine",
        now_s: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`engine`: its name in metrics; `called`: its name in errors; `transports`: by the name of the replica.

        `answer_s`: longest wait for an answer, of all replicas together that are asked for it.
        """
        self._engine = engine
        self._called = called
        self._transports = transports
        self._answer_s = answer_s
        self._set = ReplicaSet(transports, now_s, draw)
        self._waiting: defaultdict[Replica, set[asyncio.Timeout]] = defaultdict(set)
        """The limits of the calls that a replica has not begun to answer."""
        self._checks: dict[Replica, asyncio.Task[None]] = {}
        """Health checks under way."""
        for replica in self._set.all:
            metrics.OUTSTANDING.labels(engine, replica.name).set_function(partial(getattr, replica, "outstanding"))
            metrics.AWAY.labels(engine, replica.name).set_function(lambda replica=replica: float(replica.is_away))

    @property
    def away(self) -> Sequence[str]:
        """The replicas that do not answer."""
        return [replica.name for replica in self._set.all if replica.is_away]

    def __len__(self) -> int:
        return len(self._set.all)

    async def post(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply:
        """The whole answer, whatever its status; `near`: the trajectory of the call, `dialect`: that of its answer.

        Raises `EngineFailed`.
        """
        reply = await self._asked(_Call(lambda transport: transport.post(path, body, headers), near, dialect))
        assert isinstance(reply, Reply)  # noqa: S101 - `post` gives no stream
        return reply

    async def stream(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply | EventReply:
        """The stream that has begun to answer, or the whole answer of an engine that does not stream.

        Raises as `post` does.
        """
        return await self._asked(_Call(lambda transport: transport.stream(path, body, headers), near, dialect))

    async def check_health(self) -> None:
        """Check the replicas that are away, and those that have answered nothing for long."""
        await self._check_all(self._set.due())

    async def close(self) -> None:
        """End the health checks; the transports close with what made them."""
        for check in list(self._checks.values()):
            check.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)

    async def _asked(self, call: _Call) -> Reply | EventReply:
        """What the first replica answers that can; else what the last one has answered, or raises."""
        now = asyncio.get_running_loop().time
        deadline_s = now() + self._answer_s
        tried, sent = list[Replica](), 0
        refusals = dict[Replica, Reply]()
        last: Reply | EngineFailed | None = None
        while sent < SENDS and (replica := await self._next(call.near, tried)) is not None and now() < deadline_s:
            limit = asyncio.timeout(None)
            if tried:
                metrics.series(metrics.REPEATED, self._engine).inc()
                limit = asyncio.timeout_at(deadline_s)
            tried.append(replica)
            try:
                reply = await self._send(replica, call, limit)
            except EngineFailed as failure:
                if not (failure.unreachable or failure.broken_off or failure.code == INVALID):
                    raise
                if last is None or not failure.unreachable:
                    last = failure
                sent += not failure.unreachable
                continue
            if isinstance(reply, Reply) and _refuses(reply):
                last = refusals[replica] = reply
                continue
            if isinstance(reply, EventReply) or reply.status not in ELSEWHERE:
                self._refused(refusals, reply)
                return reply
            last, sent = reply, sent + 1
        if isinstance(last, Reply):
            return last
        if last is not None and (len(self) == 1 or not last.unreachable):
            raise last
        which = "it does not answer" if len(self) == 1 else f"none of its {len(self)} replicas answers"
        message = f"{self._called} is not reachable: {which}; try again later"
        raise EngineFailed(502, message, code="engine_unavailable", unreachable=True)

    async def _next(self, near: str, tried: Collection[Replica]) -> Replica | None:
        """The next replica for a call. Where all that are left are away, their health is checked first."""
        replica = self._set.choose(near, tried)
        if replica is None and (others := self._set.may_check(tried)):
            await self._check_all(others)
            replica = self._set.choose(near, tried)
        return replica

    async def _send(self, replica: Replica, call: _Call, limit: asyncio.Timeout) -> Reply | EventReply:
        """What one replica answers, and what that says of it.

        `limit`: when the call ends whatever happens; a replica that goes away moves it. The first replica's is the
        limit of its own transport.
        """
        waiting = self._waiting[replica]
        self._set.begin(replica)
        under_way = False
        try:
            async with limit:
                waiting.add(limit)
                try:
                    reply = await call.send(self._transports[replica.name])
                    if isinstance(reply, EventReply):
                        begun = await _begun(reply, call.dialect)
                        if not isinstance(begun, Reply):
                            under_way = True
                            return self._streaming(replica, call, begun, reply)
                        reply = begun
                    if call.dialect is not None and reply.status == 200:
                        envelope = envelope_of(self._engine, call.dialect, reply.raw)
                        reply = msgspec.structs.replace(reply, envelope=envelope)
                finally:
                    waiting.discard(limit)
        except TimeoutError as error:
            raise self._too_slow(replica) from error
        except EngineFailed as failure:
            failure.replica = replica.name
            self._failed(replica, failure.code, lost=failure.unreachable)
            raise
        finally:
            if not under_way:
                self._set.end(replica)
                self._set.avoid(replica, call.near)  # until it has answered
        self._learn(replica, reply, call)
        return reply

    def _streaming(self, replica: Replica, call: _Call, begun: list[bytes], reply: EventReply) -> EventReply:
        self._set.began(replica)
        events = _Stream(begun, reply.events, partial(self._set.end, replica), partial(self._over, replica, call.near))
        return EventReply(events, reply.headers, replica.name, events.over)

    def _learn(self, replica: Replica, reply: Reply, call: _Call) -> None:
        if reply.status >= 500:
            self._failed(replica, f"answered {reply.status}")
        elif _refuses(reply):
            self._set.refused(replica)
        elif call.dialect is None:
            self._set.began(replica)
        else:
            self._set.answered(replica, call.near)
        if reply.status in ELSEWHERE and (wait_s := _retry_after_s(reply.headers)) is not None:
            self._set.cool_down(replica, wait_s)

    def _refused(self, refusals: Mapping[Replica, Reply], reply: Reply | EventReply) -> None:
        """A call has its last reply: where that is an answer, the replicas that refused it have failed."""
        if isinstance(reply, EventReply) or reply.status < 500:
            for replica, refusal in refusals.items():
                self._failed(replica, f"answered {refusal.status}, unlike another replica")

    def _failed(self, replica: Replica, reason: str | None, *, lost: bool = False) -> None:
        metrics.series(metrics.REPLICA_FAILURES, self._engine, replica.name).inc()
        was = replica.circuit
        if lost:
            self._set.lost(replica)
        else:
            self._set.failed(replica)
        if replica.circuit is Circuit.OPEN and was is not Circuit.OPEN:
            log.warning("a replica gets no more calls", engine=self._engine, replica=replica.name, reason=reason)

    def _over(self, replica: Replica, near: str, failure: EngineFailed | None) -> None:
        if failure is None:
            self._set.answered(replica, near)
            return
        failure.replica = replica.name
        self._failed(replica, failure.code)
        self._set.avoid(replica, near)

    def _too_slow(self, replica: Replica) -> EngineFailed:
        """The replica counts as away, or the time of a call to several is up, of which it may have had little."""
        if replica.circuit is Circuit.OPEN:
            message = f"{self._called} stopped answering; try again later"
            failure = EngineFailed(502, message, code="engine_unavailable", broken_off=True)
        else:
            message = f"{self._called} took too long: no answer within {self._answer_s:g} s; ask for fewer tokens"
            failure = EngineFailed(504, message, code="engine_timeout")
        failure.replica = replica.name
        return failure

    async def _check_all(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            if replica not in self._checks:
                self._checks[replica] = asyncio.create_task(self._check(replica))
        await asyncio.gather(
            *(asyncio.shield(self._checks[replica]) for replica in replicas if replica in self._checks)
        )

    async def _check(self, replica: Replica) -> None:
        try:
            health, was = await self._transports[replica.name].check_health(), replica.circuit
            self._set.health_checked(replica, health)
        finally:
            del self._checks[replica]
        if replica.circuit is was:
            return
        log.warning(
            "a replica's circuit has changed",
            engine=self._engine,
            replica=replica.name,
            circuit=replica.circuit,
            health=health,
        )
        if replica.circuit is Circuit.OPEN and health is Health.SILENT:
            now = asyncio.get_running_loop().time()
            for limit in [limit for limit in self._waiting[replica] if not limit.expired()]:
                limit.reschedule(now)


@dataclass(slots=True)
class _Stream:
    """A stream of which some events have been read before, and whose end and outcome are reported once each."""

    read: list[bytes]
    unread: Events
    ended: Callable[[], None] | None
    """The replica does no more for it."""
    learn: Callable[[EngineFailed | None], None] | None
    """Takes whether that was an answer."""

    def __aiter__(self) -> AsyncIterator[list[bytes]]:
        return self

    async def __anext__(self) -> list[bytes]:
        if self.read:
            read, self.read = self.read, []
            return read
        try:
            return await self.unread.__anext__()
        except StopAsyncIteration:
            self._end()
            raise
        except EngineFailed as failure:
            self._end()
            self.over(failure)
            raise

    async def aclose(self) -> None:
        try:
            await self.unread.aclose()
        finally:
            self._end()

    def over(self, failure: EngineFailed | None) -> None:
        """See `EventReply`."""
        if self.learn is not None:
            learn, self.learn = self.learn, None
            learn(failure)

    def _end(self) -> None:
        if self.ended is not None:
            ended, self.ended = self.ended, None
            ended()


async def _begun(stream: EventReply, dialect: ApiDialect | None) -> list[bytes] | Reply:
    """The events up to and with the first one that holds any of the answer; after an error, the answer that it stands
    for.

    Raises `EngineFailed`. Then, and after an error, the stream is closed.
    """
    read = list[bytes]()
    try:
        async for some in stream.events:
            read += some
            for data in [data for data in map(data_of, some) if data is not None]:
                if (status := error_status(data)) is not None:
                    await stream.events.aclose()
                    return Reply(status, data, stream.headers, stream.replica)
                if dialect is None or (not dialect.ends(data) and chunk_in(dialect, data)[1]):
                    return read
            if len(read) > COMMENTS:
                return read
        message = "the engine ended its stream before it answered"
        raise EngineFailed(502, message, code="engine_unavailable", broken_off=True)
    except BaseException:  # whatever happens: the engine must not work on
        await stream.events.aclose()
        raise


def _refuses(reply: Reply) -> bool:
    """Whether the replica refuses what another one may serve: the gateway's key, or the policy."""
    return reply.status in WRONG_KEY or policy_refused(reply)


def _retry_after_s(headers: Headers) -> float | None:
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit():
            return float(value)
    return None
