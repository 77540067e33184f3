"""A gateway's handlers without sockets: a server that answers when a test lets it, a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.envelope import Sealer
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import NoSpool
from ratchet.bus.testing import FakeBroker, connect, eventually
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.answering import Answering
from ratchet.gateway.domain.answer_cache import AnswerCache
from ratchet.gateway.domain.arms import Arms
from ratchet.gateway.engines.base import Reply
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.gateway.handlers import Gateway
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorders import Finish
from ratchet.gateway.recording import SOURCE, Job, Recording
from ratchet.rules.redaction import Redactor
from ratchet.service.asgi import Request
from ratchet.service.contracts import load_contracts
from tests.support.fake_bus import fake_broker
from tests.support.messages import AT

CONTRACTS = load_contracts()
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


@dataclass
class Server:
    """Gives every call the same answer, once a test lets it."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    while_answering: Callable[[], object] | None = None
    """Called right after the answer is there, before any other code can see it."""

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        if self.while_answering is not None:
            asyncio.get_running_loop().call_soon(self.while_answering)
        return Reply(200, ANSWER)


class AtOnce:
    """Records in this process."""

    def __init__(self, sealer: Sealer) -> None:
        self.recording = Recording(sealer, Redactor(), 1_000_000)

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        finish(self.recording.record(job))


@dataclass
class Alone:
    """The handlers and what they publish."""

    gateway: Gateway
    server: Server
    outbox: Outbox
    broker: FakeBroker

    async def published(self) -> list[Any]:
        """What has been published, once something has."""

        async def probe() -> list[Any]:
            await self.outbox.flush(5)
            return [msgspec.json.decode(record.body) for record in self.broker.stored]

        return await eventually(probe)


def chat(**members: Any) -> Request:
    """A call of any role."""
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], **members}
    return Request("POST", "/v1/chat/completions", {}, msgspec.json.encode(body))


@asynccontextmanager
async def alone(folder: Path, *, keep_alive_s: float = 60.0) -> AsyncIterator[Alone]:
    """No role has a policy, and one server answers for all of them."""
    server, broker, info = Server(), fake_broker(), EngineInfo(name="engine")
    routes = Routes(asyncio.Event().wait, folder, lease_s=20.0, monotonic=lambda: 0.0)  # type: ignore[arg-type]
    outbox = Outbox(CONTRACTS, "gateway", NoSpool())
    sealer = Sealer(CONTRACTS, SOURCE, lambda: AT)
    recorder = Recorder(outbox, sealer, AtOnce(sealer), 1_000_000)
    upstreams = [OpenAiEngine(server, "provider", {"*": "model"})]
    answering = Answering(routes, PolicyEngine(server, info, routes.version), upstreams, AnswerCache(0), recorder)
    gateway = Gateway(
        routes=routes,
        answering=answering,
        recorder=recorder,
        arms=Arms(1_000_000),
        contracts=CONTRACTS,
        user_key=None,
        keep_alive_s=keep_alive_s,
        is_blind=lambda: False,
        now=lambda: AT,
    )
    publishing = asyncio.create_task(outbox.run(partial(connect, broker)))
    try:
        yield Alone(gateway, server, outbox, broker)
    finally:
        await outbox.stop()
        await publishing
