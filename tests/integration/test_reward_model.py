"""A stored reward model scores trajectories beside the rewards, on real servers and a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.registry import Bounds
from ratchet.bus.testing import eventually
from ratchet.core.contract import Reward, decode
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.engine_local.app import build as build_engine
from ratchet.local.engine_local.settings import Settings as EngineSettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.messages import trajectory
from tests.support.reward_models import publish_reward_model
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.tiny_models import write_tiny_model

pytestmark = pytest.mark.slow
BRIEF = Bounds(ack_wait_s=2.0)
WEIGHTS = {"support": {"task_completion": 0.5, "reward_model": 0.5}}


@pytest.fixture
def digest(shared_settings: SharedSettings, tmp_path: Path) -> str:
    """Of a reward model in the object store: an adapter on a stored model."""
    objects = prepared_objects(shared_settings)
    base = write_tiny_model(tmp_path / "tiny", ["where is my order K47", "it was sent on monday"])
    policy, _ = publish_reward_model(objects, base, tmp_path / "rm", adapter=True)
    return policy.digest


@asynccontextmanager
async def scored(shared: SharedSettings, digest: str, port: int) -> AsyncIterator[tuple[Bus, Warehouse]]:
    """Collector and reward computer, whose reward model is asked at a port."""
    collector = build_collector(CollectorSettings(shared=shared, linger_s=0.02), tuning=Tuning(ack_wait_s=2.0))
    settings = Settings(
        shared=shared,
        linger_s=0.02,
        weights=WEIGHTS,
        models={"support": digest},
        engine_url=f"http://127.0.0.1:{port}",
    )
    async with (
        connected(shared) as bus,
        prepared_warehouse(shared) as warehouse,
        running_app(collector),
        running_app(build(settings, BRIEF)),
    ):
        yield bus, warehouse


async def rewards(warehouse: Warehouse, number: int) -> Any:
    async def probe() -> list[Reward]:
        rows = await warehouse.rows("SELECT body FROM rewards FINAL ORDER BY revision")
        return [decode(row["body"].encode(), Reward) for row in rows] if len(rows) >= number else []

    return await eventually(probe)


async def test_reward_waits_for_no_reward_model_and_its_score_makes_a_revision(
    shared_settings: SharedSettings, digest: str
) -> None:
    (port,) = free_ports(1)
    async with scored(shared_settings, digest, port) as (bus, warehouse):
        await bus.publish(trajectory())
        (first,) = await rewards(warehouse, 1)
        assert not first.reward_components["reward_model"].applicable
        async with running_app(build_engine(EngineSettings(shared=shared_settings, port=port))):
            _, revised = await rewards(warehouse, 2)
        part = revised.reward_components["reward_model"]
        assert (revised.revision, part.weight, revised.first_scored) == (1, 0.5, ["reward_model"])
        assert 0.0 < part.score < 1.0
        assert revised.metadata.digests["reward_model"] == digest
        (row,) = await warehouse.rows("SELECT components FROM latest_rewards")
        assert row["components"]["reward_model"] == part.score
