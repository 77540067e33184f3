"""The coordinator on real servers: from rows to a dispatched snapshot, and every interruption on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Done
from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.client.operations import Operations
from ratchet.core.contract import Alert, TrainingDispatch, TrainingStatus, Trajectory
from ratchet.core.contract.reward import RewardComponent
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion
from ratchet.core.contract.training import (
    Artifacts,
    Dataset,
    DatasetFilter,
    Hyperparameters,
    Progress,
    ResourceUsage,
    SnapshotRef,
    TrainingError,
)
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.errors import Unavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.consuming import consuming
from tests.support.coordinator import QUICK, ROLE, coordinating, played, stored, tid
from tests.support.preferences import preferred
from tests.support.running import connected, prepared_objects, prepared_warehouse, running
from tests.support.servers import running_s3
from tests.support.stored_values import check_buckets, check_objects
from tests.support.training import (
    after,
    changed,
    config,
    conversation,
    job,
    promote,
    registered,
    request,
    reward,
    trajectory,
)


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


async def test_a_stream_is_trained_on_as_far_as_it_still_holds_what_is_stored(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    facts = [*played("dropped", 0.2, seconds=1, task="a"), *played("held", 0.8, seconds=2, task="a")]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        held = await bus.extent("RL_TRAJECTORIES")
        await bus.nc.jetstream().purge_stream("RL_TRAJECTORIES", seq=held.last)  # all before
        rows: dict[str, int] = {}
        for source in ("clickhouse", "nats_stream"):
            asked = {"role": ROLE, "algorithm": "sft", "base_model": "org/model", "dataset": {"source": source}}
            rows[source] = (await workshop.api.post("/v1/jobs/preview", json=asked)).json()["rows"]
        assert rows == {"clickhouse": 2, "nats_stream": 1}
        other = asked | {"dataset": {"source": "nats_stream", "stream_name": "RL_REWARDS"}}
        assert (await workshop.api.post("/v1/jobs/preview", json=other)).status_code == 422


async def test_rows_become_a_snapshot_and_a_dispatch(shared_settings: SharedSettings, bus: Bus) -> None:
    *second, rewarded = played("second", 0.8, seconds=2, task="a")
    liked = {"reward_model": RewardComponent(score=0.9, weight=0.0, source="automated")}
    facts = [
        *played("first", 0.2, seconds=1, task="a"),
        *[*second, msgspec.structs.replace(rewarded, reward_components=liked)],
        *played("evaluated", 1.0, seconds=3, arm="pinned"),
        *played("poor", 0.1, seconds=4, task="b"),
    ]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        asked = await workshop.ask(dataset={"sample_size": 10, "filter": {"min_reward": 0.15}})
        dispatch = await workshop.dispatched(asked["training_job_id"])
        job = await workshop.job(asked["training_job_id"])
        assert (job["state"], job["trajectories"], job["attempt"]) == ("dispatched", 2, 1)
        resolved = dispatch.request.training_config
        assert resolved.base_model == "org/model"
        assert resolved.dataset.snapshot is not None
        manifest, rows = workshop.rows(resolved.dataset.snapshot.uri, resolved.dataset.snapshot.digest)
        assert manifest["trajectories"] == [tid("first"), tid("second")]
        assert manifest["left_out"] == {"mixed_or_pinned": 1, "below_min_reward": 1}
        assert manifest["filters"] == {"min_reward": 0.15}
        assert manifest["watermarks"] == {"RL_TRAJECTORIES": 4, "RL_REWARDS": 4, "RL_TURNS": 8}
        assert [(row["raw_reward"], row["model_score"]) for row in rows] == [(0.2, None), (0.8, 0.9)]
        assert [row["task_key"] for row in rows] == ["a", "a"]
        assert [row["success"] for row in rows] == [False, True]
        assert rows[0]["baseline"] is None
        assert rows[1]["baseline"] == pytest.approx(0.2)
        _, prompts = conversation(tid("first"), [3, 3])
        assert rows[0]["token_ids"] == [*prompts[-1], 101, 201]
        assert [span["begin"] for span in json.loads(rows[0]["spans"])] == [len(prompt) for prompt in prompts]
        assert rows[0]["logprobs"] == [-0.5, -0.25] * 2
        assert json.loads(rows[0]["messages"])[-1]["content"] == "answer 1"
        assert {"job.v1", "cursor.v1"} <= await check_buckets(bus, "jobs", "coordinator")
        stored_objects = await asyncio.to_thread(check_objects, workshop.objects, "snapshots")
        assert stored_objects == {"snapshot.manifest.v1", "trajectory.row.v1"}


async def test_job_continues_from_stable_without_its_lineages_data(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [*played("old", 0.2, seconds=1), *played("new", 0.8, seconds=2)]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        first = await workshop.ask(dataset={"sample_size": 10, "filter": {"date_range": {"end": after(2).isoformat()}}})
        dispatch = await workshop.dispatched(first["training_job_id"])
        snapshot = dispatch.request.training_config.dataset.snapshot
        assert snapshot is not None
        await workshop.report(dispatch, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/x.json"))
        await workshop.until(first["training_job_id"], "completed")
        await promote(bus, registered(1, stage="stable", dataset_digest=snapshot.digest))

        second = await workshop.ask(base_model="stable", dataset={"sample_size": 10})
        dispatch = await workshop.dispatched(second["training_job_id"])
        resolved = dispatch.request.training_config
        assert (dispatch.parent, resolved.base_model) == ("support@1-dddddddd", "s3://b/policies/1.json")
        assert resolved.dataset.snapshot is not None
        manifest, _ = workshop.rows(resolved.dataset.snapshot.uri, resolved.dataset.snapshot.digest)
        assert manifest["trajectories"] == [tid("new")]
        assert manifest["left_out"] == {"consumed_by_lineage": 1}
        assert manifest["parent_policy"] == "support@1-dddddddd"


async def test_a_stable_policy_is_a_model_in_production(shared_settings: SharedSettings, bus: Bus) -> None:
    async with coordinating(shared_settings, bus) as workshop:
        await promote(bus, registered(1, stage="stable"))
        models = (await workshop.api.get("/v1/models", params={"role": ROLE})).json()["models"]
        assert [model["name"] for model in models] == ["support@1-dddddddd"]
        model = (await workshop.api.get("/v1/models/support/1")).json()
        assert (model["stage"], model["state"], model["status"]) == ("production", "stable", "ready")
        assert (await workshop.api.get("/v1/models/support/9")).status_code == 404


async def test_tries_that_are_mostly_rewarded_alike_are_refused_at_once(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    facts = [
        fact
        for group in range(3)
        for number in range(4)
        for fact in played(f"{group} {number}", float(group > 0 or number > 0), task=f"task {group}")
    ]
    async with (
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, minimum_rows=8) as workshop,
    ):
        asked = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE}
        refused = await workshop.api.post("/v1/jobs", json=asked)
        assert refused.status_code == 409
        assert refused.json()["error"]["message"].startswith(
            f"only 4 of 12 chosen trajectories of role {ROLE} can teach rloo, which needs at least 8"
        )
        lifted = {**asked, "hyperparameters": {"advantage_floor": 0.1}}
        assert (await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=lifted)).status_code == 200


@pytest.mark.parametrize(("reward_of_all", "floor"), [(0.0, 0.1), (1.0, 0.0)])
async def test_floor_that_lifts_no_tries_changes_nothing(
    shared_settings: SharedSettings, bus: Bus, reward_of_all: float, floor: float
) -> None:
    facts = [fact for n in range(8) for fact in played(f"{n}", reward_of_all, task=f"task {n // 4}")]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, minimum_rows=8) as workshop:
        hyper = {"advantage_floor": floor}
        asked = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE, "hyperparameters": hyper}
        refused = await workshop.api.post("/v1/jobs", json=asked)
        assert (refused.status_code, "only 0 of 8 chosen" in refused.text) == (409, True)


@pytest.mark.parametrize(("algorithm", "longest"), [("rloo", 1), ("sft", 6)])
async def test_ramp_without_end_is_refused_at_once(
    shared_settings: SharedSettings, bus: Bus, algorithm: str, longest: int
) -> None:
    """Sft makes up to one row of each turn: two batches of 16 in each of three epochs."""
    facts = [fact for n in range(12) for fact in played(f"{n}", float(n % 2), task=f"task {n // 4}")]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, minimum_rows=8) as workshop:
        hyper = {"warmup_steps": longest + 1} | ({"advantage_floor": 0.1} if algorithm == "rloo" else {})
        asked = {"algorithm": algorithm, "base_model": "org/model", "role": ROLE, "hyperparameters": hyper}
        refused = await workshop.api.post("/v1/jobs", json=asked)
        assert refused.status_code == 409
        assert f"is no less than the {longest} train step" in refused.json()["error"]["message"]


@pytest.mark.parametrize("algorithm", ["rloo", "sft"])
async def test_hold_out_counts_for_a_ramp_and_for_what_can_teach(
    shared_settings: SharedSettings, bus: Bus, algorithm: str
) -> None:
    """Four tasks of four tries, of which a quarter is held out: three batches of four, two turns a try."""
    facts = [fact for n in range(16) for fact in played(f"{n}", float(n % 4 > n // 12), task=f"task {n // 4}")]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, minimum_rows=8) as workshop:
        rows = 4 if algorithm == "rloo" else 8
        hyper = {"warmup_steps": 3, "batch_size": rows, "epochs": 1}
        asked = {"algorithm": algorithm, "base_model": "org/model", "role": ROLE, "hyperparameters": hyper}
        held = {**asked, "evaluation": {"holdout_size": 0.25}}
        assert (await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=asked)).status_code == 200
        refused = await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=held)
        assert (refused.status_code, "is no less than the 3 train steps" in refused.text) == (409, True)
        one = {**held, "evaluation": {"holdout_size": 0.1}}
        refused = await workshop.api.post("/v1/jobs/preview", json=one)
        assert "holds out none of 16 rewarded trajectories" in refused.json()["refused"]


async def test_one_train_step_is_warned_of_when_it_is_asked_for(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [fact for n in range(12) for fact in played(f"{n}", float(n % 2), task=f"task {n // 4}")]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, minimum_rows=8) as workshop:
        job = await workshop.ask()
        assert job["findings"][0].startswith("This training has 1 train step")
        dispatched = await workshop.dispatched(job["training_job_id"])
        assert (await workshop.api.get(f"/v1/jobs/{dispatched.training_job_id}")).json()["findings"] == job["findings"]
        more = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE, "hyperparameters": {"batch_size": 4}}
        (twin,) = (await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=more)).json()["findings"]
        assert twin.startswith(f"Job {job['training_job_id']} of {ROLE} is dispatched and asks for the same data")
        other = {**more, "algorithm": "sft"}
        answer = await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=other)
        assert (answer.status_code, answer.json()["findings"]) == (200, None)


async def test_job_that_nothing_can_teach_is_refused_at_once_with_the_reason(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    run = trajectory(tid("text only"))
    async with stored(shared_settings, bus, [run, reward(run, 1.0)]), coordinating(shared_settings, bus) as workshop:
        asked = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE}
        refused = await workshop.api.post("/v1/jobs", json=asked)
        message = refused.json()["error"]["message"]
        assert refused.status_code == 409
        assert message == "none of 1 rewarded trajectories of role support can be used by rloo: no_trainable_call 1"
        assert (await workshop.api.get("/v1/jobs")).json()["total"] == 0
        text = await workshop.ask(algorithm="sft")
        assert (await workshop.dispatched(text["training_job_id"])).request.training_config.algorithm == "sft"


async def test_the_same_request_twice_is_one_job(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = played("one", 0.5)
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        first = await workshop.ask(idempotency_key="nightly")
        again = await workshop.api.post(
            "/v1/jobs", json={"algorithm": "rloo", "role": ROLE, "idempotency_key": "nightly"}
        )
        assert (again.status_code, again.json()["training_job_id"]) == (200, first["training_job_id"])
        await bus.publish(request("other id", idempotency_key="nightly"))
        await bus.publish(request("from the bus"))
        await bus.publish(changed(request("from the bus"), requester="another requester"))

        async def known() -> list[dict[str, Any]]:
            jobs = (await workshop.api.get("/v1/jobs")).json()["jobs"]
            return jobs if len(jobs) == 2 else []

        await eventually(known)
        await workshop.dispatched(first["training_job_id"])
        assert len(await known()) == 2


async def test_a_silent_worker_loses_its_job_and_is_fenced_off(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = played("one", 0.5)
    async with (
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, lease_s=0.6) as workshop,
    ):
        asked = await workshop.ask()
        first = await workshop.dispatched(asked["training_job_id"])
        await workshop.report(
            first,
            "running",
            progress=Progress(current_step=7),
            artifacts=Artifacts(checkpoint="s3://b/checkpoints/7.json"),
        )
        second = await workshop.dispatched(asked["training_job_id"], attempt=2)
        assert second.resume_from == "s3://b/checkpoints/7.json"
        assert second.request.training_config.dataset.snapshot == first.request.training_config.dataset.snapshot
        await workshop.report(first, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/stale.json"))
        await workshop.report(second, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/good.json"))
        done = await workshop.until(asked["training_job_id"], "completed")
        assert (done["attempt"], done["artifacts"]["final_checkpoint"]) == (2, "s3://b/policies/good.json")


async def test_dispatch_that_no_worker_takes_frees_its_slot_and_fences_it_off(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    """The first job's dispatches are taken off the work queue and lost, as a dead letter or an aged-out one is."""
    facts = played("one", 0.5)
    async with (
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, replace(QUICK, claim_s=0.4)) as workshop,
        prepared_warehouse(shared_settings) as warehouse,
    ):
        lost = (await workshop.ask())["training_job_id"]
        first = await workshop.dispatched(lost)
        other = await workshop.dispatched((await workshop.ask(notes="other"))["training_job_id"])
        await workshop.report(other, "running")
        waiting = await workshop.until(lost, "queued")
        assert waiting["error"]["message"].startswith("no worker of pool default took attempt")
        assert waiting["unclaimed"] == waiting["attempt"] - 1 > 1
        await workshop.report(other, "completed")
        late = first

        async def claimed() -> TrainingDispatch | None:
            """The newest attempt, once a worker has it: the next one may begin before its report has come."""
            newest = await workshop.dispatched(lost, (await workshop.job(lost))["attempt"])
            await workshop.report(newest, "running")
            job = await workshop.job(lost)
            return newest if (job["state"], job["attempt"]) == ("running", newest.attempt) else None

        third = await eventually(claimed)
        assert third.request.training_config.dataset.snapshot == first.request.training_config.dataset.snapshot
        used = ResourceUsage(cost_usd=1.5, gpu_hours=0.5)
        await workshop.report(third, "running", resource_usage=used)
        await workshop.report(late, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/stale.json"))
        await workshop.report(third, "completed", artifacts=Artifacts(final_checkpoint="s3://b/policies/good.json"))
        done = await workshop.until(lost, "completed")
        assert done["artifacts"]["final_checkpoint"] == "s3://b/policies/good.json"
        assert done["resource_usage"] == {"cost_usd": 1.5, "gpu_hours": 0.5}

        async def costs() -> list[dict[str, Any]]:
            sql = "SELECT attempts, cost_usd, gpu_hours FROM training_costs WHERE training_job_id = {job:String}"
            return await warehouse.rows(sql, {"job": lost})

        assert await eventually(costs) == [{"attempts": 1, "cost_usd": 1.5, "gpu_hours": 0.5}]


async def test_a_queued_job_is_cancelled_at_once_and_a_running_one_by_its_worker(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    facts = played("one", 0.5)
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        at_work = await workshop.ask()
        dispatch = await workshop.dispatched(at_work["training_job_id"])
        await workshop.report(dispatch, "running")
        await workshop.until(at_work["training_job_id"], "running")
        waiting = await workshop.ask()
        cancelled = await workshop.api.post(f"/v1/jobs/{waiting['training_job_id']}/cancel")
        assert cancelled.json()["state"] == "cancelled"
        asked = await workshop.api.post(f"/v1/jobs/{at_work['training_job_id']}/cancel")
        assert (asked.json()["state"], asked.json()["cancel_requested"]) == ("running", True)
        stored_job = await Bucket(bus, JOBS, Job).get(at_work["training_job_id"])
        assert stored_job is not None
        assert stored_job.value.cancel_requested
        at_once = await workshop.api.post(f"/v1/jobs/{at_work['training_job_id']}/cancel?now=true")
        assert at_once.json()["cancel_now"]
        early = await workshop.api.post(f"/v1/jobs/{at_work['training_job_id']}/resume")
        assert (early.status_code, "is running" in early.json()["error"]["message"]) == (409, True)
        kept = workshop.objects.put(b"{}", "checkpoints", ".json").uri
        await workshop.report(dispatch, "cancelled", stopping="now", artifacts=Artifacts(checkpoint=kept))
        await workshop.until(at_work["training_job_id"], "cancelled")
        again = await workshop.api.post(f"/v1/jobs/{at_work['training_job_id']}/cancel")
        assert again.status_code == 200
        resumed = await workshop.api.post(f"/v1/jobs/{at_work['training_job_id']}/resume")
        assert (resumed.json()["state"], resumed.json()["attempt"]) == ("queued", 2)
        second = await workshop.dispatched(at_work["training_job_id"], attempt=2)
        assert second.resume_from == kept
        unknown = await workshop.api.post(f"/v1/jobs/{named_id('nothing')}/cancel")
        assert (unknown.status_code, "no such job" in unknown.json()["error"]["message"]) == (404, True)


async def test_a_restart_keeps_everything(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = played("one", 0.5)
    async with stored(shared_settings, bus, facts):
        async with coordinating(shared_settings, bus) as workshop:
            at_work = await workshop.ask()
            dispatch = await workshop.dispatched(at_work["training_job_id"])
            await workshop.report(dispatch, "running", progress=Progress(current_step=1))
            await workshop.until(at_work["training_job_id"], "running")
            waiting = await workshop.ask(idempotency_key="later")
        await workshop.report(dispatch, "running", progress=Progress(current_step=2))
        async with coordinating(shared_settings, bus) as workshop:
            again = await workshop.ask(idempotency_key="later")
            assert again["training_job_id"] == waiting["training_job_id"]

            async def further() -> bool:
                return (await workshop.job(at_work["training_job_id"]))["progress"] == {"current_step": 2}

            await eventually(further)
            await workshop.report(dispatch, "completed")
            assert (await workshop.dispatched(waiting["training_job_id"])).attempt == 1
            assert workshop.dispatches == [await workshop.dispatched(waiting["training_job_id"])]


async def test_every_state_of_a_job_is_published_once(shared_settings: SharedSettings, bus: Bus) -> None:
    published: list[tuple[str, int, str]] = []
    alerts: list[Alert] = []

    async def record_alert(batch: Sequence[Received[Alert]]) -> list[Done]:
        alerts.extend(received.message for received in batch)
        return [Done() for _ in batch]

    async def record_status(batch: Sequence[Received[TrainingStatus]]) -> list[Done]:
        published.extend((r.message.training_job_id, r.message.attempt, r.message.status) for r in batch)
        return [Done() for _ in batch]

    facts = played("one", 0.5)
    async with (
        stored(shared_settings, bus, facts),
        running(consuming(bus, {TrainingStatus: record_status}, "ears")),
        running(consuming(bus, {Alert: record_alert}, "pager")),
        coordinating(shared_settings, bus) as workshop,
    ):
        asked = await workshop.ask()
        job_id = asked["training_job_id"]
        first = await workshop.dispatched(job_id)
        await workshop.report(first, "running")
        await workshop.report(first, "failed", error=TrainingError(code="UNKNOWN", message="lost"))
        second = await workshop.dispatched(job_id, attempt=2)
        await workshop.report(second, "failed", error=TrainingError(code="DATA", message="bad"))
        await workshop.until(job_id, "failed")

        async def five() -> bool:
            return len(published) == 5

        await eventually(five)
        assert published == [
            (job_id, 1, "queued"),
            (job_id, 1, "running"),
            (job_id, 1, "failed"),
            (job_id, 2, "queued"),
            (job_id, 2, "failed"),
        ]

        async def alerted() -> bool:
            return len(alerts) == 1

        await eventually(alerted)
        assert alerts[0].summary == "training of role support (rloo) failed with DATA after 2 attempts: bad"


async def test_a_job_waits_while_the_object_store_is_away(
    shared_settings: SharedSettings, bus: Bus, tmp_path: Path
) -> None:
    async with stored(shared_settings, bus, played("one", 0.5)):
        with running_s3(tmp_path) as store:
            elsewhere = shared_settings.model_copy(update={"s3_endpoint": store.url})
            store.kill()
            async with coordinating(elsewhere, bus) as workshop:
                asked = await workshop.ask()

                async def noticed() -> bool:
                    return "objects" in (await workshop.api.get("/health")).json()["reasons"]

                await eventually(noticed)
                assert (await workshop.job(asked["training_job_id"]))["state"] == "queued"
                store.start()
                await asyncio.to_thread(prepared_objects, elsewhere)
                await workshop.dispatched(asked["training_job_id"])


async def test_the_threshold_starts_one_training_per_role(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [message for n in range(6) for message in played(f"t{n}", 0.5, seconds=n)]
    training = config(
        base_model="org/model", dataset=Dataset(source="clickhouse", sample_size=4, filter=DatasetFilter())
    )
    recipes = {ROLE: {"config": msgspec.to_builtins(training), "threshold": 5, "priority": "high"}}
    async with (
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, recipes=recipes) as workshop,
    ):

        async def started() -> list[dict[str, Any]]:
            return (await workshop.api.get("/v1/jobs", params={"role": ROLE})).json()["jobs"]

        (job,) = await eventually(started)
        assert job["request"]["trigger_reason"] == "threshold_reached"
        assert job["priority"] == "high"
        dispatch = await workshop.dispatched(job["training_job_id"])
        await workshop.report(dispatch, "completed")
        await workshop.until(job["training_job_id"], "completed")
        status = (await workshop.api.get("/v1/status")).json()
        assert status["roles"][ROLE]["rewarded"] == 6
        assert status["roles"][ROLE]["threshold"] == 5
        assert len(await started()) == 1


async def test_auto_is_the_planners_proposal_with_its_reasons(shared_settings: SharedSettings, bus: Bus) -> None:
    ended = [trajectory(tid(f"t{n}")) for n in range(105)]
    facts = [*ended, *(reward(one, 1.0 if one != ended[0] else 0.0) for one in ended)]
    asked = {"algorithm": "auto", "base_model": "org/model", "role": ROLE, "notes": "tonight"}
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        refused = await workshop.api.post("/v1/jobs", json=asked | {"role": "sales"})
        assert refused.status_code == 409
        assert "nothing can be learnt yet; not gepa: the gate has 0" in refused.json()["error"]["message"]
        proposal = (await workshop.api.get("/v1/plan", params={"role": ROLE})).json()
        assert (proposal["algorithm"], proposal["filter"]) == ("sft", {"min_reward": 0.5})
        assert (proposal["shape"]["successes"], proposal["shape"]["trainable"]) == (104, 0)
        apart = (await workshop.api.get("/v1/plan", params={"role": ROLE, "held_out": 0.1})).json()
        assert (apart["algorithm"], apart["shape"]["successes"] < 104) == (None, True), "as `ratchet train` counts them"
        made = (await workshop.api.post("/v1/jobs?dry_run=true", json=asked)).json()["request"]
        assert made["training_config"]["algorithm"] == "sft"
        assert made["training_config"]["dataset"]["filter"] == {"min_reward": 0.5}
        assert made["metadata"]["notes"].startswith("tonight; planned sft: 104 of 105 trajectories with")
        preview = (await workshop.api.post("/v1/jobs/preview", json=asked)).json()
        assert preview["planned"].startswith("tonight; planned sft: 104 of 105 trajectories with")
        assert preview["reward_groups"] is None, "it compares no tries"
        plain = await workshop.api.post("/v1/jobs/preview", json=asked | {"algorithm": "sft"})
        assert plain.json()["planned"] is None
        named = asked | {"dataset": {"filter": {"sources": ["client"]}}}
        made = (await workshop.api.post("/v1/jobs?dry_run=true", json=named)).json()["request"]
        assert made["training_config"]["dataset"]["filter"] == {"sources": ["client"], "min_reward": 0.5}
        odd = await workshop.api.post("/v1/jobs", json=asked | {"hyperparameters": {"beta": 0.1}})
        assert odd.status_code == 409
        assert "the baseline that RL has to beat; but" in odd.text
        assert "beta" in odd.text


@pytest.mark.slow
async def test_pairs_that_the_lineage_has_learnt_from_are_not_proposed_again(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    pairs = [preferred(number) for number in range(500)]
    async with stored(shared_settings, bus, pairs), coordinating(shared_settings, bus) as workshop:
        assert (await workshop.api.get(f"/v1/plan?role={ROLE}")).json()["algorithm"] == "dpo"
        job = await workshop.ask(algorithm="auto")
        learnt = (await workshop.dispatched(job["training_job_id"])).request.training_config.dataset.snapshot
        assert learnt is not None
        await promote(bus, registered(1, stage="stable", dataset_digest=learnt.digest))
        proposal = (await workshop.api.get(f"/v1/plan?role={ROLE}")).json()
        assert (proposal["algorithm"], proposal["shape"]["pairs"]) == (None, 0)


async def test_a_stable_policy_that_became_worse_is_trained_again_once(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    days_ago = (bus.now() - after(0)).total_seconds() - 3 * 86_400
    before = [played(f"before {n}", 0.9, seconds=days_ago + n, task=f"task {n}") for n in range(12)]
    recent = [played(f"recent {n}", 0.1, seconds=days_ago + 2.5 * 86_400 + n, task=f"task {n}") for n in range(12)]
    once_more = [played(f"again {n}", 0.5, seconds=days_ago + 2.6 * 86_400 + n, task="task 0") for n in range(4)]
    served = PolicyClaim(role=ROLE, version=1, digest="d" * 64, arm="stable", weight=0.0)
    facts = [
        changed(fact, policy=served) if isinstance(fact, Trajectory) else fact
        for facts in (*before, *recent, *once_more)
        for fact in facts
    ]
    await promote(bus, registered(1))
    rule = {"minimum": 12, "drop": 0.1}
    recipes = {ROLE: {"config": msgspec.to_builtins(config(base_model="org/model")), "degradation": rule}}
    async with (
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus, recipes=recipes) as workshop,
    ):

        async def asked() -> list[dict[str, Any]]:
            return (await workshop.api.get("/v1/jobs")).json()["jobs"]

        (job,) = await eventually(asked)
        assert job["request"]["trigger_reason"] == "performance_degradation"
        (note,) = (await workshop.until(job["training_job_id"], "dispatched"))["triggers"]
        assert note["why"].startswith("support@1-dddddddd: its mean reward fell by 0.773 (at least 0.")
        assert "0.900 of 12 tasks, now 0.127 of 12" in note["why"]
        triggers = (await workshop.api.get("/v1/status")).json()["roles"][ROLE]["triggers"]
        (degradation,) = [trigger for trigger in triggers if trigger["kind"] == "degradation"]
        assert degradation["rests_until"] is not None
        assert degradation["last"]["job"] == job["training_job_id"]


async def test_requests_that_cannot_be_run_are_refused_with_one_clear_line(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with coordinating(shared_settings, bus) as workshop:
        for body, reason in [
            ({"algorithm": "acme.best"}, "algorithm 'acme.best' is not offered"),
            ({"algorithm": "rloo", "learning_rate": 1}, "learning_rate: there is no such setting"),
            ({"algorithm": "rloo", "hyperparameters": {"learning_rate": "1e-5"}}, "hyperparameters.learning_rate"),
            ({"algorithm": "rloo", "dataset": {"sample_size": 0}}, "dataset.sample_size"),
            ({"role": "support"}, "algorithm: is missing"),
        ]:
            answer = await workshop.api.post("/v1/jobs", json=body)
            assert answer.status_code == 422, answer.text
            assert reason in answer.json()["error"]["message"]
        await bus.publish(request("bad", training_config=config("acme.best")))
        refused = await workshop.until(request("bad").training_job_id, "failed")
        assert "algorithm 'acme.best' is not offered" in refused["error"]["message"]


async def test_jobs_that_cannot_work_are_refused_at_once_in_one_sentence(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    missing = f"s3://{shared_settings.s3_bucket}/policies/{'a' * 64}.json"
    async with stored(shared_settings, bus, played("one", 0.5)), coordinating(shared_settings, bus) as workshop:
        plain = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
        future = {"filter": {"date_range": {"start": "2040-01-01T00:00:00Z"}}}
        for change, code, reason in [
            (
                {"base_model": "stable"},
                409,
                f"role {ROLE} has no policy to continue from: name its base_model (`--base-model`)",
            ),
            ({"base_model": missing}, 422, f"base_model {missing} does not exist"),
            (
                {"dataset": {"source": "s3", "snapshot": {"uri": missing, "digest": "a" * 64}}},
                422,
                f"dataset.snapshot {missing} does not exist",
            ),
            ({"role": "no_such_role"}, 409, "role no_such_role has no stored trajectory with a reward"),
            ({"algorithm": "dpo"}, 409, f"role {ROLE} has no stored preference; `ratchet preferences derive`"),
            ({"algorithm": "kto"}, 409, f"role {ROLE} has no stored trajectory with a reward and thumbs"),
            ({"dataset": future}, 409, f"none of 1 rewarded trajectories of role {ROLE} can be used by rloo"),
            ({"dataset": {"filter": {"min_reward": 0.9}}}, 409, "none of 1 rewarded trajectories"),
            ({"dataset": {"filter": {"max_reward": 0.4}}}, 409, "none of 1 rewarded trajectories"),
            ({"dataset": {"filter": {"sources": ["import:x"]}}}, 409, "none of 1 rewarded trajectories"),
            ({"dataset": {"min_rows": 2}}, 409, "1 of 1 rewarded trajectories"),
        ]:
            answer = await workshop.api.post("/v1/jobs", json={**plain, **change})
            assert (answer.status_code, reason in answer.json()["error"]["message"]) == (code, True), answer.text
        assert (await workshop.api.get("/v1/jobs")).json() == {"jobs": [], "total": 0}
        assert (await workshop.api.post("/v1/jobs", json=plain)).status_code == 201
        # While a training is under way the role may have a policy when the next one starts.
        assert (await workshop.api.post("/v1/jobs", json={**plain, "base_model": "stable"})).status_code == 201


async def test_a_snapshot_is_built_without_a_job_and_a_job_takes_it(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [*played("low", 0.2, seconds=1), *played("high", 0.8, seconds=2)]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        asked = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
        chosen = {**asked, "dataset": {"sample_size": 10, "filter": {"max_reward": 0.5}}}
        answer = await workshop.api.post("/v1/snapshots", json=chosen)
        built = answer.json()
        manifest, rows = workshop.rows(built["uri"], built["digest"])
        assert (answer.status_code, built["rows"], manifest["training_job_id"]) == (201, 1, "")
        assert (manifest["filters"], manifest["left_out"]) == ({"max_reward": 0.5}, {"above_max_reward": 1})
        assert [row["trajectory_id"] for row in rows] == [tid("low")]
        named = {"source": "s3", "snapshot": {"uri": built["uri"], "digest": built["digest"]}}
        job = await workshop.ask(dataset=named)
        taken = (await workshop.dispatched(job["training_job_id"])).request.training_config.dataset.snapshot
        assert taken is not None
        assert taken.digest == built["digest"]
        again = await workshop.api.post("/v1/snapshots", json={**asked, "dataset": named})
        assert (again.status_code, "there is nothing to choose" in again.text) == (422, True)
        few = await workshop.api.post("/v1/snapshots", json={**asked, "dataset": {"min_rows": 3}})
        assert (few.status_code, "which needs at least 3" in few.text) == (422, True)


async def test_too_few_rows_and_too_large_samples_are_refused_at_once(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with (
        stored(shared_settings, bus, played("one", 0.5)),
        coordinating(shared_settings, bus, minimum_rows=2, history_limit=3, slots={"default": 2}) as workshop,
    ):
        imitation = await workshop.ask(algorithm="sft", dataset={"sample_size": 2})
        snapshot = (await workshop.dispatched(imitation["training_job_id"])).request.training_config.dataset.snapshot
        assert snapshot is not None
        given = {"source": "s3", "snapshot": {"uri": snapshot.uri, "digest": snapshot.digest}}
        for dataset, code, reason in [
            (
                {"sample_size": 2},
                409,
                f"1 of 1 rewarded trajectories of role {ROLE} can be used by rloo, which needs at least 2",
            ),
            ({"sample_size": 1}, 422, "dataset.sample_size 1: rloo needs at least 2"),
            ({"sample_size": 4}, 422, "dataset.sample_size 4 is more than the 3 that a snapshot is chosen from"),
            (given, 422, f"dataset.snapshot {snapshot.uri} holds 1 row; rloo needs at least 2"),
        ]:
            plain = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
            answer = await workshop.api.post("/v1/jobs", json={**plain, "dataset": dataset})
            assert (answer.status_code, reason in answer.json()["error"]["message"]) == (code, True), answer.text
        # The requester of a message over the bus does not wait for an answer: the job carries the reason.
        few = Dataset(source="clickhouse", sample_size=3)
        await bus.publish(request("few", training_config=config("rloo", "org/model", dataset=few)))
        failed = await workshop.until(request("few").training_job_id, "failed")
        assert "1 of 1 rewarded trajectories" in failed["error"]["message"]
        assert "which needs at least 2" in failed["error"]["message"]


async def test_refusal_for_too_little_data_counts_trajectories_without_reward(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    early, late, rewarded = (trajectory(tid(name)) for name in ("early", "late", "text only"))
    other = trajectory(tid("elsewhere"), role="other")
    async with (
        stored(shared_settings, bus, [early, late, rewarded, reward(rewarded, 1.0), other]),
        coordinating(shared_settings, bus) as workshop,
    ):
        plain = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
        high = {"dataset": {"filter": {"min_reward": 5}}}
        for body, reason in [
            ({**plain, "role": "other"}, "; 1 stored trajectory waits for its reward"),
            ({**plain, **high}, "; 2 stored trajectories wait for their reward"),
        ]:
            refused = await workshop.api.post("/v1/jobs", json=body)
            assert (refused.status_code, refused.json()["error"]["message"].endswith(reason)) == (409, True), (
                refused.text
            )
        untrainable = (await workshop.api.post("/v1/jobs", json=plain)).json()["error"]["message"]
        assert untrainable.endswith("no_trainable_call 1; 2 stored trajectories wait for their reward")
        preview = (await workshop.api.post("/v1/jobs/preview", json=plain)).json()
        assert (preview["refused"], preview["waiting"]) == (untrainable, 2)


async def test_role_whose_trajectories_are_older_than_the_history_is_refused(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with (
        stored(shared_settings, bus, played("one", 0.5)),
        coordinating(shared_settings, bus, history_days=1.25e-9) as workshop,
    ):
        plain = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
        preview = (await workshop.api.post("/v1/jobs/preview", json=plain)).json()
        old = f"role {ROLE} has no stored trajectory with a reward within the last 1.25e-09 days"
        assert (preview["refused"], preview["rows"]) == (old, 0)


async def test_a_dry_run_checks_everything_and_creates_nothing(shared_settings: SharedSettings, bus: Bus) -> None:
    async with stored(shared_settings, bus, played("one", 0.5)), coordinating(shared_settings, bus) as workshop:
        plain = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model"}
        for change, code in [({}, 200), ({"algorithm": "magic"}, 422), ({"base_model": "stable"}, 409)]:
            answer = await workshop.api.post("/v1/jobs", params={"dry_run": True}, json={**plain, **change})
            assert answer.status_code == code, answer.text
        before = (await bus.extent("RL_TRAINING")).last
        misspelt = await workshop.api.post("/v1/jobs", params={"dryrun": True}, json=plain)
        assert (misspelt.status_code, "dryrun" in misspelt.text) == (422, True)
        would = (await workshop.api.post("/v1/jobs", params={"dry_run": True}, json=plain)).json()
        assert (would["state"], would["algorithm"]) == ("queued", "rloo")
        assert (await workshop.api.get("/v1/jobs")).json() == {"jobs": [], "total": 0}
        assert (await bus.extent("RL_TRAINING")).last == before


async def test_jobs_are_filtered_and_come_in_pages(shared_settings: SharedSettings, bus: Bus) -> None:
    async with stored(shared_settings, bus, played("one", 0.5)), coordinating(shared_settings, bus) as workshop:
        ids = [(await workshop.ask(notes=str(number)))["training_job_id"] for number in range(3)]
        page = (await workshop.api.get("/v1/jobs", params={"limit": 1, "offset": 1})).json()
        assert ([job["training_job_id"] for job in page["jobs"]], page["total"]) == ([ids[1]], 3)
        middle = (await workshop.job(ids[1]))["created_at"]
        later = (await workshop.api.get("/v1/jobs", params={"since": middle})).json()
        assert [job["training_job_id"] for job in later["jobs"]] == [ids[2], ids[1]]
        assert (await workshop.api.get("/v1/jobs", params={"algorithm": "sft"})).json()["total"] == 0
        assert (await workshop.api.get("/v1/jobs", params={"since": "yesterday"})).status_code == 422


async def test_the_status_names_the_running_the_waiting_and_the_last_job(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with stored(shared_settings, bus, played("one", 0.5)), coordinating(shared_settings, bus) as workshop:
        at_work = await workshop.ask()
        dispatch = await workshop.dispatched(at_work["training_job_id"])
        waiting = await workshop.ask(priority="urgent")
        await workshop.report(dispatch, "running", progress=Progress(percent_complete=40.0))
        await workshop.until(at_work["training_job_id"], "running")

        def ask() -> tuple[dict[str, Any], dict[str, Any]]:
            with Operations(str(workshop.api.base_url)) as operations:
                return operations.get_ml_status(), operations.get_training_status(role=ROLE)

        everything, trains = await asyncio.to_thread(ask)
        assert everything["jobs"]["running"] == 1
        assert [(job["training_job_id"], job["percent_complete"]) for job in trains["active"]] == [
            (at_work["training_job_id"], 40.0)
        ]
        assert [job["training_job_id"] for job in trains["waiting"]] == [waiting["training_job_id"]]
        assert trains["slots"] == {"default": {"used": 1, "total": 1}, "prompts": {"used": 0, "total": 1}}
        await workshop.report(dispatch, "completed")
        await workshop.until(at_work["training_job_id"], "completed")
        trains = (await workshop.api.get("/v1/status/training")).json()
        assert trains["last"][ROLE]["training_job_id"] == at_work["training_job_id"]


async def test_the_status_counts_models_and_has_the_status_of_adapters(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    await promote(bus, registered(1, stage="stable"))
    await Bucket(bus, POLICIES, PolicyVersion).put(f"{ROLE}.2", registered(2, stage="refused"))
    await promote(bus, registered(1, role="sales", kind="model", stage="stable"))
    failed = job(request=request("failed", role="sales"), state="failed")
    await Bucket(bus, JOBS, Job).put(failed.training_job_id, failed)
    async with coordinating(shared_settings, bus, minimum_rows=3) as workshop:
        status = (await workshop.api.get("/v1/status")).json()
        assert (status["total_models"], status["total_adapters"]) == (3, 2)
        assert status["adapter_status"] == {ROLE: "failed", "sales": "failed"}
        assert (status["config"]["minimum_rows"], status["config"]["history_limit"]) == (3, 200_000)


async def test_the_dpo_status_counts_pairs_by_source_and_since_the_last_job(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    pairs = [preferred("one", "human"), preferred("two", "derived"), preferred("three", "derived")]
    training = config("dpo", base_model="org/model", hyperparameters=Hyperparameters())
    recipe = {"config": msgspec.to_builtins(training), "threshold": 4}
    async with (
        stored(shared_settings, bus, pairs),
        coordinating(shared_settings, bus, preference_recipes={ROLE: recipe}) as workshop,
    ):

        def ask() -> dict[str, Any]:
            with Operations(str(workshop.api.base_url)) as operations:
                return operations.get_dpo_status()["roles"][ROLE]

        async def counted() -> bool:
            roles = (await workshop.api.get("/v1/status/dpo")).json()["roles"]
            return ROLE in roles and roles[ROLE]["since_last_dpo"] == 3

        await eventually(counted)
        role = await asyncio.to_thread(ask)
        assert (role["pairs"], role["total"], role["threshold"]) == ({"human": 1, "derived": 2}, 3, 4)
        assert (role["since_last_dpo"], role["would_fire"], role["last_job"]) == (3, False, None)
        assert role["why"] == "3 new preferences, the threshold is 4"


async def test_operations_without_a_coordinator_are_a_clear_error() -> None:
    (port,) = free_ports(1)
    with Operations(f"http://127.0.0.1:{port}", timeout_s=1) as operations, pytest.raises(Unavailable, match="answer"):
        await asyncio.to_thread(operations.get_ml_status)


async def test_odd_values_are_refused_and_nothing_breaks(shared_settings: SharedSettings, bus: Bus) -> None:
    async with stored(shared_settings, bus, played("one", 0.5)), coordinating(shared_settings, bus) as workshop:
        for path in (
            "/v1/models?role=a b",
            "/v1/models?role=*",
            "/v1/models/.x/1",
            f"/v1/models/{ROLE}/-1",
            f"/v1/models/{ROLE}/99999999999999999999",
            f"/v1/models/{ROLE}/1/lineage?limit=501",
            "/v1/status/dpo?role=%3E",
            "/v1/status/training?role=",
            "/v1/jobs?role=a b",
            "/v1/jobs?since=0001-01-01T00:00:00",
            "/v1/jobs?state=mothballed",
        ):
            assert (await workshop.api.get(path)).status_code == 422, path
        plain = {"algorithm": "rloo", "role": ROLE}
        ours = f"s3://{shared_settings.s3_bucket}"
        senseless = (f"{ours}/../../etc/x.json", f"{ours}/a\0b.json", f"{ours}//a.json", "s3://theirs/a.json")
        for uri in ("s3://[::1", "s3://", "s3://bucket", "s3:///key", *senseless):
            assert (await workshop.api.post("/v1/jobs", json={**plain, "base_model": uri})).status_code == 422, uri
        odd = {"max_trajectory_length": 10**30, "sources": ["a'b\\c"], "date_range": {"start": "0001-01-01T00:00:00Z"}}
        answer = await workshop.api.post(
            "/v1/jobs", json={**plain, "base_model": "org/model", "dataset": {"filter": odd}}
        )
        assert (answer.status_code, "none of 1" in answer.text) == (409, True), answer.text


async def test_disabled_training_is_refused_with_409_and_a_reason(shared_settings: SharedSettings, bus: Bus) -> None:
    async with coordinating(shared_settings, bus, training_enabled=False) as workshop:
        answer = await workshop.api.post("/v1/jobs", json={"algorithm": "rloo"})
        assert (answer.status_code, "training is disabled" in answer.json()["error"]["message"]) == (409, True)
        assert (await workshop.api.get("/v1/status")).json()["training_enabled"] is False
        assert (await workshop.api.get("/health")).json() == {"status": "ok", "reasons": {}}


async def test_health_names_the_pool_whose_job_no_worker_takes(shared_settings: SharedSettings, bus: Bus) -> None:
    waiting = job(state="dispatched", updated_at=bus.now() - timedelta(minutes=6))
    await Bucket(bus, JOBS, Job).put(waiting.training_job_id, waiting)
    async with coordinating(shared_settings, bus) as workshop:
        answer = await workshop.api.get("/health")
        assert answer.status_code == 503
        assert answer.json()["reasons"] == {"workers": "no worker of the pool default has taken its job for 5 minutes"}


async def test_api_describes_itself(shared_settings: SharedSettings, bus: Bus) -> None:
    async with coordinating(shared_settings, bus) as workshop:
        document = (await workshop.api.get("/openapi.json")).json()
        assert set(document["paths"]) == {
            "/health",
            "/v1/workflows/executions",
            "/v1/erasures",
            "/v1/erasures/{erasure_id}",
            "/v1/erasures/{erasure_id}/receipt",
            "/v1/jobs",
            "/v1/jobs/preview",
            "/v1/snapshots",
            "/v1/jobs/{job_id}",
            "/v1/jobs/{job_id}/cancel",
            "/v1/jobs/{job_id}/resume",
            "/v1/keys",
            "/v1/keys/{key_id}/revoke",
            "/v1/models",
            "/v1/models/{role}",
            "/v1/models/{role}/{version}",
            "/v1/models/{role}/{version}/costs",
            "/v1/models/{role}/{version}/lineage",
            "/v1/models/{role}/{version}/outcome-times",
            "/v1/plan",
            "/v1/raters",
            "/v1/replay/prompts",
            "/v1/replay/requests",
            "/v1/session",
            "/v1/status",
            "/v1/status/dpo",
            "/v1/status/training",
            "/v1/storage/sweep",
        }
        assert "learning_rate" in document["components"]["schemas"]["HyperparametersIn"]["properties"]


@pytest.mark.parametrize(("age_s", "attempt"), [(1, 1), (600, 2)])
async def test_coordinator_that_died_before_it_published_dispatches_later(
    shared_settings: SharedSettings, bus: Bus, age_s: float, attempt: int
) -> None:
    left = job("left", state="dispatched", announced=False, snapshot=SnapshotRef(uri="s3://b/s.json", digest="a" * 64))
    taken_at = bus.now() - timedelta(seconds=age_s)
    await Bucket(bus, JOBS, Job).create(left.training_job_id, changed(left, updated_at=taken_at))
    async with coordinating(shared_settings, bus) as workshop:
        dispatch = await workshop.dispatched(left.training_job_id, attempt)
        assert [each.attempt for each in workshop.dispatches] == [dispatch.attempt]


async def test_jobs_that_ended_long_ago_leave_the_bucket(shared_settings: SharedSettings, bus: Bus) -> None:
    bucket = Bucket(bus, JOBS, Job)
    for number, days in enumerate((200, 100, 1)):
        at = bus.now() - timedelta(days=days)
        old = job(f"old {number}", state="completed", created_at=at)
        await bucket.create(old.training_job_id, changed(old, updated_at=at, finished_at=at))
    async with coordinating(shared_settings, bus) as workshop:

        async def pruned() -> bool:
            return (await workshop.api.get("/v1/jobs")).json()["total"] == 1

        await eventually(pruned)
        assert await bucket.keys() == [job("old 2").training_job_id]
