"""How long nothing was acknowledged: the longest gap between two successes of what is tried again and again."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import nats.errors
import nats.js.errors
from nats.aio.client import Client as Connection
from nats.js.api import StreamConfig

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.service.contracts import load_contracts
from tests.cluster.brokers import SIZE, Cluster

STREAM, EVERY_S, ANSWER_S = "PROBE", 0.05, 1.0
PATIENCE_S = 1800.0
"""For what takes seconds on a machine of its own: nothing fails because another program uses the cores."""


@dataclass
class Probe:
    """A program that connects as Ratchet's services do, and goes to another server where its own is gone."""

    bus: Bus
    taken: list[float] = field(default_factory=list[float])
    """When the stream took one of its messages, by the monotonic clock."""

    def is_client_of(self, port: int) -> bool:
        """Whether the server that is reached at a port is its own now."""
        server = self.bus.nc.connected_url
        return server is not None and server.port == port

    async def go_on(self) -> None:
        """Send again and again, for ever."""
        while True:
            with suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError):
                await self.bus.nc.jetstream().publish("probe", b"", timeout=ANSWER_S)
                self.taken.append(time.monotonic())
            await asyncio.sleep(EVERY_S)


@asynccontextmanager
async def probing(brokers: Cluster) -> AsyncIterator[list[Probe]]:
    """Programs that send to a stream of as many copies as Ratchet's have, some at each server."""
    async with AsyncExitStack() as held:
        probes = [Probe(await _connected(brokers, number % SIZE)) for number in range(2 * SIZE)]
        for probe in probes:
            held.push_async_callback(probe.bus.close)
        stream = StreamConfig(STREAM, subjects=["probe"], num_replicas=SIZE)
        await probes[0].bus.nc.jetstream(timeout=PATIENCE_S).add_stream(stream)
        held.push_async_callback(end, *(asyncio.create_task(probe.go_on()) for probe in probes))
        yield probes


async def _connected(brokers: Cluster, number: int) -> Bus:
    settings = BusSettings(brokers.url(number), brokers.admin, SIZE)
    return await Bus.connect(settings, name="probe", contracts=load_contracts(), patience=Patience(quiet=True))


def longest_gap(instants: Sequence[float], since: float, until: float) -> float:
    """The longest time without one between two moments."""
    within = sorted(at for at in instants if since <= at <= until)
    edges = [since, *within, until]
    return max(later - earlier for earlier, later in itertools.pairwise(edges))


async def leader_of(connection: Connection, stream: str) -> int:
    """The number of the server that leads a stream, once one does."""

    async def leader() -> str | None:
        with suppress(nats.errors.Error, nats.js.errors.Error):
            cluster = (await connection.jetstream().stream_info(stream)).cluster
            return cluster.leader if cluster else None
        return None

    return int((await eventually(leader, PATIENCE_S)).removeprefix("nats-"))
