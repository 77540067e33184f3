"""Asking for training from an agent: over the bus, over HTTP once the agent's broker is dead, once either way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ratchet import AsyncClient, Client
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.errors import InvalidMessage, Rejected, Unavailable
from ratchet.service.settings import SharedSettings
from tests.support.coordinator import ROLE, coordinating, played, stored, tid
from tests.support.running import connected, migrated, prepared_objects
from tests.support.servers import running_nats

DEAD = "http://127.0.0.1:9"
"""The discard port, on which nothing listens."""


async def test_training_is_asked_for_over_the_bus_and_over_http_when_the_broker_is_dead(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    own = tmp_path / "own"
    own.mkdir()
    with running_nats(own) as nats:
        async with (
            migrated(shared_settings),
            connected(shared_settings) as bus,
            stored(shared_settings, bus, played("t1", 1.0)),
            coordinating(shared_settings, bus) as workshop,
        ):
            url = str(workshop.api.base_url)
            near = ClientSettings(shared=shared_settings, coordinator_url=DEAD, gateway_url=DEAD)
            async with AsyncClient(agent_id="a", role=ROLE, settings=near) as client:
                asked = {"algorithm": "sft", "base_model": "org/model", "idempotency_key": "weekly"}
                client.feedback(tid("t1"), thumbs=True)
                assert await client.flush(20)  # connected
                job_id = await client.train(**asked, hyperparameters={"learning_rate": 1e-5})

                async def known() -> dict[str, Any] | None:
                    answer = await workshop.api.get(f"/v1/jobs/{job_id}")
                    return answer.json() if answer.is_success else None

                job = await eventually(known)
                assert (job["algorithm"], job["role"]) == ("sft", ROLE)
                with pytest.raises(Rejected, match="learning_rat"):
                    await client.train(**asked, hyperparameters={"learning_rat": 1e-5})

            elsewhere = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "data")
            far = ClientSettings(shared=elsewhere, coordinator_url=DEAD, gateway_url=url, close_s=0.2)
            async with AsyncClient(agent_id="a", role=ROLE, settings=far) as client:
                await asyncio.to_thread(nats.kill)
                assert await client.train(**asked, hyperparameters={"learning_rate": 1e-5}) == job_id
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
