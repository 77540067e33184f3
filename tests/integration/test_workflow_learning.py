"""From executions of workflows to the snapshot that a planner learns from, at real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message
from ratchet.core.contract.snapshot import ExecutionRow
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.datasets.domain.executions import execution_of
from ratchet.core.datasets.parquet import read_rows
from ratchet.core.service.settings import SharedSettings
from tests.support.coordinator import coordinating, stored
from tests.support.executions import execution
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.training import reward, trajectory


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


ROLE = "planner"
CONFIG = {"algorithm": "selector_linucb", "base_model": "stable", "dataset": {"sample_size": 100}}


def parent(number: int) -> list[Message]:
    """The parent trajectory of an execution, and its reward."""
    run = trajectory(execution(number).workflow_id, role=ROLE)
    return [run, reward(run, 0.5)]


async def test_executions_are_listed_a_page_at_a_time(shared_settings: SharedSettings, bus: Bus) -> None:
    facts = [execution(number, version=number % 2) for number in range(5)]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:

        async def listed(**asked: Any) -> tuple[list[WorkflowExecution], str | None]:
            answer = await workshop.api.get("/v1/workflows/executions", params={"role": ROLE, **asked})
            assert answer.status_code == 200, answer.text
            page = answer.json()
            return msgspec.convert(page["executions"], list[WorkflowExecution]), page["next"]

        first, after = await listed(limit=3)
        rest, end = await listed(limit=3, after=after)
        assert ([*first, *rest], end) == (facts, None)
        assert (await listed(version=1))[0] == [facts[1], facts[3]]
        assert (await listed(after=f"{facts[2].timestamp.isoformat()}/"))[0] == facts[2:]
        wrong = await workshop.api.get("/v1/workflows/executions", params={"role": ROLE, "after": "yesterday"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")


async def test_a_snapshot_of_executions_keeps_what_was_logged(
    shared_settings: SharedSettings, bus: Bus, tmp_path: Path
) -> None:
    failed = execution(2, plan=None, status="failed")
    facts = [execution(1), failed, *parent(1)]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus) as workshop:
        job = await workshop.ask(role=ROLE, **CONFIG)
        dispatch = await workshop.dispatched(job["training_job_id"])
        config = dispatch.request.training_config
        assert (config.base_model, config.dataset.snapshot is not None) == ("stable", True)
        assert config.dataset.snapshot is not None
        manifest, _ = workshop.rows(config.dataset.snapshot.uri, config.dataset.snapshot.digest)
        path = tmp_path / "rows.parquet"
        workshop.objects.get_file(manifest["parquet"]["uri"], path, manifest["parquet"]["sha256"])
        rows = list(read_rows(path, ExecutionRow))
        assert (manifest["format"], manifest["trajectories"]) == ("executions", [row.workflow_id for row in rows])
        unread = {"result": None}
        assert [execution_of(row, ROLE) for row in rows] == [
            msgspec.structs.replace(one, **unread) for one in (execution(1), failed)
        ]
        assert [row.reward for row in rows] == [0.5, None]


async def test_training_of_a_role_without_executions_is_refused(shared_settings: SharedSettings, bus: Bus) -> None:
    async with coordinating(shared_settings, bus) as workshop:
        for algorithm in ("planner_supervised", "planner_ppo", "selector_linucb", "selector_thompson"):
            answer = await workshop.api.post("/v1/jobs", json={"role": "support", **CONFIG, "algorithm": algorithm})
            assert answer.json()["error"]["message"] == "role support has no stored execution of a workflow"


async def test_rewarded_workflows_start_the_training_of_their_planner(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    recipe = {"config": {**CONFIG, "hyperparameters": {}, "dataset": {"source": "clickhouse", "sample_size": 100}}}
    chosen = {"recipes": {ROLE: {**recipe, "threshold": 3}}}
    facts = [fact for number in range(3) for fact in (execution(number), *parent(number))]
    async with stored(shared_settings, bus, facts), coordinating(shared_settings, bus, **chosen) as workshop:

        async def asked() -> dict[str, Any] | None:
            jobs = (await workshop.api.get("/v1/jobs")).json()["jobs"]
            return next(iter(jobs), None)

        job = await eventually(asked)
        assert (job["role"], job["algorithm"]) == (ROLE, "selector_linucb")
        await workshop.dispatched(job["training_job_id"])
        again = await workshop.api.get("/v1/jobs")
        assert len(again.json()["jobs"]) == 1
