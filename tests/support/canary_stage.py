"""A deployer's surroundings on real servers: an engine, held-out tasks, and readers of what it stored."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.settings import SafetyPlan, Settings
from ratchet.core.contract.state import POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, PolicyVersion, Route
from ratchet.core.service.http import HttpServer
from ratchet.core.stores.objects import Objects
from ratchet.local.local_stack.ports import free_ports
from tests.support.canary_traffic import Traffic, finished_job
from tests.support.canary_world import ROLE
from tests.support.running import connected, prepared_objects, running
from tests.support.scoring_engine import ScoringEngine
from tests.support.servers import Broker, RunningServer, s3_settings
from tests.support.stored_values import check_buckets

TASKS = 100
NO_SUITES = {"*": SafetyPlan(suites=())}
"""For a deployer whose candidates play no safety suites."""


def heldout_tasks(folder: Path) -> Path:
    """A task file; the message of task 7 is `7`."""
    path = folder / "heldout.jsonl"
    lines = [
        {"id": str(n), "messages": [{"role": "user", "content": str(n)}], "expect": {"text": {"any_of": ["yes"]}}}
        for n in range(TASKS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def heldout_gateway(successes: Sequence[float]) -> ASGIApp:
    """Answers the tasks of `heldout_tasks` as policies of versions 1, 2, ... with these rates of success do."""

    async def complete(request: Request) -> Response:
        body = await request.json()
        version = int(body["model"].split("@")[1].split("-")[0])
        right = int(body["messages"][0]["content"]) < successes[version - 1] * TASKS
        message = {"role": "assistant", "content": "yes" if right else "no"}
        return JSONResponse({"choices": [{"message": message}]}, headers={"x-ratchet-policy": body["model"]})

    return Starlette(routes=[HttpRoute("/v1/chat/completions", complete, methods=["POST"])])


class Stage:
    """The servers, an engine, and readers of what the deployer stored."""

    def __init__(self, settings: Settings, bus: Bus, objects: Objects, engine: ScoringEngine) -> None:
        self.settings = settings
        self.bus = bus
        self.objects = objects
        self.engine = engine

    async def finish_job(self, number: int) -> None:
        await self.bus.publish(finished_job(self.objects, number))

    async def stage_is(self, version: int, *stages: str) -> PolicyVersion:
        """Wait until a policy is in one of these stages."""
        bucket = Bucket(self.bus, POLICIES, PolicyVersion)

        async def reached() -> PolicyVersion | None:
            entry = await bucket.get(f"{ROLE}.{version}")
            return entry.value if entry is not None and entry.value.stage in stages else None

        return await eventually(reached)

    async def rollout(self) -> Rollout:
        entry = await Bucket(self.bus, ROLLOUTS, Rollout).get(ROLE)
        assert entry is not None
        return entry.value

    async def route(self) -> Route:
        entry = await Bucket(self.bus, POLICIES, Route).get(ROLE)
        assert entry is not None
        return entry.value

    async def play_until_decided(self, traffic: Traffic, version: int) -> PolicyVersion:
        """Traffic in small portions until the candidate has left the canary."""
        bucket = Bucket(self.bus, POLICIES, PolicyVersion)
        for _ in range(200):
            await traffic.play(10)
            entry = await bucket.get(f"{ROLE}.{version}")
            assert entry is not None
            if entry.value.stage != "canary":
                return entry.value
            last = (await self.bus.extent("RL_REWARDS")).last

            async def folded() -> bool:
                rollout = await self.rollout()
                return rollout.reward_seq >= last or not rollout.active  # noqa: B023 - awaited in this round

            await eventually(folded)
        raise AssertionError((await self.rollout()).reason)


def settings_of(
    nats: Broker, s3: RunningServer, tmp_path: Path, engine_port: int, changes: Mapping[str, Any]
) -> Settings:
    """A deployer that decides within seconds."""
    bucket = f"canary-{os.getpid()}-{time.monotonic_ns()}"
    shared = s3_settings(s3, bucket, nats_url=nats.url, data_dir=tmp_path / "data")
    quick: dict[str, Any] = {
        "stages": (25, 50),
        "stage_min_s": (0,),
        "stage_min_trajectories": (5,),
        "margin": 0.1,
        "soak_s": 0.2,
        "horizon_s": 60,
        "engine_url": f"http://127.0.0.1:{engine_port}",
        "safety_suites": NO_SUITES,
    }
    return Settings(shared=shared, port=free_ports(1)[0], **(quick | changes))


@asynccontextmanager
async def stage(
    nats: Broker, s3: RunningServer, tmp_path: Path, heldout: Sequence[float] = (), **changes: Any
) -> AsyncIterator[Stage]:
    """Servers and an engine; `heldout` is the held-out success of versions 1, 2, ...

    At the end all that the deployer stored keeps its contract.
    """
    engine = ScoringEngine()
    server, gateway = HttpServer(engine.app, "127.0.0.1", 0), HttpServer(heldout_gateway(heldout), "127.0.0.1", 0)
    if heldout:
        tasks = await asyncio.to_thread(heldout_tasks, tmp_path)
        changes |= {"task_files": {"*": str(tasks)}, "gateway_url": f"http://127.0.0.1:{gateway.port}"}
    settings = settings_of(nats, s3, tmp_path, server.port, changes)
    objects = await asyncio.to_thread(prepared_objects, settings.shared)
    async with running(server), running(gateway), connected(settings.shared) as bus:
        yield Stage(settings, bus, objects, engine)
        await check_buckets(bus, POLICIES, ROLLOUTS, ROLLOUT_CHUNKS)
