"""`ratchet export`, `trajectories` and `feedback` as an operator types them, against real servers and services."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.contract import Outcome
from ratchet.core.contract.state import POLICIES, PolicyStage, PolicyVersion, Route
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.reward_computer.app import build as build_rewards
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.canary_world import policy, served
from tests.support.command_lines import Shell, shell
from tests.support.messages import AT, trajectory, turn
from tests.support.rewards import feedback
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import variables

DEAD = "http://127.0.0.1:9"
"""The discard port, on which nothing listens."""
GOOD, BAD = trajectory("0").trajectory_id, trajectory("1").trajectory_id


@asynccontextmanager
async def rewarded(shared: SharedSettings, number: int) -> AsyncIterator[Bus]:
    """Stored and rewarded trajectories of the role support, every second one a failure; an opinion on the first."""
    prepared_objects(shared)
    collector = build_collector(CollectorSettings(shared=shared, linger_s=0.02))
    computer = build_rewards(RewardSettings(shared=shared, linger_s=0.02))
    async with (
        connected(shared) as bus,
        prepared_warehouse(shared) as warehouse,
        running_app(collector),
        running_app(computer),
    ):

        async def revisions() -> int:
            return (await warehouse.rows("SELECT count() AS n FROM rewards FINAL"))[0]["n"]

        failed = Outcome(status="failure")
        trajectories = [trajectory(str(n), outcome=failed) if n % 2 else trajectory(str(n)) for n in range(number)]
        await bus.publish_all(trajectories)
        await eventually(lambda: _at_least(revisions, number))
        await bus.publish(feedback(1, "0", value=False))
        await eventually(lambda: _at_least(revisions, number + 1))
        await bus.publish_all([turn("going on"), turn("dead", error="engine away", response=None)])

        async def stored_turns() -> int:
            return (await warehouse.rows("SELECT count() AS n FROM turns"))[0]["n"]

        await eventually(lambda: _at_least(stored_turns, 2))
        yield bus


async def _at_least(count: Any, number: int) -> bool:
    return await count() >= number


@pytest.fixture
def ratchet(shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with shell(variables(shared_settings), capsys) as typed:
        yield typed


async def test_stored_runs_and_rewards_are_exported(
    shared_settings: SharedSettings, ratchet: Shell, tmp_path: Path
) -> None:
    lines, table = tmp_path / "runs.jsonl", tmp_path / "rewards.parquet"
    async with rewarded(shared_settings, 12):
        code, out, _ = await ratchet.ended("export", "executions", "-o", str(lines), "--json")
        assert (code, json.loads(out)["records"]) == (0, 13)
        *runs, dead = [json.loads(line) for line in lines.read_text().splitlines()]
        assert (dead["success"], dead["error"], dead["request"]) == (False, "engine away", "question 0")
        assert sorted(run["success"] for run in runs) == [False] * 6 + [True] * 6
        assert {run["result"] for run in runs} == {"It arrives today."}
        assert all(run["latency_ms"] == 3000 and run["reward"] is not None for run in runs)

        code, out, _ = await ratchet.ended("export", "rewards", "-o", str(table), "--role", "support")
        assert (code, out.split()[:2]) == (0, ["13", "rewards"])
        assert sorted(row["revision"] for row in pq.read_table(table).to_pylist()) == [0] * 12 + [1]

        only = ("--min-reward", "0.7", "--limit", "3", "--since", AT.isoformat(), "--until", "2027-01-01")
        await ratchet.ended("export", "trajectories", "-o", str(lines), *only)
        exported = [json.loads(line) for line in lines.read_text().splitlines()]
        assert len(exported) == 3
        assert all(one["reward"]["total"] >= 0.7 and one["trajectory_id"] != GOOD for one in exported)
        code, _, err = await ratchet.ended("export", "rewards", "-o", str(tmp_path / "no" / "x.jsonl"))
        assert (code, err.count("\n")) == (1, 1)


async def test_trajectories_are_listed_and_shown_with_their_rewards_and_feedback(
    shared_settings: SharedSettings,
    ratchet: Shell,
) -> None:
    async with rewarded(shared_settings, 2):
        code, out, _ = await ratchet.ended("trajectories", "list", "--json", "--outcome", "failure")
        assert [row["reward"] for row in json.loads(out)["trajectories"]] == [0.0]
        code, out, _ = await ratchet.ended("trajectories", "show", GOOD, "--json")
        whole = json.loads(out)
        assert [reward.get("revision", 0) for reward in whole["rewards"]] == [0, 1]
        assert (whole["trajectory"]["trajectory_id"], len(whole["feedback"])) == (GOOD, 1)
        code, out, _ = await ratchet.ended("trajectories", "show", GOOD)
        assert "where is my order?" in out
        assert "task_completion" in out
        code, _, err = await ratchet.ended("trajectories", "show", turn("going on").trajectory_id)
        assert (code, "has not ended yet: POST /v1/trajectories/" in err) == (1, True)
        code, _, err = await ratchet.ended("trajectories", "show", "nightly-17")
        assert (code, "no trajectory nightly-17 is stored" in err) == (1, True)


async def test_serving_policies_are_exported_for_tensorzero(
    shared_settings: SharedSettings, ratchet: Shell, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    (port,) = free_ports(1)
    settings = DeployerSettings(shared=shared_settings, port=port, engine_url=DEAD, gateway_url=DEAD)
    file, url = tmp_path / "tensorzero.toml", {"RATCHET_DEPLOYER_URL": f"http://127.0.0.1:{port}"}
    words = ("export", "tensorzero", "-o", str(file), "--json")
    async with connected(shared_settings) as bus, running_app(build_deployer(settings)):
        code, _, err = await ratchet.ended(*words, **url)
        assert (code, "no policy serves any role" in err) == (1, True)
        # The version first: the deployer takes a route back whose stable policy no version is.
        await Bucket(bus, POLICIES, PolicyVersion).create("support.1", policy(1, stage=PolicyStage.STABLE))
        await Bucket(bus, POLICIES, Route).create("support", Route(role="support", stable=served(1), next_version=2))

        async def exported() -> str | None:
            """Once the deployer has heard of the route."""
            code, out, _ = await ratchet.ended(*words, **url)
            return out if code == 0 else None

        assert json.loads(await eventually(exported))["roles"] == ["support"]
    assert tomllib.loads(file.read_text())["functions"]["support"]["experimentation"]["candidate_variants"] == {
        "support_v1_11111111": 1
    }


async def test_feedback_on_an_unknown_trajectory_warns_and_wrong_role_is_refused(
    shared_settings: SharedSettings,
    ratchet: Shell,
) -> None:
    async with (
        rewarded(shared_settings, 2) as bus,
        running_app(build_gateway(GatewaySettings(shared=shared_settings, port=0, grace_s=0.0))) as gateway,
    ):
        url = {"RATCHET_GATEWAY_URL": f"http://127.0.0.1:{gateway.components[-1].port}"}  # type: ignore[attr-defined]
        before = (await bus.extent("RL_FEEDBACK")).last
        code, _, err = await ratchet.ended("feedback", BAD, "--thumbs", "up", "--role", "sales", **url)
        assert (code, "has the role support, not sales" in err) == (1, True)
        assert (await bus.extent("RL_FEEDBACK")).last == before

        code, _, err = await ratchet.ended("feedback", BAD, "--stars", "4", **url)
        assert (code, err) == (0, "")
        unknown = trajectory("nobody").trajectory_id
        code, _, err = await ratchet.ended("feedback", unknown, "--thumbs", "up", **url)
        assert (code, "--role ROLE" in err) == (1, True)
        code, _, err = await ratchet.ended("feedback", unknown, "--thumbs", "up", "--dry-run", **url)
        assert (code, err) == (
            3,
            f"ratchet: nothing is stored under {unknown} yet: the feedback counts once its trajectory is; without"
            " --role the gateway takes it only if it has seen a call of it\n",
        )
        words = ("feedback", unknown, "--thumbs", "up", "--role", "support", "--json")
        code, out, err = await ratchet.ended(*words, **url)
        assert (code, "nothing is stored under" in err) == (3, True)
        assert json.loads(out)["feedback"][0]["trajectory_id"] == unknown

        async def published() -> bool:
            return (await bus.extent("RL_FEEDBACK")).last == before + 2

        await eventually(published)
