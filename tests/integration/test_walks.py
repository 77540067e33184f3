"""The walks of docs/architecture.md are the calls that a run of the real code makes, in their order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from ratchet import AsyncClient
from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.client import ClientSettings
from ratchet.core.contract.training import Dataset, DatasetFilter
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.canary_stage import stage
from tests.support.coordinator import ROLE, coordinating, played, stored
from tests.support.gateway_scene import ask, scene
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import Broker, RunningServer
from tests.support.training import config
from tests.support.walks import first_missing, traced, walk

pytestmark = pytest.mark.slow

LONGEST = 12
"""Functions of a walk."""


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


def test_no_walk_is_longer_than_a_reader_remembers() -> None:
    walks = map(walk, ("A trajectory to its row", "A call to its row", "A reward to a job", "A job to a route"))
    assert max(map(len, walks)) <= LONGEST


async def test_a_trajectory_reaches_its_row_by_the_walk_of_the_page(shared_settings: SharedSettings) -> None:
    settings = CollectorSettings(shared=shared_settings, linger_s=0.02)
    async with connected(shared_settings), prepared_warehouse(shared_settings) as warehouse:

        async def there() -> bool:
            return bool(await warehouse.rows("SELECT 1 FROM trajectories"))

        with traced() as calls:
            async with (
                running_app(build_collector(settings)),
                AsyncClient(agent_id="agent", role=ROLE, settings=ClientSettings(shared=shared_settings)) as client,
            ):
                with client.trajectory(task_id="task", instructions="Help.", model="any") as trajectory:
                    trajectory.turn(observation="hi", action="hello")
                await eventually(there)
    assert first_missing(walk("A trajectory to its row"), calls) is None


async def test_call_reaches_its_row_by_the_walk_of_the_page(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    settings = CollectorSettings(shared=shared_settings, linger_s=0.02)
    async with prepared_warehouse(shared_settings) as warehouse, scene(nats, tmp_path) as here:

        async def there() -> bool:
            return bool(await warehouse.rows("SELECT 1 FROM turns"))

        with traced() as calls:
            async with running_app(build_collector(settings)):
                await ask(here.client(), [{"role": "user", "content": "hi"}])
                await eventually(there)
    assert first_missing(walk("A call to its row"), calls) is None


async def test_a_reward_leads_to_a_job_by_the_walk_of_the_page(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [message for number in range(6) for message in played(f"t{number}", 0.5, seconds=number)]
    training = config(
        base_model="org/model", dataset=Dataset(source="clickhouse", sample_size=4, filter=DatasetFilter())
    )
    recipes = {ROLE: {"config": msgspec.to_builtins(training), "threshold": 5}}
    with traced() as calls:
        async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, recipes=recipes) as workshop:

            async def dispatched() -> bool:
                return bool(workshop.dispatches)

            await eventually(dispatched)
    assert first_missing(walk("A reward to a job"), calls) is None


async def test_a_job_leads_to_a_route_by_the_walk_of_the_page(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path, (0.5, 0.9)) as test:
        with traced() as calls:
            async with running_app(build_deployer(test.settings)):
                await test.finish_job(1)
                await test.stage_is(1, "stable")
                calls.clear()
                await test.finish_job(2)
                await test.stage_is(2, "canary")
                assert (await test.route()).canary is not None
    assert first_missing(walk("A job to a route"), calls) is None
