"""Finished jobs, and traffic through the broker, for integration tests of the deployer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import uuid_utils
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import START
from ratchet.core.contract import TrainingStatus, named_id
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import POLICIES, Route
from ratchet.core.contract.training import Artifacts
from ratchet.core.rules.arms import arm_of
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import publish_policy
from tests.support.canary_world import ROLE, complaint_of, reward_of, start_of, turn_of
from tests.support.scoring_engine import probe


def finished_job(objects: Objects, number: int) -> TrainingStatus:
    """A completed job whose policy manifest is in the object store."""
    job = named_id("job", number)
    manifest = PolicyManifest(
        kind="adapter",
        base_model="base",
        files=[],
        role=ROLE,
        created_at=START,
        training_job_id=job,
        training_samples=8,
        probe=probe(),
    )
    policy = publish_policy(objects, manifest)
    artifacts = Artifacts(final_checkpoint=policy.uri, digest=policy.digest, kind="adapter")
    return TrainingStatus(training_job_id=job, timestamp=START, status="completed", role=ROLE, artifacts=artifacts)


class Traffic:
    """Agents, gateway and judge in one: trajectories whose success depends on the policy that answered."""

    def __init__(
        self,
        bus: Bus,
        success: dict[int, float],
        seed: int = 1,
        subject: str | None = None,
        complained_of: frozenset[int] = frozenset(),
    ) -> None:
        """`complained_of`: versions of whose every trajectory its user complains."""
        self._bus = bus
        self._routes = Bucket(bus, POLICIES, Route)
        self._success = success
        self._random = random.Random(seed)
        self._subject = subject
        self._complained_of = complained_of
        self.compared = 0
        """Trajectories that a rollout must have counted."""

    async def play(self, count: int) -> None:
        """`count` trajectories, each with one call and its reward, once the newest weight of the route is in force."""
        entry = await self._routes.get(ROLE)
        assert entry is not None
        if entry.value.canary is not None:
            await asyncio.sleep(max(0.0, (entry.value.canary.schedule[-1].at - self._bus.now()).total_seconds()))
        starts: list[Any] = []
        calls: list[Any] = []
        rewards: list[Any] = []
        complaints: list[Any] = []
        for _ in range(count):
            trajectory_id = str(uuid_utils.uuid7())
            given = arm_of(entry.value, trajectory_id)
            assert given is not None
            success = self._random.random() < self._success[given.policy.version]
            start = start_of(trajectory_id, given.arm, given.policy.version, given.weight, entry.value)
            starts.append(replace(start, subject_ref=self._subject))
            calls.append(turn_of(trajectory_id, given.arm, given.policy.version, given.weight))
            rewards.append(reward_of(trajectory_id, success=success))
            complaints += [complaint_of(trajectory_id)] if given.policy.version in self._complained_of else []
            self.compared += given.weight > 0
        await self._bus.publish_all(starts)
        await self._bus.publish_all(calls)
        await self._bus.publish_all(complaints)
        await self._bus.publish_all(rewards)
