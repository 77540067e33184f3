"""The consumers and projections of `topics.json` are those that the services open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ratchet.bus.testing import FakeBus, eventually
from ratchet.canary_deployer import app as deployer
from ratchet.canary_deployer.http_clients import HttpCoordinator
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.nats_clock import BrokerClock
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.span_exporter import app as exporter
from ratchet.extras.span_exporter.otlp_client import OtlpClient
from ratchet.reward_computer import app as reward
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.rl_coordinator import app as coordinator
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings
from ratchet.rl_coordinator.triggers import load_recipes
from ratchet.trainer_worker import app as trainer
from ratchet.trainer_worker.attempt import TIMING
from ratchet.trainer_worker.settings import Settings as TrainerSettings
from ratchet.trajectory_collector import app as collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.contract_files import CONTRACTS
from tests.support.fake_bus import fake_bus
from tests.support.running import running

NOWHERE: Any = None
"""A client that no service uses while it is assembled."""


async def collecting(bus: FakeBus) -> None:
    collector.assembled(CollectorSettings(), bus, Warehouse(NOWHERE, "none", None), bus.now)


async def rewarding(bus: FakeBus) -> None:
    engine = AsyncApiClient(Peer("the engine", "http://127.0.0.1:1"))
    reward.assembled(RewardSettings(), bus, Warehouse(NOWHERE, "none", None), engine)


async def coordinating(bus: FakeBus) -> None:
    settings = CoordinatorSettings(port=0)
    warehouse, objects = Warehouse(NOWHERE, "none", None), Objects(settings.shared)
    app = await coordinator.assembled(settings, load_recipes(settings), bus=bus, warehouse=warehouse, objects=objects)
    async with running(*(part for part in app.components if isinstance(part, HttpServer))):
        pass  # its port is closed again


async def training(bus: FakeBus) -> None:
    settings = TrainerSettings()
    trainer.assembled(settings, TIMING, bus, Objects(settings.shared))


async def deploying(bus: FakeBus) -> None:
    """A deployer subscribes when it leads."""
    clock = BrokerClock(bus)
    await clock.synchronize()
    settings = DeployerSettings(port=0, shared=SharedSettings())
    app = deployer.assembled(settings, bus, clock, HttpCoordinator(None), HttpEngines([], 1.0), {})
    async with running(*app.components):

        async def opened() -> bool:
            return bool(bus.opened)

        await eventually(opened)


async def exporting(bus: FakeBus) -> None:
    exporter.assembled(bus, OtlpClient("http://127.0.0.1:1", {}), content=False)


SERVICES: dict[str, Callable[[FakeBus], Awaitable[None]]] = {
    "trajectory_collector": collecting,
    "reward_computer": rewarding,
    "rl_coordinator": coordinating,
    "trainer_worker": training,
    "canary_deployer": deploying,
    "span_exporter": exporting,
}


@pytest.mark.parametrize("service", SERVICES)
async def test_service_opens_consumers_and_projections_that_are_declared_for_it(service: str) -> None:
    bus = fake_bus()
    await SERVICES[service](bus)
    declared = [*CONTRACTS.consumers.values(), *CONTRACTS.projections.values()]
    assert bus.opened == {spec.name for spec in declared if spec.service == service}


def test_no_other_service_is_declared_to_read() -> None:
    declared = [*CONTRACTS.consumers.values(), *CONTRACTS.projections.values()]
    assert {spec.service for spec in declared} == set(SERVICES)


def test_reader_of_a_topic_is_among_its_consumers_and_reads_its_stream() -> None:
    undeclared = [
        (spec.name, topic)
        for spec in [*CONTRACTS.consumers.values(), *CONTRACTS.projections.values()]
        for topic in spec.topics
        if spec.service not in CONTRACTS.topics[topic].consumers or CONTRACTS.topics[topic].stream != spec.stream
    ]
    assert undeclared == []
