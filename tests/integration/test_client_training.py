"""Asking for training from an agent: over the bus, over HTTP once the agent's broker is dead, once either way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet import AsyncClient, Client
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.errors import InvalidMessage, Rejected, Unavailable
from ratchet.core.service.settings import SharedSettings
from tests.support.coordinator import ROLE, Workshop, coordinating, played, stored, tid
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.servers import RunningServer, running_nats

DEAD = "http://127.0.0.1:9"
"""The discard port, on which nothing listens."""


ASKED: dict[str, Any] = {
    "algorithm": "sft",
    "base_model": "org/model",
    "idempotency_key": "weekly",
    "hyperparameters": {"learning_rate": 1e-5},
}


@pytest.fixture
async def workshop(shared_settings: SharedSettings) -> AsyncIterator[Workshop]:
    """A coordinator with one rewarded trajectory."""
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        stored(shared_settings, bus, played("t1", 1.0)),
        coordinating(shared_settings, bus) as workshop,
    ):
        yield workshop


@asynccontextmanager
async def near(shared: SharedSettings) -> AsyncIterator[AsyncClient]:
    """A connected client that reaches the coordinator over the bus alone."""
    settings = ClientSettings(shared=shared, coordinator_url=DEAD, gateway_url=DEAD)
    async with AsyncClient(agent_id="a", role=ROLE, settings=settings) as client:
        client.feedback(tid("t1"), thumbs=True)
        assert await client.flush(20)
        yield client


async def test_training_is_asked_for_over_the_bus(shared_settings: SharedSettings, workshop: Workshop) -> None:
    async with near(shared_settings) as client:
        job_id = await client.train(**ASKED)

        async def known() -> dict[str, Any] | None:
            answer = await workshop.api.get(f"/v1/jobs/{job_id}")
            return answer.json() if answer.is_success else None

        job = await eventually(known)
        assert (job["algorithm"], job["role"]) == ("sft", ROLE)
        with pytest.raises(Rejected, match="learning_rat"):
            await client.train(**{**ASKED, "hyperparameters": {"learning_rat": 1e-5}})


@asynccontextmanager
async def far(nats: RunningServer, folder: Path, workshop: Workshop) -> AsyncIterator[AsyncClient]:
    """A client whose own broker is dead, and whose gateway is the coordinator."""
    shared = SharedSettings(nats_url=nats.url, data_dir=folder / "data")
    settings = ClientSettings(shared=shared, coordinator_url=DEAD, gateway_url=str(workshop.api.base_url), close_s=0.2)
    async with AsyncClient(agent_id="a", role=ROLE, settings=settings) as client:
        await asyncio.to_thread(nats.kill)
        yield client


async def test_training_asked_for_over_http_without_a_broker_stays_one_job(
    shared_settings: SharedSettings, workshop: Workshop, tmp_path: Path
) -> None:
    async with near(shared_settings) as client:
        job_id = await client.train(**ASKED)
    own = tmp_path / "own"
    own.mkdir()
    with running_nats(own) as nats:
        async with far(nats, tmp_path, workshop) as client:
            assert await client.train(**ASKED) == job_id
            other = await client.train(base_model="org/model", min_reward=0.5, sources=["assembled"])
            assert (await workshop.job(other))["request"]["training_config"]["dataset"]["filter"] == {
                "min_reward": 0.5,
                "sources": ["assembled"],
            }
            with pytest.raises(InvalidMessage, match="algorithm"):
                await client.train(algorithm="alchemy")
            with pytest.raises(Rejected, match="role no_such_role"):
                await client.train("no_such_role", base_model="org/model")
    jobs = (await workshop.api.get("/v1/jobs")).json()["jobs"]
    assert sorted(job["training_job_id"] for job in jobs) == sorted([job_id, other])


async def test_training_without_a_broker_and_a_coordinator_is_one_clear_error(tmp_path: Path) -> None:
    nowhere = SharedSettings(nats_url="nats://127.0.0.1:9", data_dir=tmp_path / "data")
    settings = ClientSettings(shared=nowhere, coordinator_url=DEAD, gateway_url=DEAD, close_s=0.2)
    with Client(agent_id="a", role=ROLE, settings=settings) as client, pytest.raises(Unavailable, match="cannot ask"):
        await asyncio.to_thread(client.train, base_model="org/model")
