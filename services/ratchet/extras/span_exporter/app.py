"""Composition root of the span exporter.

RL_TURNS, RL_REWARDS, RL_TRAINING, RL_DEPLOYMENTS ── consumers ── domain: message -> span ── OtlpClient ── a receiver
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Handlers, subscribe
from ratchet.core.contract import ModelRollout, Reward, TrainingStatus, Turn
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import App
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.extras.span_exporter.domain import call_span, decision_span, reward_span, training_span
from ratchet.extras.span_exporter.otlp_client import OtlpClient
from ratchet.extras.span_exporter.settings import Settings

NAME = "span_exporter"


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and assemble. Without a receiver the service idles."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
        bus.bodies = StoredBodies(settings.shared)
        stack.push_async_callback(bus.close)
        if settings.base_url is None:
            yield App(NAME, [], {"broker": bus.check})
            return
        client = OtlpClient(settings.base_url, settings.sent_headers)
        stack.push_async_callback(client.close)
        yield assembled(bus, client, content=settings.content)


def assembled(bus: Bus, client: OtlpClient, *, content: bool) -> App:
    """The service before anything of it runs. `content`: as `Settings.content`."""
    table: dict[str, Handlers] = {
        "spans-turns": {Turn: client.exporting(partial(call_span, content=content))},
        "spans-rewards": {Reward: client.exporting(partial(reward_span, content=content))},
        "spans-training": {TrainingStatus: client.exporting(training_span)},
        "spans-deployments": {ModelRollout: client.exporting(decision_span)},
    }
    consumers = [subscribe(bus, name, handlers) for name, handlers in table.items()]
    notes = {"receiver": client.check, "consumers": bus.check_consumers}
    return App(NAME, consumers, {"broker": bus.check}, notes=notes)
