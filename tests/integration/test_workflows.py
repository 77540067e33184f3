"""Workflows on a real broker, through a real gateway, in front of a scripted upstream and HTTP tools."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Start, Trajectory, TrajectoryEnd, Turn, WorkflowExecution
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.state import BUNDLES, PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.workflows import PlannerRef, WorkerLimits
from ratchet.core.planning.files import Description, PlannerFile, save_planner
from ratchet.core.planning.selectors import table_shapes
from ratchet.core.rules.arms import version_0
from ratchet.core.service.asgi import Answer, Handler, Request, Response, json_response
from tests.support.gateway_scene import Scene, canary_route, served, version
from tests.support.running import http_client, listening, prepared_objects
from tests.support.servers import Broker, Server, s3_settings
from tests.support.service_process import service_process
from tests.support.workflow_scene import WorkflowScene, begun, over, put_worker, worker, workflow_scene

PLANNER = "planner"


async def test_a_workflow_is_run_through_the_gateway_and_logged(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service() as client:
        await put_worker(client, worker("writer"))
        workflow = await over(client, (await begun(client, session="s1")).workflow_id)
        assert (workflow.state, workflow.error) == ("succeeded", None)
        assert workflow.result == "The provider says so."
        (execution,) = await here.gateway.published(WorkflowExecution, 1)
        (run,) = execution.runs
        assert (execution.workflow_id, execution.success) == (workflow.workflow_id, True)
        assert (run.worker, run.propensity, run.cost_usd) == ("writer", 1.0, pytest.approx(13e-6))
        turns = await here.gateway.published(Turn, 2)
        (turn,) = [turn for turn in turns if turn.role != PLANNER]
        (call,) = [turn for turn in turns if turn.role == PLANNER]
        assert (call.trajectory_id, call.cost_usd) == (workflow.workflow_id, execution.cost_usd)
        (end,) = await here.gateway.published(TrajectoryEnd, 1)
        assert turn.trajectory_id == end.trajectory_id == run.trajectory_id
        assert (end.parent_trajectory_id, end.outcome.status) == (workflow.workflow_id, "success")
        assert end.labels == {"workflow_id": workflow.workflow_id, "planner": workflow.policy, "arm": "stable"}
        (parent,) = await here.gateway.published(Trajectory, 1)
        assert (parent.trajectory_id, parent.role, parent.outcome.status) == (workflow.workflow_id, PLANNER, "success")


async def test_a_worker_may_be_a_model_of_an_upstream(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service() as client:
        await put_worker(client, worker("big", model="provider/big-model"))
        workflow = await over(client, (await begun(client)).workflow_id)
        assert (workflow.state, workflow.result) == ("succeeded", "The provider says so.")
        turns = await here.gateway.published(Turn, 2)
        assert sorted((turn.role, turn.policy.arm) for turn in turns) == [("default", "pinned"), (PLANNER, "stable")]


async def test_what_is_published_is_redacted(nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service(user_key="k" * 16) as client:
        await put_worker(client, worker("writer"))
        asked = await begun(client, "Write to mia@example.com.", user="mia")
        await over(client, asked.workflow_id)
        (execution,) = await here.gateway.published(WorkflowExecution, 1)
        (parent,) = await here.gateway.published(Trajectory, 1)
        assert execution.instruction == "Write to [REDACTED:email]."
        turns = await here.gateway.published(Turn, 2)
        assert b"mia" not in msgspec.json.encode([execution, parent, *turns])
        assert execution.user_ref == parent.user_ref != None  # noqa: E711 - of both


def planner_file(workers: tuple[str, ...]) -> bytes:
    """A planner that has seen nothing: it chooses each worker alike."""
    shapes = table_shapes("linucb", 10, len(workers))
    tensors = {name: np.zeros(shape) for name, shape in shapes.items()}
    tensors["linucb.precision"][:] = np.eye(tensors["linucb.precision"].shape[-1])
    return save_planner(PlannerFile(Description(selector="linucb", workers=workers), tensors))


async def canary_of(gateway: Scene, ref: PlannerRef) -> ServedPolicy:
    """A planner's policy under test, with all of the traffic; version 0 is stable."""
    policy = msgspec.structs.replace(version(2, PLANNER), kind="bundle", stage="canary")
    await Bucket(gateway.bus, BUNDLES, Bundle).put(policy.digest, Bundle(planner=ref))
    await Bucket(gateway.bus, "policies", PolicyVersion).put(f"{PLANNER}.2", policy)
    under_test = msgspec.structs.replace(served(2, PLANNER), bundle=True)
    canary = msgspec.structs.replace(canary_route(), policy=under_test)
    route = Route(role=PLANNER, stable=version_0(PLANNER), next_version=3)
    for number, each in ((0, route), (2, msgspec.structs.replace(route, canary=canary))):
        await Bucket(gateway.bus, "policies", Route).put(PLANNER, each)
        await eventually(partial(_shows, gateway, f"{PLANNER}@{number}"))
    return under_test


async def _shows(gateway: Scene, name: str) -> bool:
    return name in [model.id async for model in gateway.client().models.list()]


async def test_the_gateway_draws_the_planner_s_arm_by_the_workflow(
    nats: Broker, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"t{uuid.uuid4().hex[:12]}"
    shared = s3_settings(s3, bucket, nats_url=nats.url, data_dir=tmp_path / "workflows")
    blob = prepared_objects(shared).put(planner_file(("cheap", "dear")), "blobs")
    async with workflow_scene(nats, tmp_path, monkeypatch, shared=shared) as here, here.service() as client:
        policy = await canary_of(here.gateway, PlannerRef(uri=blob.uri, sha256=blob.sha256))
        await put_worker(client, worker("cheap"))
        await put_worker(client, worker("dear", cost_per_token=1e-5))
        workflow = await over(client, (await begun(client, user="mia")).workflow_id)
        assert (workflow.state, workflow.policy, workflow.arm) == ("succeeded", policy.name, "canary")
        (start,) = [each for each in await here.gateway.published(Start, 2) if each.role == PLANNER]
        assert (start.trajectory_id, start.policy.version) == (workflow.workflow_id, 2)
        (execution,) = await here.gateway.published(WorkflowExecution, 1)
        assert execution.policy == start.policy
        assert execution.policy.weight == 1.0
        options = execution.runs[0].options
        assert [option.worker for option in options] == ["cheap", "dear"]
        assert min(option.propensity for option in options) >= 0.02
        pinned = await over(client, (await begun(client, policy=f"{PLANNER}@2")).workflow_id)
        assert (pinned.state, pinned.arm) == ("succeeded", "pinned")
        missing = await over(client, (await begun(client, policy=f"{PLANNER}@9")).workflow_id)
        assert (missing.state, missing.plan) == ("failed", None)


async def test_a_planner_s_file_of_another_digest_ends_the_workflow(
    nats: Broker, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"t{uuid.uuid4().hex[:12]}"
    shared = s3_settings(s3, bucket, nats_url=nats.url, data_dir=tmp_path / "workflows")
    blob = prepared_objects(shared).put(planner_file(("cheap",)), "blobs")
    async with workflow_scene(nats, tmp_path, monkeypatch, shared=shared) as here, here.service() as client:
        await canary_of(here.gateway, PlannerRef(uri=blob.uri, sha256="0" * 64))
        workflow = await over(client, (await begun(client)).workflow_id)
        assert (workflow.state, workflow.arm) == ("failed", "canary")
        assert "does not have sha256" in (workflow.error or "")


Served = Callable[[Request], Awaitable[Answer]]


def tool(answer: Served) -> Callable[[str, str], Handler]:
    """The routes of a tool."""
    return lambda method, path: answer


async def nothing(_: Request) -> Answer:
    return json_response({"output": "  "})


async def too_much(_: Request) -> Answer:
    return json_response({"output": "x" * 10_000_000})


async def redirected(_: Request) -> Answer:
    return Response(302, b"", [(b"location", b"/elsewhere")])


async def no_json(_: Request) -> Answer:
    return Response(200, b"<html>")


async def hanging(_: Request) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


WORDS = [
    (nothing, "tool answered nothing", 2),
    (too_much, "tool answers with more than 2097152 bytes", 0),
    (redirected, "tool answered 302", 0),
    (no_json, 'tool did not answer {"output": TEXT}', 2),
    (hanging, "tool does not answer at", 2),
]


@pytest.mark.parametrize(("answer", "words", "retries"), WORDS, ids=[answer.__name__ for answer, *_ in WORDS])
async def test_a_tool_that_misbehaves_fails_its_sub_task_in_words(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Served, words: str, retries: int
) -> None:
    async with (
        workflow_scene(nats, tmp_path, monkeypatch) as here,
        here.service() as client,
        listening(tool(answer)) as url,
    ):
        limits = WorkerLimits(timeout_s=0.5 if answer is hanging else 30.0)
        await put_worker(client, worker("tool", model=None, url=f"{url}/do?x=1", cost_per_token=0.01, limits=limits))
        workflow = await over(client, (await begun(client)).workflow_id)
        (sub_task,) = workflow.sub_tasks
        assert sub_task.run is not None
        assert (workflow.state, sub_task.run.trajectory_id, sub_task.run.retries) == ("failed", None, retries)
        assert words in (sub_task.run.error or "")


@pytest.mark.slow
async def test_a_killed_runner_is_replaced_and_pays_for_its_call(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    may_answer = asyncio.Event()

    async def slow_tool(request: Request) -> Answer:
        asked.append(request.json_object())
        await may_answer.wait()
        return json_response({"output": "done"})

    async with workflow_scene(nats, tmp_path, monkeypatch) as here, listening(tool(slow_tool)) as url:
        added = worker("tool", model=None, url=url, cost_per_token=0.01)
        with service_process("workflows", here.shared, tmp_path / "first", **_env(here)) as first:
            async with http_client(base_url=first.url) as client:
                await put_worker(client, added)
                workflow_id = (await begun(client)).workflow_id
                await eventually(lambda: _has(asked, 1))
            first.kill()
            with service_process("workflows", here.shared, tmp_path / "second", **_env(here)) as second:
                async with http_client(base_url=second.url) as client:
                    await eventually(lambda: _has(asked, 2))
                    may_answer.set()
                    workflow = await over(client, workflow_id)
                    assert (workflow.state, workflow.result) == ("succeeded", "done")
                    assert (workflow.cost_usd, len(asked)) == (pytest.approx(0.02), 2)
                    assert len(await here.gateway.published(WorkflowExecution, 1)) == 1


def _env(here: WorkflowScene) -> dict[str, str]:
    return {"RATCHET_GATEWAY_URL": here.gateway.url}


async def _has(asked: list[Any], number: int) -> bool:
    return len(asked) >= number
