"""What the demo shows at one moment, and the observer who keeps it up to date without disturbing the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ratchet.bus.kv import Bucket
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.state import JOBS, Job, PolicyVersion
from ratchet.core.errors import RatchetError
from ratchet.local.demo.clickhouse_facts import Facts, Traffic, VersionTraffic
from ratchet.local.demo.connections import Connections
from ratchet.local.demo.exams import Exam, read_exams
from ratchet.local.demo.progress import TRAINER, Progress
from ratchet_helpdesk.worlds import World

LOOK_S = 1.0
"""Pause between two looks."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is shown."""

    traffic: Traffic = field(default_factory=Traffic)
    jobs: Sequence[Job] = ()
    """Oldest first."""
    policies: Sequence[PolicyVersion] = ()
    """By version."""
    by_version: Mapping[int, VersionTraffic] = field(default_factory=dict[int, VersionTraffic])
    exams: Mapping[int, Exam] = field(default_factory=dict[int, Exam])
    """By version, of those that played the held-out tickets."""
    stable: int | None = None
    rollout: RolloutOut | None = None
    """The newest."""

    @property
    def running_job(self) -> Job | None:
        """The job that waits or runs, if there is one."""
        return next((job for job in reversed(self.jobs) if job.finished_at is None), None)


class Observer:
    """`picture` is what was seen last."""

    def __init__(self, connections: Connections, progress: Progress, exams: Path, world: World) -> None:
        self._connections = connections
        self._world = world
        self._exams = exams
        self._progress = progress
        self._facts = Facts(connections.warehouse, world.role)
        self._ended: dict[str, Job] = {}
        self.picture = Picture()

    async def run(self) -> None:
        """Look until cancelled. What cannot be seen for now is shown as it was."""
        while True:
            with suppress(RatchetError):
                await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once at everything."""
        connections, role = self._connections, self._world.role
        route, rollout = await connections.route(role), await connections.rollout(role)
        policies = await connections.policies(role)
        self.picture = replace(
            self.picture,
            jobs=await self._jobs(),
            policies=policies,
            exams=await asyncio.to_thread(read_exams, self._exams, role, [policy.version for policy in policies]),
            stable=route.stable.version if route and route.stable else None,
            rollout=rollout,
        )
        current = self._progress.current
        if current is None or current.station != TRAINER:  # while it trains, no traffic changes
            traffic, by_version = await self._facts.traffic(), await self._facts.by_version()
            self.picture = replace(self.picture, traffic=traffic, by_version=by_version)

    async def _jobs(self) -> list[Job]:
        """The demo's jobs; one that has ended is not read again."""
        bucket = Bucket(self._connections.bus, JOBS, Job)
        current = {key: entry.value for key, entry in (await bucket.items(lambda key: key not in self._ended)).items()}
        self._ended |= {key: job for key, job in current.items() if job.finished_at is not None}
        jobs = (self._ended | current).values()
        roles = (self._world.role, self._world.base_role)
        return sorted((job for job in jobs if job.role in roles), key=lambda job: job.created_at)
