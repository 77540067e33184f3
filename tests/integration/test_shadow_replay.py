"""Shadow replay on the real servers: logged prompts, a gateway with a scripted engine, an evaluator as a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.contract import Message, PolicyClaim, Start
from ratchet.contract.state import POLICIES, ROLLOUTS, PolicyVersion, Route
from ratchet.contract.training import Artifacts
from ratchet.contract.trajectory import TaskContext
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local_stack.ports import free_ports
from ratchet.service.http import HttpServer
from ratchet.service.settings import SharedSettings
from ratchet.stores.warehouse import Warehouse
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.canary_traffic import SmallEngine
from tests.support.canary_world import ROLE, policy, served
from tests.support.coordinator import Workshop, coordinating, tid
from tests.support.fake_engine import FakeEngine, serving
from tests.support.running import connected, migrated, prepared_objects, running, running_app
from tests.support.training import NOON, conversation, reward, trajectory

HELDOUT = "import json\nfor n in range(400): print(json.dumps({'task': str(n), 'success': True}))"
EVALUATOR = """
import json, sys
for line in sys.stdin:
    one = json.loads(line)
    calls = one["answer"].get("tool_calls") or []
    good = [call["function"]["name"] for call in calls] == ["look_up"]
    print(json.dumps({"task": one["task"], "success": good, "score": float(good)}))
"""
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
FRESH = 16
DEAD = "http://127.0.0.1:9"


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with connected(shared_settings) as bus:
        yield bus


def captured(name: str, task: str, at: datetime) -> list[Message]:
    """A trajectory of two calls with tools, as the gateway has captured it, and its reward."""
    claim = PolicyClaim(role=ROLE, version=1, digest=served(1).digest, arm="stable", weight=0.0)
    turns, _ = conversation(tid(name), [3, 3], policy=claim, timestamp=at, tools=TOOLS, tools_digest="a" * 64)
    context = TaskContext(task_id=task, instructions="Help.")
    told = trajectory(tid(name), turns=turns, at=at, task_context=context)
    return [*turns, told, reward(told, 1.0, at=at)]


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
    """Trajectories of tasks of their own, announced, and one more of a task that was learned from."""
    facts: list[Message] = []
    for number in range(count):
        claim = PolicyClaim(role=ROLE, version=1, digest=served(1).digest, arm="stable", weight=0.0)
        facts.append(Start(trajectory_id=tid(f"fresh {number}"), timestamp=at, policy=claim, role=ROLE))
        facts += captured(f"fresh {number}", f"task {number}", at)
    return [*facts, *captured("again", "learned", at)]


@asynccontextmanager
async def deploying(shared: SharedSettings, tmp_path: Path, gateway: str, coordinator: str) -> AsyncIterator[None]:
    """A deployer to which every rollout is too long."""
    engine = HttpServer(SmallEngine().app, "127.0.0.1", 0)
    async with running(engine):
        settings = DeployerSettings(
            shared=shared.model_copy(update={"data_dir": tmp_path / "deployer"}),
            port=free_ports(1)[0],
            engine_url=f"http://127.0.0.1:{engine.port}",
            gateway_url=gateway,
            coordinator_url=coordinator,
            heldout_command=shlex.join([sys.executable, "-c", HELDOUT]),
            replay_command=shlex.join([sys.executable, "-c", EVALUATOR]),
            replay_prompts=50,
            replay_min_prompts=10,
            longest_days=0.001,
            tick_s=0.1,
        )
        async with running_app(build_deployer(settings)):
            yield


async def candidate(bus: Bus, version: int, digest: str) -> None:
    made = policy(version, parent=1, dataset_digest=digest)
    await bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.{version}", made)


async def rollout_of(bus: Bus, version: int, state: str) -> Rollout:
    """The rollout of a version, once it is in this state."""

    async def reached() -> Rollout | None:
        entry = await bus.bucket(ROLLOUTS, Rollout).get(ROLE)
        found = entry.value if entry else None
        return found if found and (found.candidate.version, found.state) == (version, state) else None

    return await eventually(reached, 120)


async def assembled_replays(warehouse: Warehouse, number: int) -> list[str]:
    """The trajectories of so many replayed calls, once the collector has taken them for silent ones."""

    async def there() -> list[str] | None:
        rows = await warehouse.rows("SELECT DISTINCT trajectory_id FROM trajectories WHERE arm = 'pinned'")
        return [row["trajectory_id"] for row in rows] if len(rows) == number else None

    return await eventually(there, 60)


def answered(rollout: Rollout) -> tuple[str, dict[str, Any]]:
    """Outcome and evidence of the shadow replay."""
    (found,) = [result for result in rollout.gates if result.gate == "shadow_replay"]
    return found.outcome, found.evidence


@pytest.mark.timeout(500)
async def test_a_candidate_with_little_traffic_is_replayed_and_begins_higher_or_asks_a_person(
    shared_settings: SharedSettings, bus: Bus, tmp_path: Path
) -> None:
    engine = FakeEngine(resident={served(version).name for version in (1, 2, 3, 4)})
    engine.messages = {
        served(1).name: {"role": "assistant", "content": "I do not know."},
        served(3).name: {"role": "assistant", "content": "No."},
        served(4).name: calling("look_up"),
    }
    await bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.1", policy(1, stage="stable", training_job_id=None))
    await bus.bucket(POLICIES, Route).put(ROLE, Route(role=ROLE, stable=served(1), next_version=5))
    async with (
        migrated(shared_settings) as warehouse,
        running_app(
            build_collector(CollectorSettings(shared=shared_settings, linger_s=0.01, idle_s=2, idle_interval_s=0.2))
        ),
        coordinating(shared_settings, bus) as workshop,
        serving(engine) as engine_url,
        running_app(build_gateway(GatewaySettings(shared=shared_settings, port=0, engine_url=engine_url))) as gateway,
    ):
        await publish_stored(bus, warehouse, [*captured("a", "learned", NOON), *captured("b", "old", NOON)])
        digest = await snapshot(workshop)
        await publish_stored(bus, warehouse, [*captured("late", "other", NOON), *fresh(FRESH, bus.now())])
        url = f"http://127.0.0.1:{gateway.components[-1].port}"  # type: ignore[attr-defined]

        await candidate(bus, 2, digest)
        async with deploying(shared_settings, tmp_path, url, DEAD):
            waiting = await rollout_of(bus, 2, "awaiting_approval")
        assert answered(waiting)[0] == "not_run"
        assert "shadow_replay: the coordinator does not answer" in waiting.reason
        assert engine.asked == []

        engine.messages[served(1).name] = calling("look_up")
        await candidate(bus, 3, digest)
        async with deploying(shared_settings, tmp_path, url, str(workshop.api.base_url)):
            worse = await rollout_of(bus, 3, "awaiting_approval")
            outcome, evidence = answered(worse)
            assert (outcome, evidence["difference"], evidence["prompts"]) == ("failed", -1.0, FRESH)
            assert evidence["left_out"] == {"group_of_lineage": 1, "older_than_snapshot": 1}
            assert "shadow_replay: replay, not traffic: difference -1.000" in worse.reason

        engine.messages[served(1).name] = {"role": "assistant", "content": "I do not know."}
        engine.asked.clear()
        await candidate(bus, 4, digest)
        async with deploying(shared_settings, tmp_path, url, str(workshop.api.base_url)):
            better = await rollout_of(bus, 4, "running")
            outcome, evidence = answered(better)
            assert (outcome, evidence["difference"], better.weight) == ("passed", 1.0, 0.25)
            assert "replay, not traffic" in better.reason
            assert better.horizon is not None
            assert better.horizon.basis.startswith("the setting: 0 of 100 outcomes")

        by_policy = [body["model"] for body in engine.asked]
        assert {name: by_policy.count(name) for name in by_policy} == {served(1).name: FRESH, served(4).name: FRESH}
        assert all(body["messages"][-1]["role"] == "user" for body in engine.asked), "no tool's result is told"
        assert all((body["tools"], body["temperature"]) == (TOOLS, 0.7) for body in engine.asked)

        replays = await assembled_replays(warehouse, 4 * FRESH)
        rewards = [reward(trajectory(name), 1.0, at=bus.now()) for name in replays]
        await publish_stored(bus, warehouse, rewards)
        await check_replays_are_left_out(workshop, len(replays))


async def check_replays_are_left_out(workshop: Workshop, number: int) -> None:
    """What a replay asked is replayed by none, hides nothing of what agents asked, and trains nothing."""
    query = {"role": ROLE, "version": 4}
    again = (await workshop.api.get("/v1/replay/prompts", params=query)).json()
    assert (len(again["prompts"]), again["lineage"]) == (FRESH, [4, 1])
    assert again["left_out"]["mixed_or_pinned"] == number
    few = (await workshop.api.get("/v1/replay/prompts", params=query | {"limit": 2})).json()
    assert len(few["prompts"]) == 2, "however many replays are newer than what agents asked"
    wanted = {"algorithm": "sft", "base_model": "org/model", "role": ROLE, "dataset": {"sample_size": 1000}}
    preview = (await workshop.api.post("/v1/jobs/preview", json=wanted)).json()
    assert preview["left_out"]["mixed_or_pinned"] == number


async def test_prompts_are_refused_where_nobody_knows_what_the_lineage_learned(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with migrated(shared_settings), coordinating(shared_settings, bus) as workshop:
        for made in (policy(1), policy(2, parent=7, dataset_digest="d" * 64), policy(3, dataset_digest="d" * 64)):
            await bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.{made.version}", made)
        told = [
            (answer.status_code, answer.json()["error"]["message"])
            for version in (1, 2, 3, 4)
            for answer in [await workshop.api.get("/v1/replay/prompts", params={"role": ROLE, "version": version})]
        ]
        name = [policy(version).name for version in range(4)]
        assert told[0] == (409, f"nothing says which snapshot {name[1]} was trained on")
        assert told[1] == (409, f"{name[2]} continues version 7, which is not registered any more")
        assert told[2][0] == 409
        assert told[2][1].startswith(f"what {name[3]} and its ancestors learned from cannot be read")
        assert told[3] == (404, f"no such policy: {ROLE}@4")
