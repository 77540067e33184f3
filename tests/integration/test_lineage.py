"""From a policy back to the trajectories and people behind it, and the causal chain by event ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import Cause, named_id
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.contract import Feedback, Message, PolicyClaim, Reward, Start, Turn
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.training import Artifacts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import publish_policy
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.ports import free_ports
from ratchet.reward_computer.app import build as build_rewards
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.coordinator import ROLE, Workshop, coordinating, played, stored, tid
from tests.support.messages import turn
from tests.support.preferences import preferred
from tests.support.running import connected, prepared_objects, prepared_warehouse, running, running_app
from tests.support.scoring_engine import ScoringEngine
from tests.support.training import NOON, changed, registered, reward, trajectory


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


def rated(name: str, rater: str) -> Feedback:
    """A rater's thumb up."""
    feedback_id = named_id("feedback", name, rater)
    return Feedback(
        feedback_id=feedback_id, trajectory_id=tid(name), kind="thumbs", at=NOON, role=ROLE, value=True, rater=rater
    )


def facts(*names: str) -> list[Message]:
    """Finished trajectories, the later ones better."""
    return [message for n, name in enumerate(names) for message in played(name, 0.2 * n, seconds=n)]


async def trained(workshop: Workshop, version: int, **body: Any) -> PolicyVersion:
    """Train a policy as far as the registry can see it."""
    asked = await workshop.ask(dataset={"sample_size": 10}, **body)
    dispatch = await workshop.dispatched(asked["training_job_id"])
    await workshop.report(dispatch, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/x.json"))
    job = await workshop.until(asked["training_job_id"], "completed")
    return registered(
        version,
        algorithm="rloo",
        training_job_id=asked["training_job_id"],
        dataset_digest=job["snapshot"]["digest"],
        cause=Cause(event_id=named_id("completed", version), correlation_id=named_id("request", version)),
    )


def announced(trajectory_id: str, at: datetime, version: int = 1) -> Start:
    """A trajectory that a version begins to answer."""
    claim = PolicyClaim(role=ROLE, version=version, digest="d" * 64, arm="stable", weight=0.0)
    return Start(trajectory_id=trajectory_id, timestamp=at, policy=claim, role=ROLE)


async def put(bus: Bus, *policies: PolicyVersion, stable: int | None = None) -> None:
    """Register policies as the deployer does."""
    for policy in policies:
        await Bucket(bus, POLICIES, PolicyVersion).put(f"{ROLE}.{policy.version}", policy)
    served = [ServedPolicy(version=p.version, name=p.name, digest=p.digest) for p in policies if p.version == stable]
    await Bucket(bus, POLICIES, Route).put(ROLE, Route(role=ROLE, stable=served[0] if served else None))


async def lineage(workshop: Workshop, version: int, **query: int) -> dict[str, Any]:
    answer = await workshop.api.get(f"/v1/models/{ROLE}/{version}/lineage", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_policy_is_walked_back_to_its_trajectories_rewards_and_raters(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    opinions = [rated("a", "ann"), rated("b", "ann"), rated("b", "bob")]
    async with (
        stored(shared_settings, bus, [*facts("a", "b", "c"), *opinions]),
        coordinating(shared_settings, bus) as workshop,
    ):
        policy = await trained(workshop, 1)
        await put(bus, policy, stable=1)
        shown = await lineage(workshop, 1, limit=2, offset=1)
        assert shown["missing"] == []
        assert (shown["policy"]["name"], shown["policy"]["stage"]) == (policy.name, "production")
        assert shown["job"]["training_job_id"] == policy.training_job_id
        assert (shown["job"]["algorithm"], shown["job"]["requester"]) == ("rloo", "api")
        assert set(shown["job"]["events"]) == {"request", "dispatch", "completed"}
        assert (shown["snapshot"]["rows"], shown["snapshot"]["format"]) == (3, "trajectories")
        page = shown["trajectories"]
        assert (page["total"], page["offset"]) == (3, 1)
        assert [item["trajectory_id"] for item in page["items"]] == [tid("b"), tid("c")]
        assert page["items"][1]["reward"]["total"] == pytest.approx(0.4)
        assert page["items"][1]["reward"]["event_id"] == named_id("reward", tid("c"), 0)
        (function,) = shown["rewards"]
        assert (function["trajectories"], function["mean"]) == (3, pytest.approx(0.2))
        assert [(one["rater"], one["count"]) for one in shown["feedback"]] == [("ann", 2), ("bob", 1)]
        assert shown["parent"] is None


async def test_what_comes_after_the_snapshot_does_not_change_a_lineage(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    known = [*facts("a", "b"), rated("a", "ann")]
    later = [reward(trajectory(tid("b")), 0.9, revision=1, at=bus.now()), rated("b", "bob")]
    async with coordinating(shared_settings, bus) as workshop:
        async with stored(shared_settings, bus, known):
            await put(bus, await trained(workshop, 1))
        before = await lineage(workshop, 1)
        assert ([one["total"] for one in shown_rewards(before)]) == [0.0, 0.2]
        async with stored(shared_settings, bus, [*known, *later]):
            assert await lineage(workshop, 1) == before


def shown_rewards(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """The rewards of the listed trajectories, the lowest first."""
    return sorted((item["reward"] for item in shown["trajectories"]["items"]), key=lambda one: one["total"])


async def test_parents_are_walked_when_asked_for(shared_settings: SharedSettings, bus: Bus) -> None:
    async with stored(shared_settings, bus, facts("a", "b")), coordinating(shared_settings, bus) as workshop:
        first = await trained(workshop, 1)
        second = await trained(workshop, 2)
        await put(bus, first, changed(second, parent=1), stable=2)
        shown = await lineage(workshop, 2, parents=3)
        assert shown["parent"]["policy"]["name"] == first.name
        assert shown["parent"]["parent"] is None
        assert shown["parent"]["trajectories"]["total"] == 2
        await put(bus, changed(second, parent=9), stable=2)
        assert "support@9 is not registered any more" in (await lineage(workshop, 2, parents=1))["missing"][0]


async def test_missing_parts_of_a_lineage_are_named_and_the_rest_is_shown(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with stored(shared_settings, bus, facts("a")), coordinating(shared_settings, bus) as workshop:
        policy = await trained(workshop, 1)
        await put(bus, policy)
        assert policy.training_job_id is not None
        assert policy.dataset_digest is not None
        await Bucket(bus, JOBS, Job).delete(policy.training_job_id)
        delete(Objects(shared_settings), shared_settings, policy.dataset_digest)
        shown = await lineage(workshop, 1)
        assert shown["missing"] == [f"snapshot {policy.dataset_digest} is not in the object store any more"]
        assert (shown["job"]["from_history"], shown["job"]["algorithm"]) == (True, "rloo")
        assert shown["trajectories"] == {"total": 0, "offset": 0, "items": []}


def delete(objects: Objects, shared: SharedSettings, digest: str) -> None:
    """A lifecycle rule of the store removed a manifest."""
    objects._client.delete_object(Bucket=shared.s3_bucket, Key=f"snapshots/{digest}.json")


async def test_a_policy_of_preferences_is_walked_back_to_them_and_their_raters(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    opinions = [preferred(number, rater="ann" if number else "bob") for number in range(3)]
    async with (
        stored(shared_settings, bus, opinions),
        coordinating(shared_settings, bus, minimum_rows=2) as workshop,
    ):
        await put(bus, await trained(workshop, 1, algorithm="dpo"))
        shown = await lineage(workshop, 1, limit=2)
        assert shown["missing"] == []
        assert (shown["snapshot"]["format"], shown["snapshot"]["raters"]) == ("pairs", {"ann": 2, "bob": 1})
        page = shown["preferences"]
        assert (page["total"], len(page["items"])) == (3, 2)
        assert {item["event_id"] for item in page["items"]} <= {opinion.event_id for opinion in opinions}
        assert {item["source"] for item in page["items"]} == {"human"}
        assert shown["trajectories"]["total"] == 0


TABLES = ("trajectories", "rewards", "training_requests", "training_statuses", "deployments", "rollouts")


@dataclass(frozen=True)
class Stored:
    """An event as the history has it."""

    table: str
    event_id: str
    causation_id: str | None
    correlation_id: str
    body: dict[str, Any]


async def event(warehouse: Warehouse, event_id: str) -> Stored | None:
    """Look an event up by its id alone."""
    for table in TABLES:
        rows = await warehouse.rows(
            f"SELECT event_id, causation_id, correlation_id, body FROM {table} FINAL WHERE event_id = {{id:String}}",
            {"id": event_id},
        )
        if rows:
            return Stored(table, **{**rows[0], "body": json.loads(rows[0]["body"])})
    return None


async def stored_event(warehouse: Warehouse, event_id: str) -> Stored:
    """An event that is stored."""
    stored = await event(warehouse, event_id)
    assert stored is not None, event_id
    return stored


async def walked_back(warehouse: Warehouse, event_id: str) -> list[Stored]:
    """An event and its causes, newest first, as far as they are stored."""
    walked = [await stored_event(warehouse, event_id)]
    while (cause := walked[-1].causation_id) is not None and (before := await event(warehouse, cause)) is not None:
        walked.append(before)
    return walked


@asynccontextmanager
async def deploying(shared: SharedSettings) -> AsyncIterator[None]:
    """The deployer with an engine that loads everything."""
    engine = HttpServer(ScoringEngine().app, "127.0.0.1", 0)
    settings = DeployerSettings(shared=shared, port=free_ports(1)[0], engine_url=f"http://127.0.0.1:{engine.port}")
    async with running(engine), running_app(build_deployer(settings)):
        yield


def policy_of(objects: Objects, job_id: str) -> Artifacts:
    """A policy that a job could have made."""
    manifest = PolicyManifest(
        kind="adapter", base_model="org/model", files=[], role=ROLE, created_at=NOON, training_job_id=job_id
    )
    made = publish_policy(objects, manifest)
    return Artifacts(final_checkpoint=made.uri, digest=made.digest, kind="adapter")


@pytest.mark.timeout(120)
async def test_chain_is_walked_from_a_deployment_to_a_trajectory_by_ids_alone(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    # Ended a while ago by the clock: the reward computer looks at the time that it was stored only.
    played_only = [message for message in played("a", 1.0) if not isinstance(message, Reward)]
    async with (
        prepared_warehouse(shared_settings) as warehouse,
        running_app(build_collector(CollectorSettings(shared=shared_settings, linger_s=0.01))),
        running_app(build_rewards(RewardSettings(shared=shared_settings))),
        deploying(shared_settings),
        coordinating(shared_settings, bus) as workshop,
    ):
        await bus.publish_all(played_only)

        async def rewarded() -> bool:
            return bool(await warehouse.rows("SELECT 1 FROM rewards"))

        await eventually(rewarded)
        asked = await workshop.ask(dataset={"sample_size": 10})
        dispatch = await workshop.dispatched(asked["training_job_id"])
        made = await asyncio.to_thread(policy_of, workshop.objects, asked["training_job_id"])
        await workshop.report(dispatch, "completed", artifacts=made)

        async def promoted() -> str | None:
            rows = await warehouse.rows(
                "SELECT event_id FROM deployments WHERE state = 'promoted'"
                " AND causation_id IN (SELECT event_id FROM rollouts)"
            )
            return rows[0]["event_id"] if rows else None

        walked = await walked_back(warehouse, await eventually(promoted))
        assert [one.table for one in walked] == ["deployments", "rollouts", "deployments", "training_statuses"]
        # A worker that takes a dispatch removes it from its queue: the chain begins with the cause of the dispatch.
        assert walked[-1].causation_id == dispatch.event_id
        request = await stored_event(warehouse, walked[-1].correlation_id)
        assert workshop.causes[dispatch.event_id].correlation_id == request.event_id
        assert (request.table, request.causation_id) == ("training_requests", None)
        assert {one.correlation_id for one in walked} == {request.event_id}
        queued = await warehouse.rows("SELECT causation_id FROM training_statuses WHERE status = 'queued'")
        assert [row["causation_id"] for row in queued] == [request.event_id]

        shown = await lineage(workshop, walked[0].body["policy_version"])
        ends = {"request": request.event_id, "dispatch": dispatch.event_id, "completed": walked[-1].event_id}
        assert shown["job"]["events"] == ends
        assert [announcement["event_id"] for announcement in shown["announcements"]] == [
            one.event_id for one in reversed(walked[:3])
        ]
        assert request.body["training_job_id"] == asked["training_job_id"]
        await check_trajectory_and_reward(warehouse, shown)


async def check_trajectory_and_reward(warehouse: Warehouse, shown: dict[str, Any]) -> None:
    """The only trajectory of a lineage is stored, and caused its reward."""
    (item,) = shown["trajectories"]["items"]
    reward = await stored_event(warehouse, item["reward"]["event_id"])
    trajectory = await stored_event(warehouse, item["event_id"])
    assert (reward.causation_id, reward.correlation_id) == (trajectory.event_id, trajectory.correlation_id)
    assert trajectory.body["trajectory_id"] == tid("a")


async def test_an_unknown_policy_is_one_line(shared_settings: SharedSettings, bus: Bus) -> None:
    async with coordinating(shared_settings, bus) as workshop:
        for path in (f"{ROLE}/7/lineage", f"{ROLE}/7", "no_such_role"):
            answer = await workshop.api.get(f"/v1/models/{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]["message"].startswith("no such ")


async def test_the_registry_lists_and_filters_versions(shared_settings: SharedSettings, bus: Bus) -> None:
    async with stored(shared_settings, bus, facts("a")), coordinating(shared_settings, bus) as workshop:
        first = await trained(workshop, 1)
        second = await trained(workshop, 2)
        waiting = await workshop.ask()
        await put(bus, first, second, stable=1)
        models = (await workshop.api.get("/v1/models", params={"stage": "staging"})).json()["models"]
        assert [(model["version"], model["status"], model["state"]) for model in models] == [
            (2, "pending", "registered")
        ]
        models = (await workshop.api.get("/v1/models", params={"algorithm": "dpo"})).json()["models"]
        assert models == []
        role = (await workshop.api.get(f"/v1/models/{ROLE}")).json()
        assert (role["production"], [model["version"] for model in role["versions"]]) == (first.name, [1, 2])
        assert [(job["training_job_id"], job["algorithm"]) for job in role["training"]] == [
            (waiting["training_job_id"], "rloo")
        ]


async def test_costs_of_a_policys_trajectories_sum_their_calls(shared_settings: SharedSettings, bus: Bus) -> None:
    """The newest first; a failed call without a price costs nothing, another one leaves the cost unknown."""
    began = bus.now() - timedelta(hours=12)
    stable = PolicyClaim(role=ROLE, version=1, digest="a" * 64, arm="stable", weight=0.0)

    def called(name: str, minutes: float, index: int, cost_usd: float | None, **changes: Any) -> Turn:
        at = began + timedelta(minutes=minutes)
        plain: dict[str, Any] = {"role": ROLE, "policy": stable, "timestamp": at, "cost_usd": cost_usd}
        return turn(name, index, **(plain | changes))

    other = msgspec.structs.replace(stable, version=2)
    as_sent = msgspec.structs.replace(stable, version=0, digest="")
    facts: list[Message] = [
        called("retried", 0, 0, 0.25),
        called("retried", 1, 1, None, error="engine away", response=None),
        called("retried", 2, 2, 0.5),
        called("retried", 7 * 60, 3, 4.0),
        called("unpriced", 10, 0, 0.25),
        called("unpriced", 11, 1, None),
        called("free", 20, 0, 0.0),
        called("young", 12 * 60 - 5, 0, 1.0),
        called("of another policy", 30, 0, 1.0, policy=other),
        called("before any policy", 30, 0, 2.0, policy=as_sent),
        called("of an evaluation", 30, 0, 1.0, policy=msgspec.structs.replace(stable, arm="pinned")),
    ]
    async with prepared_warehouse(shared_settings) as warehouse, coordinating(shared_settings, bus) as workshop:
        async with running_app(build_collector(CollectorSettings(shared=shared_settings, linger_s=0.01))):
            await bus.publish_all(facts)

            async def all_there() -> bool:
                rows = await warehouse.rows("SELECT uniqExact(event_id) AS n FROM turns")
                return rows[0]["n"] == len(facts)

            await eventually(all_there)
        await put(bus, registered(0, stage="archived"), registered(1, stage="stable"), stable=1)
        path = f"/v1/models/{ROLE}/1/costs"
        costs = (await workshop.api.get(path)).json()
        assert costs.get("costs_usd") == [0.0, None, 0.75], costs
        assert (await workshop.api.get(path, params={"limit": 1})).json()["costs_usd"] == [0.0]
        assert (await workshop.api.get(f"/v1/models/{ROLE}/0/costs")).json()["costs_usd"] == [2.0]


async def test_outcome_times_are_measured_from_start_to_the_first_known_outcome(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    began = bus.now() - timedelta(hours=12)
    policy = registered(1, stage="stable")
    facts: list[Message] = []
    for number, minutes in enumerate((5, 20, 600)):
        named = trajectory(tid(f"t{number}"), at=began)
        facts.append(announced(named.trajectory_id, began + timedelta(seconds=number)))
        facts.append(reward(named, 1.0, at=began + timedelta(minutes=minutes, seconds=number)))
        facts.append(reward(named, 0.0, revision=1, at=began + timedelta(minutes=minutes + 60)))
    unknown = msgspec.structs.replace(reward(trajectory(tid("u")), 0.5, at=began), reward_components={})
    facts += [announced(tid("u"), began), unknown, announced(tid("other"), began, version=2)]
    async with prepared_warehouse(shared_settings) as warehouse, coordinating(shared_settings, bus) as workshop:
        async with running_app(build_collector(CollectorSettings(shared=shared_settings, linger_s=0.01))):
            await bus.publish_all(facts)

            async def all_there() -> bool:
                rows = await warehouse.rows("SELECT (SELECT count() FROM starts) + (SELECT count() FROM rewards) AS n")
                return rows[0]["n"] == len(facts)

            await eventually(all_there)
        await put(bus, policy, stable=1)
        path = f"/v1/models/{ROLE}/1/outcome-times"
        outcomes = (await workshop.api.get(path, params={"within_s": 3600})).json()
        assert outcomes.get("seconds") == [1200.0, 300.0], outcomes
        assert (await workshop.api.get(path, params={"limit": 1})).json()["seconds"] == [1200.0]
        young = (await workshop.api.get(path, params={"within_s": 13 * 3600})).json()
        assert young["seconds"] == [], "what started less than `within_s` ago may still come to its outcome"
        assert (await workshop.api.get(f"/v1/models/{ROLE}/7/outcome-times")).status_code == 404
