"""A gateway and a deployer in this process, on the real broker, in front of engines that serve stored policies.

Agents ask through the gateway; the deployer registers what jobs complete, probes each replica, moves traffic, judges by
the rewards of real answers, and decides by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.contract import TrainingStatus, named_id
from ratchet.core.contract.state import POLICIES, PolicyVersion, Route
from ratchet.core.contract.training import Artifacts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import Policy
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.canary_stage import NO_SUITES
from tests.support.canary_world import ROLE, reward_of
from tests.support.gateway_alone import InThisProcess
from tests.support.running import connected, http_client, running_app

WAIT_S = 120.0
"""Gates ask each replica several times; a busy machine takes its time."""
QUESTIONS = [f"where is my order K{number}" for number in range(40, 48)]
PORTION = 16
"""Trajectories that agents play at a time."""

Judge = Callable[[str, str], bool]
"""Whether the answer to a question is right."""


@dataclass
class LiveCanary:
    """The services' clients, and what agents have seen."""

    bus: Bus
    agent: openai.AsyncOpenAI
    settings: DeployerSettings
    arms: Counter[str] = field(default_factory=Counter[str])
    """How many trajectories each arm answered, by the gateway's word."""

    async def finish_job(self, number: int, policy: Policy) -> None:
        """A training has made the policy."""
        artifacts = Artifacts(final_checkpoint=policy.uri, digest=policy.digest, kind=policy.manifest.kind)
        await self.bus.publish(
            TrainingStatus(
                training_job_id=named_id("job", number),
                timestamp=utc_now(),
                status="completed",
                role=ROLE,
                artifacts=artifacts,
            )
        )

    async def policy(self, version: int) -> PolicyVersion | None:
        """A policy as the deployer has registered it."""
        entry = await Bucket(self.bus, POLICIES, PolicyVersion).get(f"{ROLE}.{version}")
        return entry.value if entry is not None else None

    async def stage_is(self, version: int, *stages: str) -> PolicyVersion:
        """Wait until a policy is in one of these stages, and gets traffic where that is what the stage says."""

        async def reached() -> PolicyVersion | None:
            policy = await self.policy(version)
            return policy if policy is not None and policy.stage in stages else None

        policy = await eventually(reached, WAIT_S)
        if policy.stage in ("stable", "canary"):
            await eventually(lambda: self._is_routed(version), WAIT_S)
        return policy

    async def _is_routed(self, version: int) -> bool:
        """Whether the gateway has seen a route with it."""
        return f"{ROLE}@{version}" in [model.id async for model in self.agent.models.list()]

    async def approve(self, version: int) -> None:
        """An operator agrees once the gates have passed: there are no held-out tasks."""
        url = f"http://127.0.0.1:{self.settings.port}/v1/rollouts/{ROLE}"
        async with http_client() as client:

            async def waits() -> bool:
                rollout = (await client.get(url)).json()
                return rollout.get("state") == "awaiting_approval" and rollout["candidate"]["version"] == version

            await eventually(waits, WAIT_S)
            answer = await client.post(f"{url}/approve", json={"actor": "ann", "reason": "the gates have passed"})
            assert answer.status_code == 200, answer.text

    async def rollout(self) -> Any:
        """The newest rollout, as operators read it."""
        async with http_client() as client:
            return (await client.get(f"http://127.0.0.1:{self.settings.port}/v1/rollouts/{ROLE}")).json()

    async def route(self) -> Route:
        entry = await Bucket(self.bus, POLICIES, Route).get(ROLE)
        assert entry is not None
        return entry.value

    async def ask(self, question: str, **options: Any) -> Any:
        """One call, as an agent makes it: greedy, and without the name of a trajectory."""
        messages: Any = [{"role": "user", "content": question}]
        options = {"max_tokens": 8, "temperature": 0, **options}
        return await self.agent.chat.completions.with_raw_response.create(model=ROLE, messages=messages, **options)

    async def play(self, judge: Judge) -> None:
        """Trajectories of one call, all at the same time, each with the reward of its answer."""
        await asyncio.gather(*(self._play_one(question, judge) for question in (QUESTIONS * PORTION)[:PORTION]))

    async def _play_one(self, question: str, judge: Judge) -> None:
        answer = await self.ask(question)
        self.arms[answer.headers["x-ratchet-arm"]] += 1
        success = judge(question, answer.parse().choices[0].message.content or "")
        await self.bus.publish(reward_of(answer.headers["x-ratchet-trajectory"], success=success))

    async def play_until_decided(self, version: int, judge: Judge, portions: int = 60) -> PolicyVersion:
        """Agents call until the deployer has ended the canary."""
        for _ in range(portions):
            await self.play(judge)
            policy = await self.policy(version)
            assert policy is not None
            if policy.stage != "canary":
                return policy
        raise AssertionError(await self.rollout())


@asynccontextmanager
async def live_canary(shared: SharedSettings, urls: Sequence[str], folder: Path) -> AsyncIterator[LiveCanary]:
    """The services, with a deployer that decides within seconds. `shared`: with broker and object store."""
    async with connected(shared) as bus, running_deployer(shared, urls) as settings:
        gateway = GatewaySettings(
            shared=shared.model_copy(update={"data_dir": folder / "gateway"}),
            port=0,
            engine_url=",".join(urls),
            grace_s=0.0,
        )
        async with running_app(build_gateway(gateway, recorders=InThisProcess())) as app:
            port: int = app.components[-1].port  # type: ignore[attr-defined]
            address = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=120) as agent:
                yield LiveCanary(bus, agent, settings)


@asynccontextmanager
async def running_deployer(shared: SharedSettings, urls: Sequence[str]) -> AsyncIterator[DeployerSettings]:
    """The deployer alone. It frees engines of policies that have ended as soon as a sweep sees them."""
    settings = DeployerSettings(
        shared=shared,
        port=free_ports(1)[0],
        engine_url=",".join(urls),
        stages=(50,),
        stage_min_s=(0,),
        stage_min_trajectories=(5,),
        margin=0.1,
        soak_s=0.2,
        horizon_s=60,
        approval=True,
        safety_suites=NO_SUITES,
    )
    async with running_app(build_deployer(settings, unload_after_s=0)):
        yield settings
