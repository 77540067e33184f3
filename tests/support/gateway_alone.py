"""A gateway's routes without sockets: an upstream that answers when a test lets it, and a broker in memory."""

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
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.completions import Completions
from ratchet.gateway.domain.memory import AnswerCache
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.engines.base import Reply
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.gateway.handlers import Handlers
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_pool import Finish
from ratchet.gateway.recorder_process import SOURCE, Job, RecordMaker
from ratchet.rules.redaction import Redactor
from ratchet.service.asgi import Request
from ratchet.service.contracts import load_contracts
from tests.support.fake_bus import fake_broker
from tests.support.messages import AT

CONTRACTS = load_contracts()
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


@dataclass
class Server:
    """Gives every call the same answer, once it may."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    after_answer: Callable[[], object] | None = None
    """Called right after the answer is there, before the gateway can read it."""

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        if self.after_answer is not None:
            asyncio.get_running_loop().call_soon(self.after_answer)
        return Reply(200, ANSWER)


class InThisProcess:
    """Makes records at once, in this process."""

    def __init__(self, sealer: Sealer) -> None:
        self.maker = RecordMaker(sealer, Redactor(), 1_000_000)

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        finish(self.maker.record(job))


@dataclass
class Alone:
    """The routes and what they publish."""

    completions: Completions
    handlers: Handlers
    server: Server
    outbox: Outbox
    broker: FakeBroker

    async def published(self) -> list[Any]:
        """All events, once there is one."""

        async def probe() -> list[Any]:
            await self.outbox.flush(5)
            return [msgspec.json.decode(record.body) for record in self.broker.stored]

        return await eventually(probe)


def chat_request(**members: Any) -> Request:
    """A call of any role."""
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], **members}
    return Request("POST", "/v1/chat/completions", {}, msgspec.json.encode(body))


@asynccontextmanager
async def alone(folder: Path, *, keep_alive_s: float = 60.0) -> AsyncIterator[Alone]:
    """No role has a policy, and one upstream answers for all of them."""
    server, broker, info = Server(), fake_broker(), EngineInfo(name="engine")
    routes = Routes(asyncio.Event().wait, folder, lease_s=20.0, monotonic=lambda: 0.0)  # type: ignore[arg-type]
    outbox = Outbox(CONTRACTS, "gateway", NoSpool())
    sealer = Sealer(CONTRACTS, SOURCE, lambda: AT)
    recorder = Recorder(outbox, sealer, InThisProcess(sealer), 1_000_000)
    router = CallRouter(
        routes,
        PolicyEngine(server, info, routes.version),
        [OpenAiEngine(server, "provider", {"*": "model"})],
        announce=recorder.publish_start,
        is_blind=lambda: False,
        now=lambda: AT,
    )
    arms = Arms(1_000_000)
    completions = Completions(
        router=router,
        answering=Answering(router, AnswerCache(0), recorder),
        arms=arms,
        user_key=None,
        keep_alive_s=keep_alive_s,
        now=lambda: AT,
    )
    handlers = Handlers(router=router, recorder=recorder, arms=arms, contracts=CONTRACTS, now=lambda: AT)
    publishing = asyncio.create_task(outbox.run(partial(connect, broker)))
    try:
        yield Alone(completions, handlers, server, outbox, broker)
    finally:
        await outbox.stop()
        await publishing
