"""The deployer on the real broker: finished jobs are refused, promoted or rolled back; a kill costs nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.clock import utc_now
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.nats_decisions import decisions_of
from ratchet.canary_deployer.nats_events import NatsEventSource, started_roles
from ratchet.canary_deployer.settings import Settings
from ratchet.core.contract import ModelDeployed, ModelRollout, PolicyClaim, Start, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.errors import Unavailable
from tests.support.canary_stage import Stage, stage
from tests.support.canary_traffic import Traffic
from tests.support.canary_world import ROLE
from tests.support.consuming import messages_of
from tests.support.running import http_client, running_app
from tests.support.servers import Broker, RunningServer, variables

pytestmark = pytest.mark.slow

UNDECIDED: Mapping[str, Any] = {"margin": 0.49, "stage_min_trajectories": (5, 10**9)}
"""With these no draw of arms ends a rollout that a test expects to keep running."""


@pytest.mark.timeout(180)
async def test_finished_jobs_become_stable_refused_promoted_or_rolled_back(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with stage(nats, s3, tmp_path, (0.5, 0.2, 0.9, 0.92)) as test, running_app(build(test.settings)):
        await test.finish_job(1)
        first = await test.stage_is(1, "stable")
        assert first.reason == "first policy of the role"

        await test.finish_job(2)
        refused = await test.stage_is(2, "refused")
        assert refused.gate is not None
        assert refused.gate["heldout_tasks"]["evidence"]["difference"] == -0.3

        traffic = Traffic(test.bus, {1: 0.5, 3: 0.95, 4: 0.05})
        await test.finish_job(3)
        await test.stage_is(3, "canary")
        assert (await test.play_until_decided(traffic, 3)).stage == "stable"
        assert (await test.stage_is(1, "archived")).version == 1

        await test.finish_job(4)
        await test.stage_is(4, "canary")
        assert (await test.play_until_decided(traffic, 4)).stage == "rolled_back"

        async def published_all() -> bool:
            return not (await test.rollout()).outbox

        await eventually(published_all)
        route = await test.route()
        assert route.stable is not None
        assert (route.stable.version, route.canary, route.next_version) == (3, None, 5)
        decisions = await messages_of(test.bus, ModelRollout)
        assert first_break(decisions) is None
        verdicts = [(d.to_version, d.verdict) for d in decisions]
        assert verdicts[:3] == [(1, "promote"), (2, "refuse"), (3, "start")]
        assert verdicts[-1] == (4, "roll_back")
        deployed = await messages_of(test.bus, ModelDeployed)
        assert [d.policy_version for d in deployed if d.state == "registered"] == [1, 2, 3, 4]
        assert [d.policy_version for d in deployed if d.state == "promoted"] == [1, 3]


async def test_an_audit_finds_a_forged_decision(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path) as test, running_app(build(test.settings)):
        await test.finish_job(1)
        await test.stage_is(1, "stable")
        url = f"http://127.0.0.1:{test.settings.port}/v1/rollouts/{ROLE}/audit"
        async with http_client() as client:

            async def whole() -> bool:
                return (await client.get(url)).json()["whole"]

            await eventually(whole)
            (decision,) = await messages_of(test.bus, ModelRollout)
            forged = msgspec.structs.replace(decision, sequence=1, actor="nobody")
            await test.bus.publish(forged)
            audit = (await client.get(url)).json()
        assert (audit["whole"], audit["decisions"]) == (False, 2)
        assert audit["first_break"]["event_id"] == forged.event_id


async def test_an_audit_passes_over_what_is_no_decision(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path) as test:
        await test.bus.nc.request(ModelRollout.TOPIC, b"no decision")
        assert await decisions_of(test.bus, ROLE) == []


async def test_the_starts_of_one_role_are_counted_by_the_broker(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with stage(nats, s3, tmp_path) as test:
        source = NatsEventSource(test.bus)
        assert await source.recent_starts(ROLE, utc_now()) == (0, 86400.0)
        assert await started_roles(test.bus) == {}
        roles = (ROLE, "other", DEFAULT_ROLE)
        await test.bus.publish_all([start_of(f"{role}-{n}", role) for role in roles for n in range(7)])
        assert await started_roles(test.bus) == dict.fromkeys(roles, 7)
        count, seconds = await source.recent_starts(ROLE, utc_now())
        assert count == 7
        assert 0 <= seconds < 60


async def test_the_subjects_of_the_latest_starts_are_read(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path) as test:
        source, named = NatsEventSource(test.bus), "0123456789abcdef"
        await test.bus.publish_all([start_of(f"old-{n}", ROLE) for n in range(20)])
        await test.bus.publish_all([start_of(f"new-{n}", ROLE, named if n % 2 else None) for n in range(1000)])
        await test.bus.publish(start_of("else", "other", named))
        subjects = await source.recent_subjects(ROLE, utc_now())
        assert subjects == [None, named] * 500


def start_of(trajectory_id: str, role: str, subject: str | None = None) -> Start:
    """A trajectory that met the stable policy."""
    claim = PolicyClaim(role=role, version=1, digest="1" * 64, arm="stable", weight=0.0)
    return Start(
        trajectory_id=named_id(trajectory_id), timestamp=utc_now(), policy=claim, role=role, subject_ref=subject
    )


async def test_a_policy_that_the_engine_cannot_verify_is_refused(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with stage(nats, s3, tmp_path) as test, running_app(build(test.settings)):
        test.engine.broken.add(f"{ROLE}@1")
        await test.finish_job(1)
        refused = await test.stage_is(1, "refused")
        assert refused.reason is not None
        assert refused.reason.startswith("gate probe: the engine cannot serve it: engine_local at http://127.0.0.1:")
        assert refused.reason.endswith(f": sha256 of the files of {refused.name} differs")
        assert (await test.route()).stable is None


async def test_a_rollback_reaches_the_route(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path, (0.9, 0.9)) as test, running_app(build(test.settings)):
        await test.finish_job(1)
        await test.stage_is(1, "stable")
        await test.finish_job(2)
        await test.stage_is(2, "canary")
        traffic = Traffic(test.bus, {1: 1.0, 2: 0.0})
        await traffic.play(150)

        async def back() -> bool:
            return (await test.route()).canary is None

        await eventually(back)
        assert (await test.stage_is(2, "rolled_back")).reason is not None


@pytest.mark.timeout(180)
async def test_a_canary_that_users_complain_of_is_rolled_back(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path, (0.9, 0.9), horizon_s=1.0) as test, running_app(build(test.settings)):
        await test.finish_job(1)
        await test.stage_is(1, "stable")
        await test.finish_job(2)
        await test.stage_is(2, "canary")
        await Traffic(test.bus, {1: 1.0, 2: 1.0}, complained_of=frozenset({2})).play(120)
        ended = await test.stage_is(2, "rolled_back")
        assert ended.reason is not None
        assert ended.reason.startswith("more complaints than the margin: e-value")


async def test_a_killed_deployer_resumes_the_same_stage_and_the_same_statistics(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    async with stage(nats, s3, tmp_path, (0.7, 0.75), **UNDECIDED) as test:
        traffic = Traffic(test.bus, {1: 0.7, 2: 0.7})
        async with deployer(test.settings) as first:
            await test.finish_job(1)
            await test.stage_is(1, "stable")
            await test.finish_job(2)
            await test.stage_is(2, "canary")
            await traffic.play(60)
            await eventually(counted(test, traffic.compared))

            async def advanced() -> Rollout | None:
                rollout = await test.rollout()
                return rollout if rollout.stage >= 1 else None

            before = await eventually(advanced)
            await traffic.play(60)
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
        await traffic.play(30)
        lease = (await test.route()).canary
        async with deployer(test.settings):
            await eventually(counted(test, traffic.compared))
            after = await test.rollout()
            assert after.rollout_id == before.rollout_id
            assert after.stage >= before.stage
            assert after.salt == before.salt
            assert after.state == "running"

            async def renewed() -> bool:
                canary = (await test.route()).canary
                return canary is not None and lease is not None and canary.lease > lease.lease

            await eventually(renewed)
            async with http_client(base_url=f"http://127.0.0.1:{test.settings.port}") as client:
                done = await client.post(
                    f"/v1/rollouts/{ROLE}/promote", json={"actor": "ann", "reason": "seen enough", "override": True}
                )
            assert done.json()["state"] == "promoted"
        assert first_break(await messages_of(test.bus, ModelRollout)) is None


@pytest.mark.timeout(180)
async def test_suspended_canary_waits_for_a_person_over_a_kill(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path, (0.9, 0.9), **UNDECIDED) as test:
        async with deployer(test.settings) as first:
            await test.finish_job(1)
            await test.stage_is(1, "stable")
            await test.finish_job(2)
            await test.stage_is(2, "canary")
            await Traffic(test.bus, {1: 1.0, 2: 0.0}, subject="0" * 16).play(150)
            await eventually(suspended(test))
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
        async with deployer(test.settings), http_client(base_url=f"http://127.0.0.1:{test.settings.port}") as client:
            order = {"actor": "ann", "reason": "one user's tasks"}

            async def resumed() -> bool:
                try:
                    return (await client.post(f"/v1/rollouts/{ROLE}/resume", json=order)).is_success
                except httpx.HTTPError:
                    return False

            await eventually(suspended(test))
            assert await eventually(resumed)
        assert (await test.rollout()).state == "running"
        assert (await test.route()).canary is not None
        decisions = await messages_of(test.bus, ModelRollout)
        assert [decision.verdict for decision in decisions][-3:] == ["start", "suspend", "resume"]
        assert first_break(decisions) is None


def suspended(test: Stage) -> Any:
    """Whether a suspension was announced, and the canary has no traffic."""

    async def probe() -> bool:
        rollout = await test.rollout()
        return rollout.state == "suspended" and not rollout.outbox and (await test.route()).canary is None

    return probe


@pytest.mark.own_broker
async def test_a_broker_that_was_killed_costs_no_trajectory(
    nats: RunningServer, s3: RunningServer, tmp_path: Path
) -> None:
    async with stage(nats, s3, tmp_path, (0.7, 0.75), **UNDECIDED) as test, running_app(build(test.settings)):
        traffic = Traffic(test.bus, {1: 0.7, 2: 0.7})
        await test.finish_job(1)
        await test.stage_is(1, "stable")
        await test.finish_job(2)
        await test.stage_is(2, "canary")
        await traffic.play(40)
        await eventually(counted(test, traffic.compared))
        await asyncio.to_thread(nats.kill)
        await asyncio.to_thread(nats.start)
        await eventually(reachable(test))
        await traffic.play(40)
        await eventually(counted(test, traffic.compared))
        assert (await test.rollout()).state == "running"


def reachable(test: Stage) -> Any:
    """Whether the broker answers again."""

    async def probe() -> bool:
        try:
            return (await test.route()).canary is not None
        except Unavailable:
            return False

    return probe


def counted(test: Stage, trajectories: int) -> Any:
    """Whether the stored statistics hold so many trajectories, neither more nor less."""

    async def probe() -> bool:
        watch = (await test.rollout()).statistics
        counted = watch.stable.trajectories + watch.canary.trajectories
        assert counted <= trajectories
        return counted == trajectories

    return probe


@asynccontextmanager
async def deployer(settings: Settings) -> AsyncIterator[asyncio.subprocess.Process]:
    """The deployer as a process of its own, ended by SIGTERM unless it was killed."""
    own: dict[str, str] = {"RATCHET_DEPLOYER_PORT": str(settings.port)}
    for name, value in settings.model_dump(mode="json", include={"task_files", "safety_suites"}).items():
        own[f"RATCHET_CANARY_{name.upper()}"] = json.dumps(value)
    for name in ("engine_url", "gateway_url", "margin", "soak_s"):
        own[f"RATCHET_CANARY_{name.upper()}"] = str(getattr(settings, name))
    minima = ",".join(map(str, settings.stage_min_trajectories))
    lists = {"STAGES": "25,50", "STAGE_MIN_S": "0", "STAGE_MIN_TRAJECTORIES": minima}
    own |= {f"RATCHET_CANARY_{name}": value for name, value in lists.items()}
    command = [sys.executable, "-m", "ratchet.canary_deployer"]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **variables(settings.shared), **own})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(20):
                assert await process.wait() == 0
