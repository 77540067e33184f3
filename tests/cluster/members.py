"""Two of every service on a cluster of brokers, with one warehouse and object store, and agents before the gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.bootstrap import bootstrap
from ratchet.local.local_stack.broker_users import user_of
from ratchet.local.local_stack.catalog import ALL_SERVICES, ENGINE, MLFLOW
from tests.chaos.traffic import Traffic, agents
from tests.chaos.world import KEY, World, gateway_settings, world_before
from tests.cluster.brokers import SIZE, Cluster
from tests.support.fake_engine import FakeProvider, providing
from tests.support.servers import RunningServer
from tests.support.service_process import service_process

LEFT_OUT = frozenset({ENGINE, "trainer_worker", "experiment_tracker"})
"""What needs torch or a server of MLflow; workers of the pool `prompts` are the same program as the trainer."""
SHORTS = [spec.short for spec in ALL_SERVICES if spec.name not in LEFT_OUT and MLFLOW not in spec.needs]
MEMBERS = 2


@dataclass
class Members:
    """What runs, and who works."""

    running: dict[str, list[RunningServer]]
    """By the short name of a service."""
    traffics: list[Traffic]
    """Agents before each gateway."""

    @property
    def world(self) -> World:
        return self.traffics[0].world

    def answered(self) -> list[float]:
        """When agents got the answers to their calls, by the monotonic clock."""
        return [at for traffic in self.traffics for at in traffic.acknowledged.turns.values()]

    async def all_ready(self) -> bool:
        """Whether every service says so; those that do not are shown."""
        every = [server for servers in self.running.values() for server in servers]
        reasons = await asyncio.gather(*(asyncio.to_thread(server.process.not_ready) for server in every))
        unready = {server.log: reason for server, reason in zip(every, reasons, strict=True) if reason is not None}
        for log, reason in unready.items():
            self.world.say(f"{log}: {reason}")
        return not unready


@asynccontextmanager
async def two_of_each(brokers: Cluster, shared: SharedSettings, folder: Path) -> AsyncIterator[Members]:
    """The services, ready, and agents at work before each of the gateways."""
    everything = shared.model_copy(
        update={"nats_url": brokers.url(0), "nats_seed_file": brokers.admin, "replicas": SIZE, "data_dir": folder}
    )
    await bootstrap(everything)
    async with AsyncExitStack() as held:
        provider = await held.enter_async_context(providing(FakeProvider(key=KEY)))
        processes = ExitStack()
        held.push_async_callback(asyncio.to_thread, processes.close)

        async def started(short: str, number: int) -> RunningServer:
            """Each has another server of the broker in its settings, and learns of the others from that."""
            spec = next(spec for spec in ALL_SERVICES if spec.short == short)
            program = (spec.like or spec).name
            own = everything.model_copy(
                update={
                    "nats_url": brokers.url((SHORTS.index(short) + number) % SIZE),
                    "nats_seed_file": brokers.users.seed_file(user_of(program)),
                }
            )
            at = folder / f"{short}-{number}"
            at.mkdir(parents=True)
            env = {**gateway_settings(provider), "RATCHET_ENGINE_URL": "http://127.0.0.1:9"}
            if program == "trainer_worker":
                env["RATCHET_TRAINER_WORKER"] = f"{short}-{number}"
            return await asyncio.to_thread(processes.enter_context, service_process(short, own, at, **env))

        running = {
            short: list(await asyncio.gather(*(started(short, number) for number in range(MEMBERS))))
            for short in SHORTS
        }
        urls = [brokers.url(number) for number in range(SIZE)]
        traffics: list[Traffic] = []
        for number, gateway in enumerate(running["gateway"]):
            own = everything.model_copy(
                update={"nats_url": urls[(number + 1) % SIZE], "data_dir": folder / f"agent-{number}"}
            )
            world = await held.enter_async_context(world_before(gateway.url, urls, brokers.admin, own, folder))
            traffics.append(await held.enter_async_context(agents(world)))
        yield Members(running, traffics)
