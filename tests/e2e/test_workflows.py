"""Workflows teach their planner: one that they trained is promoted, a worse one is rolled back, all services real."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.rollouts import BundleOut, RolloutOut
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.workflows import TASK_TYPES, PlannerRef
from ratchet.core.planning.files import THOMPSON, Description, PlannerFile, save_planner
from ratchet.core.planning.selectors import table_shapes
from ratchet.local.demo.connections import Connections, connect
from ratchet.local.demo.scenario import run_command
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.scripted_workers import CHEAP, GOOD, WORKERS, scripted_models
from tests.support.watched_stack import Watched, watching
from tools.dashboard.boards.workflows import WORKFLOWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROLE = "planner"
WAIT_S = 240.0
COLLECTED = 150
TEMPLATE = '{"instruction": "Answer the note about {topic}.", "values": {"topic": ["tides", "bees", "rain"]}}\n'
DEPLOYER = {
    "RATCHET_CANARY_STAGES": "50",
    "RATCHET_CANARY_STAGE_MIN_S": "0",
    "RATCHET_CANARY_STAGE_MIN_TRAJECTORIES": "5",
    "RATCHET_CANARY_MARGIN": "0.1",
    "RATCHET_CANARY_METRICS": "failure,reward",
    "RATCHET_CANARY_SOAK_S": "0",
    "RATCHET_CANARY_HORIZON_S": "120",
}
"""A rollout within seconds, by success and reward."""


@dataclass
class Workshop:
    """A running stack, and commands on it."""

    directory: Path
    connections: Connections
    watched: Watched
    runs: int = 0

    async def typed(self, *words: str) -> Any:
        """What a command of `ratchet` prints as JSON."""
        return json.loads(await run_command(*words, "--json", "--dir", str(self.directory)))

    async def collect(self, count: int) -> Counter[str]:
        """Run so many workflows; how many ended in each state."""
        self.runs += 1
        file = self.directory / f"run-{self.runs}.jsonl"
        options = ("--to", str(file), "--name", f"run-{self.runs}", "--n", str(count), "--budget", "10")
        done = await self.typed("workflows", "collect", "--templates", str(self.directory / "t.jsonl"), *options)
        return Counter(done["states"])

    async def executions(self, version: int) -> list[dict[str, Any]]:
        """The log of a planner, as it is exported."""
        file = self.directory / f"export-{uuid.uuid4().hex}.jsonl"
        await self.typed("workflows", "export", "--to", str(file))
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [row for row in rows if row["policy"]["version"] == version]

    async def policy(self, version: int) -> PolicyVersion | None:
        policies = await self.connections.policies(ROLE)
        return next((policy for policy in policies if policy.version == version), None)

    async def stage_is(self, version: int, *stages: str) -> PolicyVersion:
        async def reached() -> PolicyVersion | None:
            policy = await self.policy(version)
            return policy if policy is not None and policy.stage in stages else None

        return await eventually(reached, WAIT_S)

    async def run_until_decided(self, version: int) -> RolloutOut:
        """Workflows of both arms, until the deployer has ended the canary."""
        for _ in range(20):
            await self.collect(20)
            policy = await self.policy(version)
            assert policy is not None
            if policy.stage != "canary":
                break
        rollout = await self.connections.rollout(ROLE)
        assert rollout is not None
        assert rollout.candidate.version == version
        return rollout


@asynccontextmanager
async def workshop(directory: Path) -> AsyncIterator[Workshop]:
    async with scripted_models() as url:
        env = {**DEPLOYER, "RATCHET_WORKFLOWS_PLANNING_MODEL": GOOD}
        settings = StackSettings(directory=directory, free_ports=True, upstream=url, workflows=True, env=env)
        async with Stack(settings) as stack:
            shared = shared_of(stack.env).model_copy(update={"data_dir": directory / "data" / "test"})
            async with connect(stack, shared) as connections:
                (directory / "t.jsonl").write_text(TEMPLATE)
                (directory / "workers.json").write_text(json.dumps(WORKERS))
                with watching(stack, directory) as watched:
                    here = Workshop(directory, connections, watched)
                    await here.typed("workers", "put", str(directory / "workers.json"))
                    yield here


def worse_planner() -> bytes:
    """Thompson tables of outcomes turned round: the cheap worker is the one that writes."""
    workers = (CHEAP, GOOD)
    tables = {name: np.zeros(shape) for name, shape in table_shapes(THOMPSON, len(TASK_TYPES), 2).items()}
    tables["thompson.counts"][:, workers.index(CHEAP)] = 100.0, 0.0
    tables["thompson.counts"][:, workers.index(GOOD)] = 0.0, 100.0
    return save_planner(PlannerFile(Description(selector=THOMPSON, workers=workers), tables))


async def registered(here: Workshop, blob: bytes) -> int:
    """The version that a planner's file has become."""
    stored = await asyncio.to_thread(here.connections.objects.put, blob, "blobs")
    bundle = Bundle(planner=PlannerRef(uri=stored.uri, sha256=stored.sha256))
    body = {"bundle": bundle, "actor": "ann", "reason": "a planner of our own"}
    made = await here.connections.deployer.ask("POST", f"/v1/policies/{ROLE}/bundles", BundleOut, body=body)
    return made.policy.version


def unjudged(policy: PolicyVersion) -> int:
    """Executions that `off_policy` did not judge by: the log has hardly any choice that the candidate would make."""
    assert policy.gate is not None
    verdict = policy.gate["off_policy"]
    assert verdict["outcome"] == "not_run"
    assert "collect more executions" in verdict["reason"]
    return verdict["evidence"]["excluded"]


async def test_workflows_teach_their_planner_and_a_worse_one_is_undone(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    async with workshop(tmp_path) as here:
        states = await here.collect(COLLECTED)
        assert states["failed"] > states["succeeded"]
        assert len(await here.executions(0)) == COLLECTED
        train = ("workflows", "train", "--algorithm", "selector_linucb", "--wait", "--timeout", f"{WAIT_S:g}")
        job = await here.typed(*train)
        assert (job["state"], job["trajectories"]) == ("completed", COLLECTED)
        learned = await here.stage_is(1, "canary")
        assert (learned.training_job_id, learned.algorithm) == (job["training_job_id"], "selector_linucb")
        assert unjudged(learned) == learned.training_samples

        promoted = await here.run_until_decided(1)
        assert promoted.state == "promoted", promoted
        assert promoted.arms.canary.failures < promoted.arms.stable.failures
        assert (promoted.arms.stable.unscored, promoted.arms.canary.unscored) == (0, 0)

        worse = await registered(here, worse_planner())
        assert unjudged(await here.stage_is(worse, "canary")) == 0
        undone = await here.run_until_decided(worse)
        assert (undone.state, undone.actor) == ("rolled_back", "canary_deployer"), undone
        assert undone.arms.canary.failures > undone.arms.stable.failures

        after = await here.collect(10)
        assert after["succeeded"] > after["failed"]
        route = await here.connections.route(ROLE)
        assert route is not None
        assert route.stable is not None
        assert (route.stable.version, route.canary) == (1, None)
        arms = Counter(row["policy"]["arm"] for row in await here.executions(worse))
        assert set(arms) == {"canary"}
        with subtests.test("panels"):
            assert await here.watched.unlike(WORKFLOWS) == []
        assert arms.total() >= undone.arms.canary.trajectories
