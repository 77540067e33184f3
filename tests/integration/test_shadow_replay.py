"""Shadow replay on the real servers: logged prompts, a gateway with a scripted engine, an evaluator as a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.contract import Message, PolicyClaim, Start
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import POLICIES, ROLLOUTS, PolicyVersion, Route
from ratchet.core.contract.training import Artifacts
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy
from ratchet.core.stores.warehouse import Warehouse
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.canary_stage import NO_SUITES
from tests.support.canary_world import ROLE, policy, served
from tests.support.coordinator import Workshop, coordinating, tid
from tests.support.fake_engine import FakeEngine, serving
from tests.support.running import connected, prepared_objects, prepared_warehouse, running, running_app
from tests.support.scoring_engine import ScoringEngine
from tests.support.training import NOON, conversation, reward, trajectory

pytestmark = pytest.mark.slow

EVALUATOR = """
import json, sys
for line in sys.stdin:
    one = json.loads(line)
    calls = one["answer"].get("tool_calls") or []
    good = [call["function"]["name"] for call in calls] == ["look_up"]
    print(json.dumps({"task": one["task"], "success": good, "score": float(good)}))
"""
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
FRESH = 110
DEAD = "http://127.0.0.1:9"


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with connected(shared_settings) as bus:
        yield bus


def captured(name: str, task: str, at: datetime) -> list[Message]:
    """A trajectory of two calls with tools, as the gateway has captured it, and its reward."""
    claim = PolicyClaim(role=ROLE, version=1, digest=served(1).digest, arm="stable", weight=0.0)
    offered: dict[str, Any] = {"tools": TOOLS, "tools_digest": "a" * 64, "parameters": {"metadata": {"name": name}}}
    turns, _ = conversation(tid(name), [3, 3], policy=claim, timestamp=at, **offered)
    context = TaskContext(task_id=task, instructions="Help.")
    ended = trajectory(tid(name), turns=turns, at=at, task_context=context)
    return [*turns, ended, reward(ended, 1.0, at=at)]


def calling(tool: str) -> dict[str, Any]:
    """An answer that calls a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def publish_stored(bus: Bus, warehouse: Warehouse, facts: Sequence[Message]) -> None:
    """Publish facts and wait until the collector has stored them."""
    await bus.publish_all(facts)
    ids = [fact.event_id for fact in facts if not isinstance(fact, Start)]

    async def all_there() -> bool:
        counts = await warehouse.rows(
            "SELECT (SELECT uniqExact(event_id) FROM trajectories WHERE event_id IN {ids:Array(String)})"
            " + (SELECT uniqExact(event_id) FROM turns WHERE event_id IN {ids:Array(String)})"
            " + (SELECT uniqExact(event_id) FROM rewards WHERE event_id IN {ids:Array(String)}) AS n",
            {"ids": ids},
        )
        return counts[0]["n"] == len(ids)

    await eventually(all_there)


async def snapshot(workshop: Workshop) -> str:
    """The digest of a snapshot of all that is stored now."""
    asked = await workshop.ask(dataset={"sample_size": 10}, algorithm="sft")
    dispatch = await workshop.dispatched(asked["training_job_id"])
    await workshop.report(dispatch, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/x.json"))
    return (await workshop.until(asked["training_job_id"], "completed"))["snapshot"]["digest"]


def fresh(count: int, at: datetime) -> list[Message]:
    """Announced trajectories, each of its own task, and one more of a task that the lineage learned from."""
    facts: list[Message] = []
    for number in range(count):
        claim = PolicyClaim(role=ROLE, version=1, digest=served(1).digest, arm="stable", weight=0.0)
        facts.append(Start(trajectory_id=tid(f"fresh {number}"), timestamp=at, policy=claim, role=ROLE))
        facts += captured(f"fresh {number}", f"task {number}", at)
    return [*facts, *captured("again", "learned", at)]


@asynccontextmanager
async def deploying(shared: SharedSettings, tmp_path: Path, gateway: str, coordinator: str) -> AsyncIterator[None]:
    """A deployer for which every rollout takes too long, so that each begins with a replay."""
    engine = HttpServer(ScoringEngine().app, "127.0.0.1", 0)
    async with running(engine):
        settings = DeployerSettings(
            shared=shared.model_copy(update={"data_dir": tmp_path / "deployer"}),
            port=free_ports(1)[0],
            engine_url=f"http://127.0.0.1:{engine.port}",
            gateway_url=gateway,
            coordinator_url=coordinator,
            replay_command=shlex.join([sys.executable, "-c", EVALUATOR]),
            longest_days=0.001,
            safety_suites=NO_SUITES,
        )
        async with running_app(build_deployer(settings)):
            yield


async def rollout_of(bus: Bus, version: int, state: str) -> Rollout:
    """The rollout of a version, once it is in a state."""

    async def reached() -> Rollout | None:
        entry = await Bucket(bus, ROLLOUTS, Rollout).get(ROLE)
        rollout = entry.value if entry else None
        return rollout if rollout and (rollout.candidate.version, rollout.state) == (version, state) else None

    return await eventually(reached, 120)


async def assembled_replays(warehouse: Warehouse, number: int) -> list[str]:
    """The trajectories of `number` replayed calls, once the collector has assembled them after their silence."""

    async def there() -> list[str] | None:
        rows = await warehouse.rows("SELECT DISTINCT trajectory_id FROM trajectories WHERE arm = 'pinned'")
        return [row["trajectory_id"] for row in rows] if len(rows) == number else None

    return await eventually(there, 60)


def replayed(rollout: Rollout) -> tuple[str, dict[str, Any]]:
    """Outcome and evidence of the shadow replay."""
    (result,) = [gate for gate in rollout.gates if gate.gate == "shadow_replay"]
    return result.outcome, result.evidence


async def register(bus: Bus, *policies: PolicyVersion) -> None:
    for one in policies:
        await Bucket(bus, POLICIES, PolicyVersion).put(f"{ROLE}.{one.version}", one)


@dataclass
class Replaying:
    """A stable policy with a history, behind a gateway, and a coordinator that knows what its lineage learned from."""

    shared: SharedSettings
    folder: Path
    bus: Bus
    warehouse: Warehouse
    workshop: Workshop
    engine: FakeEngine
    gateway_url: str
    digest: str
    """Of the snapshot that every candidate was trained on."""
    candidate: Policy

    @property
    def name(self) -> str:
        """The candidate's, as version 2."""
        return policy_name(ROLE, 2, self.candidate.digest)

    async def rollout(self, version: int, state: str, *, coordinator_url: str | None = None) -> Rollout:
        """Register a candidate and run a deployer until its rollout is in a state."""
        stored = self.candidate
        made = {"digest": stored.digest, "uri": stored.uri, "name": self.name, "dataset_digest": self.digest}
        await register(self.bus, policy(version, parent=1, **made))
        coordinator_url = coordinator_url or str(self.workshop.api.base_url)
        async with deploying(self.shared, self.folder, self.gateway_url, coordinator_url):
            return await rollout_of(self.bus, version, state)


@pytest.fixture
async def replaying(shared_settings: SharedSettings, bus: Bus, tmp_path: Path) -> AsyncIterator[Replaying]:
    """Two trajectories in the snapshot; beside it one of their time, fresh ones, and one of a learned task."""
    manifest = PolicyManifest(kind="adapter", base_model="base", files=[], role=ROLE, created_at=NOON)
    candidate = publish_policy(Objects(shared_settings), manifest)
    engine = FakeEngine(resident={served(1).name, policy_name(ROLE, 2, candidate.digest)})
    await register(bus, policy(1, stage="stable", training_job_id=None))
    await Bucket(bus, POLICIES, Route).put(ROLE, Route(role=ROLE, stable=served(1), next_version=3))
    collector = CollectorSettings(shared=shared_settings, linger_s=0.01, idle_s=2)
    async with (
        prepared_warehouse(shared_settings) as warehouse,
        running_app(build_collector(collector, tuning=Tuning(idle_interval_s=0.2))),
        coordinating(shared_settings, bus) as workshop,
        serving(engine) as engine_url,
        running_app(
            build_gateway(GatewaySettings(shared=shared_settings, port=0, grace_s=0.0, engine_url=engine_url))
        ) as gateway,
    ):
        await publish_stored(bus, warehouse, [*captured("a", "learned", NOON), *captured("b", "old", NOON)])
        digest = await snapshot(workshop)
        await publish_stored(bus, warehouse, [*captured("late", "other", NOON), *fresh(FRESH, bus.now())])
        url = f"http://127.0.0.1:{gateway.components[-1].port}"  # type: ignore[attr-defined]
        yield Replaying(shared_settings, tmp_path, bus, warehouse, workshop, engine, url, digest, candidate)


UNSURE = {"role": "assistant", "content": "I do not know."}


@pytest.mark.timeout(300)
async def test_without_a_coordinator_no_prompt_is_replayed_and_a_person_decides(replaying: Replaying) -> None:
    waiting = await replaying.rollout(2, "awaiting_approval", coordinator_url=DEAD)
    assert replayed(waiting)[0] == "not_run"
    assert "shadow_replay: the coordinator does not answer" in waiting.reason
    assert replaying.engine.asked == []


@pytest.mark.timeout(300)
async def test_a_candidate_that_answers_worse_than_stable_waits_for_a_person(replaying: Replaying) -> None:
    replaying.engine.messages = {served(1).name: calling("look_up"), replaying.name: UNSURE}
    worse = await replaying.rollout(2, "awaiting_approval")
    outcome, evidence = replayed(worse)
    assert (outcome, evidence["difference"], evidence["prompts"]) == ("failed", -1.0, FRESH)
    assert evidence["left_out"] == {"group_of_lineage": 1, "older_than_snapshot": 1}
    assert "shadow_replay: replay, not traffic: difference -1.000" in worse.reason


@pytest.mark.timeout(300)
async def test_candidate_better_than_stable_begins_with_a_higher_weight(replaying: Replaying) -> None:
    engine, workshop = replaying.engine, replaying.workshop
    engine.messages = {served(1).name: UNSURE, replaying.name: calling("look_up")}
    better = await replaying.rollout(2, "running")
    outcome, evidence = replayed(better)
    assert (outcome, evidence["difference"], better.weight) == ("passed", 1.0, 0.25)
    assert "replay, not traffic" in better.reason
    assert better.horizon is not None
    assert better.horizon.basis.startswith("the setting: 0 of 100 outcomes")

    by_policy = [body["model"] for body in engine.asked]
    assert {name: by_policy.count(name) for name in by_policy} == {served(1).name: FRESH, replaying.name: FRESH}
    assert all(body["messages"][-1]["role"] == "user" for body in engine.asked), "a prompt ends before a tool's result"
    assert all((body["tools"], body["temperature"]) == (TOOLS, 0.7) for body in engine.asked)

    replays = await assembled_replays(replaying.warehouse, 2 * FRESH)
    rewards = [reward(trajectory(name), 1.0, at=replaying.bus.now()) for name in replays]
    await publish_stored(replaying.bus, replaying.warehouse, rewards)
    await check_replays_are_left_out(workshop, len(replays))


async def check_replays_are_left_out(workshop: Workshop, number: int) -> None:
    """Replayed calls are not replayed again, hide no prompt of an agent, and train nothing."""
    query = {"role": ROLE, "version": 2}
    again = (await workshop.api.get("/v1/replay/prompts", params=query)).json()
    assert (len(again["prompts"]), again["lineage"]) == (FRESH, [2, 1])
    assert again["left_out"]["mixed_or_pinned"] == number
    recorded = (await workshop.api.get("/v1/replay/requests", params={"role": ROLE})).json()
    assert recorded["left_out"] == {"mixed_or_pinned": number}
    few = (await workshop.api.get("/v1/replay/prompts", params=query | {"limit": 2})).json()
    assert len(few["prompts"]) == 2, "replays that are newer than the agents' prompts take no place of theirs"
    job = {"algorithm": "sft", "base_model": "org/model", "role": ROLE, "dataset": {"sample_size": 1000}}
    preview = (await workshop.api.post("/v1/jobs/preview", json=job)).json()
    assert preview["left_out"]["mixed_or_pinned"] == number


async def test_prompts_are_refused_where_the_data_of_the_lineage_is_unknown(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with prepared_warehouse(shared_settings), coordinating(shared_settings, bus) as workshop:
        await register(bus, policy(1), policy(2, parent=7, dataset_digest="d" * 64), policy(3, dataset_digest="d" * 64))
        answers = [
            await workshop.api.get("/v1/replay/prompts", params={"role": ROLE, "version": version})
            for version in (1, 2, 3, 4)
        ]
    refusals = [(answer.status_code, answer.json()["error"]["message"]) for answer in answers]
    names = [policy(version).name for version in range(4)]
    assert refusals[0] == (409, f"nothing says which snapshot {names[1]} was trained on")
    assert refusals[1] == (409, f"{names[2]} continues version 7, which is not registered any more")
    assert refusals[2][0] == 409
    assert refusals[2][1].startswith(f"what {names[3]} and its ancestors learned from cannot be read")
    assert refusals[3] == (404, f"no such policy: {ROLE}@4")


async def test_recorded_requests_have_their_metadata_and_tools(shared_settings: SharedSettings, bus: Bus) -> None:
    collector = CollectorSettings(shared=shared_settings, linger_s=0.01)
    async with (
        prepared_warehouse(shared_settings) as warehouse,
        running_app(build_collector(collector)),
        coordinating(shared_settings, bus) as workshop,
    ):
        await publish_stored(bus, warehouse, [*captured("a", "one", bus.now()), *captured("b", "one", bus.now())])
        query = {"role": ROLE, "limit": 2}
        recorded = (await workshop.api.get("/v1/replay/requests", params=query)).json()
        none = (await workshop.api.get("/v1/replay/requests", params={"role": "planner"})).json()
    assert sorted(one["metadata"]["name"] for one in recorded["requests"]) == ["a", "b"]
    assert all(one["tools"] == TOOLS for one in recorded["requests"])
    assert (recorded["left_out"], none["requests"]) == ({}, [])
