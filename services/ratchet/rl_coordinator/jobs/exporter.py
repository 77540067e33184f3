"""From a job to its snapshot: choose what it asks for, make the rows, write them down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from ratchet.bus.message import JsonObject
from ratchet.contract.http.jobs import PreviewOut
from ratchet.contract.snapshot import SNAPSHOT, SnapshotHeader
from ratchet.contract.state import Job
from ratchet.contract.training import Dataset, DatasetFilter, SnapshotRef, TrainingRequest
from ratchet.datasets.domain.selection import pending_rewards_note
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.datasets.selector import SnapshotPlan, SnapshotQuery, SnapshotSelector
from ratchet.errors import Rejected
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.references import given_snapshot
from ratchet.rl_coordinator.registry.kv_policies import Policies
from ratchet.rl_coordinator.registry.lineage import consumed_snapshots

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Export:
    """A finished snapshot."""

    snapshot: SnapshotRef
    trajectories: int
    """Rows: trajectories, or preference pairs."""


class Exporter:
    """Makes snapshots. Holds nothing between two exports but manifests it has read."""

    def __init__(
        self, selector: SnapshotSelector, snapshots: Snapshots, chunk: int, now: Callable[[], datetime]
    ) -> None:
        self._selector = selector
        self._snapshots = snapshots
        self._chunk = chunk
        self._now = now

    async def export(self, job: Job, policies: Policies, parent: str | None) -> Export:
        """Write the snapshot that `job` asks for. Raises `Rejected`, with counts by reason, when that is too little.

        A snapshot that the job names is taken as it is; one of another role is refused.
        """
        given = job.request.training_config.dataset.snapshot
        if given is not None:
            manifest = await asyncio.to_thread(given_snapshot, self._snapshots, given, job.role)
            return Export(given, manifest.rows)
        with metrics.SNAPSHOT_SECONDS.time():
            wanted = await self._wanted(job.role, job.algorithm, job.request.training_config.dataset, policies)
            return await self._export(job, wanted, parent)

    async def _wanted(self, role: str, algorithm: str, dataset: Dataset, policies: Policies) -> SnapshotQuery:
        """What a job asks for, with what the stable policy's lineage has already learned from."""
        digests = consumed_snapshots(policies.stable.version if policies.stable else None, policies.versions)
        consumed = await asyncio.to_thread(self._snapshots.consumed, digests)
        return SnapshotQuery(role, algorithm, dataset, consumed)

    async def preview(self, request: TrainingRequest, policies: Policies) -> PreviewOut:
        """What the snapshot of a job for `request` would hold; all rows are made, and none is written.

        Raises `Rejected` for a request that brings its snapshot: nothing is chosen for it.
        """
        config = request.training_config
        if config.dataset.snapshot is not None:
            raise Rejected("dataset.snapshot is given: there is nothing to choose")
        wanted = await self._wanted(request.role, config.algorithm, config.dataset, policies)
        draft = await self._selector.select(wanted)
        left_out, sources = Counter(draft.left_out), Counter[str]()
        for ids in _chunks(draft.ids, self._chunk):
            made = await draft.rows(ids)
            left_out.update(row for row in made if isinstance(row, str))
            sources.update(row.origin.source for row in made if not isinstance(row, str))
        rows = sources.total()
        short = _shortage(wanted, draft, rows, left_out) if rows < max(1, draft.minimum) else None
        return PreviewOut(
            format=wanted.format,
            rows=rows,
            left_out=left_out,
            waiting=draft.waiting,
            sources=sources,
            watermarks=dict(draft.watermarks),
            reward_function=draft.reward_function,
            refused=draft.problem or short,
        )

    async def _export(self, job: Job, wanted: SnapshotQuery, parent: str | None) -> Export:
        draft = await self._selector.select(wanted)
        if draft.problem:
            raise Rejected(f"role {job.role} cannot be trained by {job.algorithm}: {draft.problem}")
        left_out = Counter(draft.left_out)
        with self._snapshots.writer(wanted.format) as writer:
            for ids in _chunks(draft.ids, self._chunk):
                made = await draft.rows(ids)
                left_out.update(reason for reason in made if isinstance(reason, str))
                await asyncio.to_thread(writer.add, [row for row in made if not isinstance(row, str)])
            if writer.rows < max(1, draft.minimum):
                raise Rejected(_shortage(wanted, draft, writer.rows, left_out))
            header = self._header(job, wanted, draft, parent)
            snapshot = await asyncio.to_thread(writer.publish, header, dict(left_out))
            _count(writer.rows, left_out)
            log.info("snapshot exported", job=job.training_job_id, rows=writer.rows, left_out=dict(left_out))
            return Export(snapshot, writer.rows)

    def _header(self, job: Job, wanted: SnapshotQuery, draft: SnapshotPlan, parent: str | None) -> SnapshotHeader:
        return SnapshotHeader(
            kind=SNAPSHOT,
            role=job.role,
            training_job_id=job.training_job_id,
            algorithm=job.algorithm,
            created_at=self._now(),
            filters=_plain(wanted.filter),
            sample_size=wanted.dataset.sample_size,
            reward_function=draft.reward_function,
            reward_transform=wanted.reward_transform,
            watermarks=dict(draft.watermarks),
            parent_policy=parent,
        )


def _count(rows: int, left_out: Mapping[str, int]) -> None:
    metrics.SNAPSHOT_TRAJECTORIES.labels("exported").inc(rows)
    for reason, count in left_out.items():
        metrics.SNAPSHOT_TRAJECTORIES.labels(reason).inc(count)


def _shortage(wanted: SnapshotQuery, draft: SnapshotPlan, rows: int, left_out: Mapping[str, int]) -> str:
    """Why there is too little to learn from, for people."""
    one, many = draft.nouns
    seen, waiting = rows + sum(left_out.values()), pending_rewards_note(draft.waiting)
    if seen == 0:
        return f"role {wanted.role} has no stored {one}{waiting}"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(left_out.items()))
    usable = f"{rows or 'none'} of {seen} {many} of role {wanted.role} can be used by {wanted.algorithm}"
    needed = f", which needs at least {draft.minimum}" if draft.minimum > 1 else ""
    return f"{usable}{needed}{': ' if reasons else ''}{reasons}{waiting}"


def _chunks(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _plain(chosen: DatasetFilter) -> JsonObject:
    return msgspec.to_builtins(chosen)
