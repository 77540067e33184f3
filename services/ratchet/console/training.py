"""What a training measures and learns from, as pages show it: also while the job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.console import (
    AttemptOut,
    CardOut,
    CurveOut,
    CurvesOut,
    LogOut,
    RangeOut,
    RowOut,
    RowsOut,
)
from ratchet.core.contract.policy_manifest import TRAINING_LOG
from ratchet.core.contract.snapshot import EXECUTIONS, LABELS, PAIRS, TRAJECTORIES, SnapshotManifest
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.datasets.domain.row_reasons import SEEN, conditions, why_taken
from ratchet.core.datasets.parquet import read_page
from ratchet.core.datasets.s3_snapshots import RemoteRows, decode_manifest
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import RoleSet
from ratchet.core.rules.chat import last_answer
from ratchet.core.rules.figures import FIGURES, Point, curves_of
from ratchet.core.rules.texts import shown
from ratchet.core.stores.policies import STORED, read_policy
from ratchet.core.stores.training_history import training_history

if TYPE_CHECKING:
    from ratchet.bus.kv import Entry
    from ratchet.core.stores.objects import Objects
    from ratchet.core.stores.warehouse import Warehouse

POINTS = 1_000
"""Of a curve."""
LETTERS = 300
"""Of a row's text."""
ERROR = 4_000
"""Letters of an attempt's error."""
TEXT = 64 * 1024
"""Bytes of a card that are shown, where the trainer writes a few thousand, and of the end of a log."""
MANIFESTS = 8
"""Manifests that stay in memory, without the ids of their rows."""
Find = Callable[[str], "Awaitable[Entry[Job] | None]"]
"""The job with an id."""


class Training:
    """Reads curves from ClickHouse and the object store, and rows from the snapshot of a job."""

    def __init__(self, warehouse: Warehouse, objects: Objects, find: Find) -> None:
        self._warehouse = warehouse
        self._objects = objects
        self._find = find
        self._manifests: dict[str, SnapshotManifest] = {}

    async def curves(self, job_id: str, roles: RoleSet) -> CurvesOut:
        """The curves of a job of these roles, empty while it has measured nothing. Raises `NotFound`."""
        history = await training_history(self._warehouse, self._objects, job_id)
        if not (history.attempts and roles.is_every):
            await self._job(job_id, roles)
        curves = await asyncio.to_thread(curves_of, history.steps)
        known = [name for name in FIGURES if name in curves]
        return CurvesOut(
            training_job_id=job_id,
            attempts=[
                AttemptOut(
                    number=attempt.number,
                    state=attempt.state,
                    worker=attempt.worker,
                    began_at=attempt.first_at,
                    last_at=attempt.last_at,
                    last_step=attempt.last_step,
                    error=attempt.error[:ERROR] or None,
                    gpu_hours=attempt.gpu_hours,
                    peak_memory_gb=attempt.peak_memory_gb,
                )
                for attempt in history.attempts
            ],
            curves=[_curve(name, curves[name]) for name in (*known, *sorted(curves.keys() - FIGURES.keys()))],
        )

    async def rows(self, job_id: str, roles: RoleSet, offset: int, limit: int) -> RowsOut:
        """A page of the rows that a job learns from. Raises `NotFound`, also for a job that has none yet."""
        job = await self._job(job_id, roles)
        if job.snapshot is None:
            raise NotFound(f"job {job_id} has no snapshot yet: it is {job.state}")
        manifest = await asyncio.to_thread(self._manifest, job.snapshot)
        rows = await asyncio.to_thread(self._page, manifest, offset, limit)
        return RowsOut(
            uri=job.snapshot.uri,
            digest=job.snapshot.digest,
            format=manifest.format,
            total=manifest.rows,
            offset=offset,
            rows=rows,
            conditions=conditions(manifest),
            left_out={reason.replace("_", " "): count for reason, count in manifest.left_out.items()},
        )

    async def card(self, job_id: str, roles: RoleSet) -> CardOut:
        """The card of the policy that a job made. Raises `NotFound`, also for a job that made none."""
        job = await self._job(job_id, roles)
        uri = job.artifacts.model_card if job.artifacts is not None else None
        if uri is None:
            raise NotFound(f"job {job_id} has made no card: it is {job.state}")
        part = await asyncio.to_thread(self._objects.get_part, uri, 0, TEXT + 1)
        return CardOut(uri=uri, text=part[:TEXT].decode(errors="replace"), is_whole=len(part) <= TEXT)

    async def log(self, job_id: str, roles: RoleSet) -> LogOut:
        """The end of what the process printed that made a job's policy. Raises `NotFound`, also where none was made."""
        job = await self._job(job_id, roles)
        made = job.artifacts
        if made is None or made.final_checkpoint is None:
            raise NotFound(f"job {job_id} has kept no log: it is {job.state}, and a log is kept beside what a job made")
        policy = await asyncio.to_thread(read_policy, self._objects, made.final_checkpoint, made.digest, STORED)
        log = next((file for file in policy.manifest.documents if file.name == TRAINING_LOG), None)
        if log is None:
            raise NotFound(f"{policy.uri} has no log beside it")
        begin = max(0, log.size - TEXT)
        part = await asyncio.to_thread(self._objects.get_part, log.uri, begin, TEXT) if log.size else b""
        return LogOut(uri=log.uri, text=shown(part.decode(errors="replace")), is_whole=begin == 0)

    async def _job(self, job_id: str, roles: RoleSet) -> Job:
        entry = await self._find(job_id)
        if entry is None or entry.value.role not in roles:
            raise NotFound(f"there is no job {job_id}")
        return entry.value

    def _manifest(self, ref: SnapshotRef) -> SnapshotManifest:
        manifest = self._manifests.get(ref.digest)
        if manifest is None:
            whole = decode_manifest(self._objects.get(ref.uri, ref.digest), ref.uri)
            manifest = msgspec.structs.replace(whole, trajectories=[], preferences=None)
            while len(self._manifests) >= MANIFESTS:
                self._manifests.pop(next(iter(self._manifests)), None)
            self._manifests[ref.digest] = manifest
        return manifest

    def _page(self, manifest: SnapshotManifest, offset: int, limit: int) -> list[RowOut]:
        if offset >= manifest.rows:
            return []
        columns = SHOWN[manifest.format]
        file = RemoteRows(self._objects, manifest.parquet)
        page = read_page(file, [*dict.fromkeys((*columns.values(), *SEEN[manifest.format]))], offset, limit)
        return [
            _row({name: row[column] for name, column in columns.items()}, index, why_taken(row, manifest))
            for index, row in enumerate(page, offset)
        ]


def thinned(points: Sequence[Point], most: int) -> list[tuple[int, float]]:
    """At most so many points, evenly spread, the last one among them."""
    step = -(-len(points) // most) if points else 1
    last = len(points) - 1
    return [(point.step, point.value) for index, point in enumerate(points) if (last - index) % step == 0]


def _curve(name: str, points: Sequence[Point]) -> CurveOut:
    figure = FIGURES.get(name)
    good = figure and RangeOut(
        low=figure.bad_below, high=figure.bad_above, meaning=f"Good: {figure.good}; bad: {figure.bad}."
    )
    meaning = f"{figure.meaning}." if figure else None
    return CurveOut(name=name, meaning=meaning, good=good or None, points=thinned(points, POINTS))


SHOWN: Mapping[str, Mapping[str, str]] = {
    TRAJECTORIES: {"trajectory_id": "trajectory_id", "task": "task_key", "reward": "reward", "messages": "messages"},
    PAIRS: {"trajectory_id": "chosen_trajectory_id", "group": "group_key", "messages": "chosen"},
    LABELS: {"trajectory_id": "trajectory_id", "reward": "label", "messages": "completion"},
    EXECUTIONS: {"trajectory_id": "workflow_id", "reward": "reward", "text": "instruction"},
}
"""By format: what is shown of a row, and the column that has it. What is learnt is the last answer in `messages`, or
what was done about the `text`."""


def _row(shown: Mapping[str, Any], index: int, why: str) -> RowOut:  # of any type: each column has its own
    answer = shown["text"] if "text" in shown else _learnt(shown["messages"])
    task, reward = shown.get("task"), shown.get("reward")
    return RowOut(
        index=index,
        trajectory_id=shown["trajectory_id"],
        task=task,
        reward=None if reward is None else float(reward),
        group=shown.get("group") or task,
        text=" ".join(answer.split())[:LETTERS],
        why=why,
    )


def _learnt(messages: str) -> str:
    return last_answer(msgspec.json.decode(messages, type=list[JsonObject]))
