"""Two deployers on the real broker: one leads, and the other takes over within ten seconds of a freeze or a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.core.contract import ModelRollout
from ratchet.core.contract.state import POLICIES, ROLLOUTS, PolicyVersion, Route
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.local.local_stack.ports import free_ports
from tests.support.canary_traffic import finished_job
from tests.support.canary_world import ROLE
from tests.support.consuming import messages_of
from tests.support.running import connected, http_client, prepared_objects, running
from tests.support.scoring_engine import ScoringEngine
from tests.support.servers import Broker, RunningServer, s3_settings, variables

pytestmark = pytest.mark.slow

TAKEN_OVER_S = 10.0
"""The promise. A gateway drops a canary that was not renewed for 20 s; a leader renews every 5 s."""
ORDER = {"actor": "ann", "reason": "because"}


class Deployer:
    """One deployer process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> httpx.Response | None:
        """Its answer, or None while it does not answer."""
        try:
            async with http_client(base_url=self.url) as client:
                return await client.get(path)
        except httpx.HTTPError:
            return None

    async def order(self, verb: str, **more: Any) -> httpx.Response:
        async with http_client(base_url=self.url) as client:
            return await client.post(f"/v1/rollouts/{ROLE}/{verb}", json={**ORDER, **more})

    async def answers(self) -> bool:
        return (await self.get("/v1/rollouts")) is not None

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


class Pair:
    """The broker, and two deployers that were started one after the other."""

    def __init__(self, bus: Bus, objects: Objects, deployers: list[Deployer]) -> None:
        self.bus = bus
        self.objects = objects
        self.first, self.second = deployers

    async def route(self) -> Route:
        entry = await Bucket(self.bus, POLICIES, Route).get(ROLE)
        assert entry is not None
        return entry.value

    async def lease(self) -> int:
        canary = (await self.route()).canary
        assert canary is not None
        return canary.lease

    async def stage_is(self, version: int, stage: str) -> None:
        async def reached() -> bool:
            entry = await Bucket(self.bus, POLICIES, PolicyVersion).get(f"{ROLE}.{version}")
            return entry is not None and entry.value.stage == stage

        await eventually(reached)

    async def canary_runs(self) -> None:
        """The first policy serves, the second is approved: at least an hour in its first stage."""
        await self.bus.publish(finished_job(self.objects, 1))
        await self.stage_is(1, "stable")
        await self.bus.publish(finished_job(self.objects, 2))

        async def waits() -> bool:
            entry = await Bucket(self.bus, ROLLOUTS, Rollout).get(ROLE)
            return entry is not None and entry.value.state == "awaiting_approval"

        await eventually(waits)
        assert (await self.first.order("start", version=2)).json()["state"] == "running"
        await self.stage_is(2, "canary")

    async def sends_orders_to(self, standby: Deployer, leader: Deployer, state: str) -> None:
        """The standby shows the rollout's state, and refuses orders with the leader's address."""
        shown = await standby.get(f"/v1/rollouts/{ROLE}")
        assert shown is not None
        assert (shown.json()["state"], shown.json()["candidate"]["version"]) == (state, 2)
        for verb in ("pause", "rollback", "revert", "promote", "resume"):
            refused = await standby.order(verb)
            assert refused.status_code == 503
            assert refused.json()["error"]["message"].endswith(leader.url)

    async def renewed_after(self, lease: int) -> float:
        """Seconds until the canary's lease has grown beyond `lease`."""
        began = time.monotonic()

        async def grown() -> bool:
            return await self.lease() > lease

        await eventually(grown)
        return time.monotonic() - began


@asynccontextmanager
async def pair(nats: Broker, s3: RunningServer, tmp_path: Path) -> AsyncIterator[Pair]:
    """Servers, an engine, and two deployers; the first leads."""
    engine = HttpServer(ScoringEngine().app, "127.0.0.1", 0)
    bucket = f"deployers-{os.getpid()}-{time.monotonic_ns()}"
    shared = s3_settings(s3, bucket, nats_url=nats.url, data_dir=tmp_path / "data")
    objects = await asyncio.to_thread(prepared_objects, shared)
    async with running(engine), connected(shared) as bus:
        started: list[Deployer] = []
        try:
            for name in ("one", "two"):
                started.append(await started_deployer(shared, engine.port, tmp_path / name))
                await eventually(started[-1].answers, 120)
            yield Pair(bus, objects, started)
        finally:
            for deployer in started:
                if deployer.process.returncode is None:
                    deployer.process.send_signal(signal.SIGCONT)
                    deployer.process.terminate()
            async with asyncio.timeout(30):
                await asyncio.gather(*(deployer.process.wait() for deployer in started))


async def started_deployer(shared: SharedSettings, engine_port: int, data_dir: Path) -> Deployer:
    """A deployer of its own port and folder."""
    port = free_ports(1)[0]
    own = {
        "RATCHET_DATA_DIR": str(data_dir),
        "RATCHET_DEPLOYER_PORT": str(port),
        "RATCHET_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "RATCHET_CANARY_APPROVAL": "true",
    }
    command = [sys.executable, "-m", "ratchet.canary_deployer"]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **variables(shared), **own})
    return Deployer(process, port)


@pytest.mark.timeout(400)
async def test_standby_names_the_leader_and_takes_over_before_the_canary_lapses(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    """From a frozen leader, which writes nothing when it wakes up; then from a killed one."""
    async with pair(nats, s3, tmp_path) as both:
        await both.canary_runs()
        await both.sends_orders_to(both.second, both.first, "running")
        both.first.process.send_signal(signal.SIGSTOP)
        assert await both.renewed_after(await both.lease()) < TAKEN_OVER_S
        assert (await both.second.order("pause")).json()["state"] == "paused"
        both.first.process.send_signal(signal.SIGCONT)
        await both.sends_orders_to(both.first, both.second, "paused")
        assert (await both.second.order("resume")).json()["state"] == "running"
        await both.second.kill()
        lease = await both.lease()  # the leader may have renewed it until then
        assert await both.renewed_after(lease) < TAKEN_OVER_S
        ended = await both.first.order("rollback")
        assert (ended.status_code, (await both.route()).canary) == (200, None)
        decisions = await messages_of(both.bus, ModelRollout)
        assert first_break(decisions) is None
        assert [decision.verdict for decision in decisions][-3:] == ["pause", "resume", "roll_back"]
