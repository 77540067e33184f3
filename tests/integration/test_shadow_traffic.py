"""Mirrored calls on the real broker: a gateway with a scripted engine, agents that ask, an evaluator as a command."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.settings import SafetyPlan, Settings as DeployerSettings, ShadowPlan
from ratchet.core.contract import Start, Turn
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import POLICIES, ROLLOUTS, PolicyVersion, Route
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import publish_policy
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.canary_world import ROLE, policy, served
from tests.support.consuming import messages_of
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_alone import InThisProcess
from tests.support.running import connected, http_client, prepared_objects, running, running_app
from tests.support.scoring_engine import ScoringEngine
from tests.support.training import NOON

pytestmark = pytest.mark.slow

EVALUATOR = """
import json, sys
for line in sys.stdin:
    one = json.loads(line)
    print(json.dumps({"task": one["task"], "success": "order" in one["answer"]["content"]}))
"""
PRIVATE = "what may not be kept"


@dataclass
class Mirrored:
    """A gateway that agents ask, a deployer, and what the engine was asked."""

    bus: Bus
    engine: FakeEngine
    candidate: str
    gateway_url: str
    deployer: DeployerSettings
    asked: int = 0
    shown: set[str] = field(default_factory=set)

    async def agents_ask(self) -> None:
        """One call after the other, each a trajectory of its own; every tenth is not to be recorded."""
        async with http_client(base_url=self.gateway_url) as client:
            while True:
                await self._ask(client, f"question {self.asked}", {})
                self.asked += 1
                if self.asked % 10 == 0:
                    await self._ask(client, PRIVATE, {"x-ratchet-record": "off"})

    async def _ask(self, client: httpx.AsyncClient, text: str, headers: dict[str, str]) -> None:
        body = {"model": ROLE, "messages": [{"role": "user", "content": text}], "max_tokens": 7}
        named = {"x-ratchet-trajectory": str(uuid.uuid4()), **headers}
        (await client.post("/v1/chat/completions", json=body, headers=named)).raise_for_status()

    async def rollout(self) -> Rollout | None:
        entry = await Bucket(self.bus, ROLLOUTS, Rollout).get(ROLE)
        return entry.value if entry else None

    async def until_judged(self) -> Rollout:
        """The rollout once the gate has a result; what status shows until then is remembered."""
        async with http_client(base_url=f"http://127.0.0.1:{self.deployer.port}") as client:

            async def judged() -> Rollout | None:
                with suppress(httpx.HTTPError):
                    shown = (await client.get(f"/v1/rollouts/{ROLE}")).json()
                    self.shown |= {shown["progress"]} if shown.get("progress") else set()
                rollout = await self.rollout()
                over = {gate.gate for gate in rollout.gates} if rollout else set[str]()
                return rollout if rollout and "shadow_traffic" in over and rollout.state != "gating" else None

            return await eventually(judged, 120)

    def prompts_of(self, name: str) -> list[str]:
        """What the engine was asked under a policy's name."""
        return [body["messages"][-1]["content"] for body in self.engine.asked if body["model"] == name]


@pytest.fixture
async def mirrored(shared_settings: SharedSettings, tmp_path: Path) -> AsyncIterator[Mirrored]:
    """A stable policy that agents ask, and a candidate that was just registered."""
    prepared_objects(shared_settings)
    manifest = PolicyManifest(kind="adapter", base_model="base", files=[], role=ROLE, created_at=NOON)
    stored = publish_policy(Objects(shared_settings), manifest)
    name = policy_name(ROLE, 2, stored.digest)
    engine = FakeEngine(resident={served(1).name, name})
    scoring = HttpServer(ScoringEngine().app, "127.0.0.1", 0)
    async with (
        connected(shared_settings) as bus,
        serving(engine) as engine_url,
        running(scoring),
    ):
        bucket = Bucket(bus, POLICIES, PolicyVersion)
        await bucket.put(f"{ROLE}.1", policy(1, stage="stable", training_job_id=None))
        await bucket.put(f"{ROLE}.2", policy(2, parent=1, digest=stored.digest, uri=stored.uri, name=name))
        await Bucket(bus, POLICIES, Route).put(ROLE, Route(role=ROLE, stable=served(1), next_version=3))
        asked = GatewaySettings(shared=shared_settings, port=0, grace_s=0.0, engine_url=engine_url)
        async with running_app(build_gateway(asked, recorders=InThisProcess())) as gateway:
            url = f"http://127.0.0.1:{gateway.components[-1].port}"  # type: ignore[attr-defined]
            settings = DeployerSettings(
                shared=shared_settings.model_copy(update={"data_dir": tmp_path / "deployer"}),
                port=free_ports(1)[0],
                engine_url=f"http://127.0.0.1:{scoring.port}",
                gateway_url=url,
                replay_command=shlex.join([sys.executable, "-c", EVALUATOR]),
                safety_suites={"*": SafetyPlan(suites=())},
                shadow_traffic={ROLE: ShadowPlan(share=1, calls=100)},
            )
            await eventually(partial(knows_role, url))
            yield Mirrored(bus, engine, name, url, settings)


async def knows_role(gateway_url: str) -> bool:
    """Whether the gateway has read the route."""
    async with http_client(base_url=gateway_url) as client:
        return (await client.get(f"/v1/models/{ROLE}")).status_code == 200


@asynccontextmanager
async def busy(world: Mirrored) -> AsyncIterator[None]:
    """Agents ask all the time."""
    asking = asyncio.create_task(world.agents_ask())
    try:
        yield
    finally:
        await end(asking)


def message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.timeout(300)
async def test_worse_candidate_is_refused_on_calls_that_no_statistic_has(mirrored: Mirrored) -> None:
    stable = served(1).name
    mirrored.engine.messages = {stable: message("Your order is here."), mirrored.candidate: message("Who knows?")}
    async with busy(mirrored), running_app(build_deployer(mirrored.deployer)):
        rollout = await mirrored.until_judged()
    assert rollout.state == "refused"
    assert rollout.reason.startswith("gate shadow_traffic: worse than stable on mirrored calls: difference -1.000")

    prompts, answered = mirrored.prompts_of(mirrored.candidate), mirrored.prompts_of(stable)
    asked = [prompt for prompt in prompts if prompt.startswith("question")]
    assert len(asked) == len({*asked}) == 100
    assert PRIVATE in answered
    assert PRIVATE not in prompts, "what is not recorded is not mirrored"
    by_agents = len([prompt for prompt in answered if prompt != PRIVATE])
    assert mirrored.asked <= by_agents <= mirrored.asked + 1, "stable is asked by agents alone"
    shared = [body for body in mirrored.engine.asked if body["messages"][-1]["content"] in asked]
    assert all(body.get("max_completion_tokens", body.get("max_tokens")) == 7 for body in shared)
    assert any(words.endswith("of 100 calls") for words in mirrored.shown)

    turns = await messages_of(mirrored.bus, Turn)
    starts = await messages_of(mirrored.bus, Start)
    assert {(turn.policy.arm, turn.policy.version) for turn in turns} == {("stable", 1)}
    assert {(start.policy.arm, start.policy.version) for start in starts} == {("stable", 1)}
    assert len(starts) == len({start.trajectory_id for start in starts}) <= mirrored.asked + 1


@pytest.mark.timeout(300)
async def test_deployer_that_dies_on_the_way_begins_again_with_other_calls(mirrored: Mirrored) -> None:
    mirrored.engine.messages = dict.fromkeys((served(1).name, mirrored.candidate), message("Your order is here."))

    async def some() -> bool:
        return len(mirrored.prompts_of(mirrored.candidate)) > 20

    async with busy(mirrored):
        async with running_app(build_deployer(mirrored.deployer)):
            await eventually(some, 120)
        before = len(mirrored.prompts_of(mirrored.candidate))
        async with running_app(build_deployer(mirrored.deployer)):
            rollout = await mirrored.until_judged()
    (result,) = [gate for gate in rollout.gates if gate.gate == "shadow_traffic"]
    assert (result.outcome, result.evidence["calls"], result.evidence["difference"]) == ("passed", 100, 0.0)
    prompts = [prompt for prompt in mirrored.prompts_of(mirrored.candidate) if prompt.startswith("question")]
    assert len(prompts) == len({*prompts}) >= before
