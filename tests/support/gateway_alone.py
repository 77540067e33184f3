"""A gateway's routes without sockets: an upstream that answers when a test lets it, and a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Sealer
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import NoSpool
from ratchet.bus.testing import FakeBroker, connect, eventually
from ratchet.core.contract import Start
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.rules.access import ANYONE
from ratchet.core.service.asgi import Headers, Request
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.gateway.answering import Answering
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.calls import CallOpener, RequestReader, new_id
from ratchet.gateway.completions import Completions
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.domain.identity import Identity
from ratchet.gateway.domain.past_calls import AnswerCache
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.replicas import Health
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.engines.base import EngineFailed, EventReply, Reply
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.gateway.engines.replicas import Replicas
from ratchet.gateway.filtering import Filtering
from ratchet.gateway.handlers import Handlers
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_responses import Responses
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.models import Models
from ratchet.gateway.opt_outs import OptOutRoutes
from ratchet.gateway.peer_sync import Memory, PeerSync
from ratchet.gateway.recorder import Recorder, StreamMemory
from ratchet.gateway.recorder_pool import Finish
from ratchet.gateway.recorder_process import SOURCE, Job, RecordMaker
from ratchet.gateway.settings import FilterSettings
from ratchet.gateway.unrecorded import Unrecorded
from tests.support.fake_bus import fake_broker
from tests.support.messages import AT

CONTRACTS = load_contracts()
USER_KEY = "key of users"
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


@dataclass
class Server:
    """Gives every call the same answer, once it may."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    after_answer: Callable[[], object] | None = None
    """Called right after the answer is there, before the gateway can read it."""
    events: list[bytes] | None = None
    """The events of a stream; None: it answers streams whole."""
    breaks_off: bool = True
    """After its events, where none says that nothing follows."""
    refusal: Reply | None = None
    """In the place of every answer."""
    got: list[Any] = field(default_factory=list[Any])
    """The bodies that it was asked with."""

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> Reply:
        self.got.append(msgspec.json.decode(body))
        self.asked.set()
        await self.may_answer.wait()
        if self.after_answer is not None:
            asyncio.get_running_loop().call_soon(self.after_answer)
        return self.refusal or Reply(200, msgspec.json.encode(ANSWER))

    async def check_health(self) -> Health:
        return Health.WELL

    async def stream(self, path: str, body: bytes, headers: Headers = ()) -> Reply | EventReply:
        """Its events; or it answers whole, and the gateway streams in its place."""
        if self.events is None:
            return await self.post(path, body, headers)
        return EventReply(self._events(self.events))

    async def _events(self, events: list[bytes]) -> AsyncGenerator[list[bytes], None]:
        for event in events:
            yield [event]
        if self.breaks_off:
            raise EngineFailed(502, "provider broke off its answer", code="engine_unavailable")


class InThisProcess:
    """Makes records at once, in this process."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self.maker = RecordMaker(Sealer(CONTRACTS, SOURCE, now), 1_000_000)
        self._stopping = asyncio.Event()

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        finish(self.maker.record(job))

    async def run(self) -> None:
        await self._stopping.wait()

    async def stop(self) -> None:
        self._stopping.set()


@dataclass
class Alone:
    """The routes and what they publish."""

    completions: Completions
    handlers: Handlers
    opt_outs: OptOutRoutes
    known: KnownOptOuts
    server: Server
    outbox: Outbox
    broker: FakeBroker
    spent: list[tuple[str, int, float]]
    """Key id, tokens and US dollars of each call with a key."""

    async def published(self) -> list[Any]:
        """All events but starts, once there is one."""

        async def probe() -> list[Any]:
            await self.outbox.flush(5)
            kept = [record for record in self.broker.stored if not record.subject.startswith(Start.TOPIC)]
            return [msgspec.json.decode(record.body) for record in kept]

        return await eventually(probe)


def chat_request(**members: Any) -> Request:
    """A call of any role."""
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], **members}
    return Request("POST", "/v1/chat/completions", {}, msgspec.json.encode(body), caller=ANYONE)


@asynccontextmanager
async def alone(
    folder: Path,
    *,
    keep_alive_s: float = 60.0,
    streams_bytes: int = 1_000_000,
    filters: Mapping[str, FilterSettings] | None = None,
) -> AsyncIterator[Alone]:
    """No role has a policy, and one upstream answers for all of them."""
    server, broker, info = Server(), fake_broker(), EngineInfo(name="engine")
    bundles = Bundles(lambda: None, folder / "bundles")
    routes = Routes(asyncio.Event().wait, folder, lease_s=20.0, monotonic=lambda: 0.0, bundles=bundles)  # type: ignore[arg-type]
    outbox = Outbox(CONTRACTS, "gateway", NoSpool())
    notes, memory = PeerUpdates(), StreamMemory(streams_bytes)
    spent = list[tuple[str, int, float]]()
    arms, never = Arms(1_000_000), asyncio.Event().wait
    known = KnownOptOuts(never)  # type: ignore[arg-type]
    unrecorded = Unrecorded(known, arms, notes, outbox.put, new_id, lambda: AT)
    made = InThisProcess(lambda: AT)
    recorder = Recorder(outbox, made, 1_000_000, memory, unrecorded, lambda *used: spent.append(used))
    upstreams = [OpenAiEngine(server, "provider", {"*": "model"})]
    models = Models(routes, upstreams, roles=["planner", "support"])
    engine = PolicyEngine(Replicas("engine", {"one": server}, answer_s=60.0), info)
    router = CallRouter(
        routes,
        lambda _: engine,
        upstreams,
        announce=recorder.publish_start,
        is_blind=lambda: False,
        now=lambda: AT,
    )
    identity = Identity(1_000_000, new_id, AT.timestamp)
    shared = Memory(identity, arms, notes.calls, recorder.order, ())
    peer_sync = PeerSync(never, notes, shared, AT.timestamp)  # type: ignore[arg-type]
    continuing = Continuing(Responses(lambda: None))
    reader = RequestReader()
    now: Callable[[], datetime] = lambda: AT  # noqa: E731 - one clock for all
    calls = CallOpener(reader, models, router, continuing, arms, identity, peer_sync, USER_KEY, b"", now, unrecorded)
    filtering = Filtering(filters or {}, recorder.record_feedback, reader, now)
    answering = Answering(router, AnswerCache(0), recorder, identity, reader, filtering=filtering)
    completions = Completions(calls, answering, continuing, keep_alive_s)
    handlers = Handlers(
        recorder=recorder,
        continuing=continuing,
        arms=arms,
        identity=identity,
        peer_sync=peer_sync,
        updates=notes,
        contracts=CONTRACTS,
        bodies=StoredBodies(SharedSettings()),
        unrecorded=unrecorded,
        user_key=USER_KEY,
        now=now,
    )
    publishing = asyncio.create_task(outbox.run(partial(connect, broker)))
    try:
        yield Alone(completions, handlers, OptOutRoutes(unrecorded, USER_KEY), known, server, outbox, broker, spent)
    finally:
        filtering.close()
        await continuing.close()
        await outbox.stop()
        await publishing
