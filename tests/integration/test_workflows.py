"""Workflows on a real broker, through a real gateway, in front of a scripted upstream."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.contract import Trajectory, TrajectoryEnd, Turn, WorkflowExecution
from tests.support.servers import Broker
from tests.support.workflow_scene import begun, over, put_worker, worker, workflow_scene


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
        (turn,) = await here.gateway.published(Turn, 1)
        (end,) = await here.gateway.published(TrajectoryEnd, 1)
        assert turn.trajectory_id == end.trajectory_id == run.trajectory_id
        assert (end.parent_trajectory_id, end.outcome.status) == (workflow.workflow_id, "success")
        (parent,) = await here.gateway.published(Trajectory, 1)
        assert (parent.trajectory_id, parent.role, parent.outcome.status) == (
            workflow.workflow_id,
            "planner",
            "success",
        )
