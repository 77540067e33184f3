"""From a job to its snapshot: choose trajectories, join their turns, rewards and baselines, write them down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from ratchet.kernel.errors import Rejected
from ratchet.messages.base import JsonObject
from ratchet.messages.state import Job
from ratchet.messages.training import DatasetFilter, SnapshotRef
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.clickhouse_trajectories import Catalogue, Trajectories
from ratchet.rl_coordinator.domain.baselines import baselines
from ratchet.rl_coordinator.domain.lineage import consumed_snapshots
from ratchet.rl_coordinator.domain.requests import uses_policy_gradient
from ratchet.rl_coordinator.domain.rows import TRANSFORMS, Recipe, Row, Scored, row_of
from ratchet.rl_coordinator.domain.selection import (
    LEFT_OUT_ARMS,
    Candidate,
    Rules,
    Selection,
    age_order,
    select,
)
from ratchet.rl_coordinator.kv_policies import Policies
from ratchet.rl_coordinator.s3_snapshots import Origin, Snapshots, SnapshotWriter

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Export:
    """A finished snapshot."""

    snapshot: SnapshotRef
    trajectories: int


class Exporter:
    """Makes snapshots. Holds nothing between two exports but manifests it has read."""

    def __init__(
        self, trajectories: Trajectories, snapshots: Snapshots, chunk: int, now: Callable[[], datetime]
    ) -> None:
        self._trajectories = trajectories
        self._snapshots = snapshots
        self._chunk = chunk
        self._now = now

    async def export(self, job: Job, policies: Policies, parent: str | None) -> Export:
        """Write the snapshot that `job` asks for. Raises `Rejected`, with counts by reason, when nothing is usable."""
        given = job.request.training_config.dataset.snapshot
        if given is not None:
            manifest = await asyncio.to_thread(self._snapshots.manifest, given)
            return Export(given, manifest.rows)
        with metrics.SNAPSHOT_SECONDS.time():
            return await self._export(job, policies, parent)

    async def _export(self, job: Job, policies: Policies, parent: str | None) -> Export:
        config = job.request.training_config
        recipe = _recipe(job)
        catalogue = await self._trajectories.catalogue(job.role)
        rules = Rules(
            filter=config.dataset.filter or DatasetFilter(),
            needs_calls=recipe.needs_calls,
            consumed=await self._consumed(policies) if recipe.needs_calls else frozenset(),
        )
        selection = select(catalogue.candidates, rules, config.dataset.sample_size)
        scores = _scores(catalogue.candidates, recipe.transform)
        left_out = Counter(selection.left_out)
        with self._snapshots.writer() as writer:
            for candidates in _chunks(selection.chosen, self._chunk):
                left_out.update(await self._add(writer, job.role, candidates, scores, recipe))
            if writer.rows == 0:
                raise Rejected(_nothing(job, selection, left_out))
            origin = self._origin(job, catalogue, parent)
            snapshot = await asyncio.to_thread(writer.publish, origin, dict(left_out))
            self._count(writer.rows, left_out)
            log.info("snapshot exported", job=job.training_job_id, rows=writer.rows, left_out=dict(left_out))
            return Export(snapshot, writer.rows)

    async def _consumed(self, policies: Policies) -> frozenset[str]:
        """Trajectories that the stable policy's lineage has learned from."""
        digests = consumed_snapshots(policies.stable.version if policies.stable else None, policies.versions)
        found = await asyncio.to_thread(lambda: [self._snapshots.trajectory_ids(digest) for digest in digests])
        return frozenset[str]().union(*found)

    async def _add(
        self,
        writer: SnapshotWriter,
        role: str,
        candidates: Sequence[Candidate],
        scores: Mapping[str, Scored],
        recipe: Recipe,
    ) -> Counter[str]:
        """Write the rows of some candidates; returns how many could not be made, by reason."""
        ids = [candidate.trajectory_id for candidate in candidates]
        trajectories = await self._trajectories.trajectories(role, ids)
        turns = await self._trajectories.turns(role, ids)

        def write() -> Counter[str]:
            made = [row_of(trajectories[key], turns[key], scores[key], recipe) for key in ids if key in trajectories]
            writer.add([row for row in made if isinstance(row, Row)])
            return Counter(reason for reason in made if isinstance(reason, str))

        return await asyncio.to_thread(write)

    def _origin(self, job: Job, catalogue: Catalogue, parent: str | None) -> Origin:
        dataset = job.request.training_config.dataset
        return Origin(
            role=job.role,
            training_job_id=job.training_job_id,
            algorithm=job.algorithm,
            created_at=self._now(),
            filters=_plain(dataset.filter or DatasetFilter()),
            sample_size=dataset.sample_size,
            reward_function=catalogue.reward_function,
            reward_transform=_recipe(job).transform,
            watermarks=dict(catalogue.watermarks),
            parent_policy=parent,
        )

    def _count(self, rows: int, left_out: Mapping[str, int]) -> None:
        metrics.SNAPSHOT_TRAJECTORIES.labels("exported").inc(rows)
        for reason, count in left_out.items():
            metrics.SNAPSHOT_TRAJECTORIES.labels(reason).inc(count)


def _recipe(job: Job) -> Recipe:
    transform = job.request.training_config.dataset.reward_transform or "identity"
    return Recipe(transform=transform, needs_calls=uses_policy_gradient(job.algorithm))


def _scores(candidates: Sequence[Candidate], transform: str) -> Mapping[str, Scored]:
    """Reward and baseline of every candidate. Baselines are folded over all of the role's own traffic, oldest first."""
    transformed = TRANSFORMS[transform]
    counted = [candidate for candidate in candidates if not candidate.arms & LEFT_OUT_ARMS]
    history = [(c.trajectory_id, c.task_key, transformed(c.reward)) for c in sorted(counted, key=age_order)]
    known = baselines(history)
    return {c.trajectory_id: Scored(c.task_key, c.reward, known.get(c.trajectory_id)) for c in candidates}


def _nothing(job: Job, selection: Selection, left_out: Mapping[str, int]) -> str:
    """Why there is nothing to learn from, for people."""
    seen = len(selection.chosen) + sum(selection.left_out.values())
    if seen == 0:
        return f"role {job.role} has no stored trajectory with a reward"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(left_out.items()))
    return f"none of {seen} rewarded trajectories of role {job.role} can be used by {job.algorithm}: {reasons}"


def _chunks(candidates: Sequence[Candidate], size: int) -> Iterator[Sequence[Candidate]]:
    for start in range(0, len(candidates), size):
        yield candidates[start : start + size]


def _plain(chosen: DatasetFilter) -> JsonObject:
    return msgspec.to_builtins(chosen)
