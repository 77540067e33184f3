"""What became of a training, attempt by attempt: what each used, and its curves.

An attempt that has ended left the figures of all its train steps in the object store (`training_curves` of its last
status). Of one that runs, or whose worker vanished, there are its worker's heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.errors import NotFound
from ratchet.core.rules.figures import TrainStep, finite, joined, train_steps

if TYPE_CHECKING:
    from ratchet.core.stores.policies import BlobStore
    from ratchet.core.stores.warehouse import Row, Warehouse

POINTS = 2000
"""Heartbeats of an attempt that are read at most, spread over its train steps."""

_USAGE = {
    name: f"max(JSONExtract(s.body, 'resource_usage', '{name}', 'Nullable(Float64)'))"
    for name in ("total_training_time_seconds", "gpu_hours", "cost_usd", "peak_memory_gb")
}
_ATTEMPTS = f"""
SELECT
    s.attempt AS number,
    argMax(s.status, s.at) AS state,
    min(s.at) AS first_at,
    max(s.at) AS last_at,
    argMax(JSONExtractString(s.body, 'metadata', 'worker'), s.at) AS worker,
    argMax(JSONExtractString(s.body, 'error', 'message'), s.at) AS error,
    argMax(JSONExtractString(s.body, 'artifacts', 'training_curves'), s.at) AS curves,
    coalesce(max(s.step), 0) AS last_step,
    {", ".join(f"{expression} AS {name}" for name, expression in _USAGE.items())}
FROM training_statuses AS s FINAL
WHERE s.training_job_id = {{job:String}} AND JSONHas(s.body, 'metadata', 'worker')
GROUP BY s.attempt
ORDER BY s.attempt
"""  # noqa: S608 - our own names
_COORDINATORS = """
SELECT s.attempt AS attempt, s.status AS state, JSONExtractString(s.body, 'error', 'message') AS error
FROM training_statuses AS s FINAL
WHERE s.training_job_id = {job:String} AND NOT JSONHas(s.body, 'metadata', 'worker')
"""
"""Its own: of a job that waits as its next attempt, why the one before ended; of one that ended, why."""
_HEARTBEATS = """
SELECT s.step AS step, JSONExtractRaw(s.body, 'metrics', 'current') AS figures
FROM training_statuses AS s FINAL
WHERE s.training_job_id = {job:String} AND s.attempt = {attempt:UInt32} AND s.step > 0
ORDER BY s.step, s.at
LIMIT 1 BY intDiv(s.step, {stride:UInt32})
"""


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job, as its worker reported it."""

    number: int
    state: str
    """Of its last status; `failed` where the worker vanished, with the coordinator's reason."""
    first_at: datetime
    last_at: datetime
    worker: str
    error: str
    """Empty: none."""
    curves: str
    """Uri of the figures of its train steps; empty: not stored."""
    last_step: int
    total_training_time_seconds: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None
    peak_memory_gb: float | None = None


class TrainingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of a job, and the train steps that led to where it is now."""

    attempts: Sequence[AttemptRecord] = ()
    steps: Sequence[TrainStep] = ()


async def training_history(warehouse: Warehouse, objects: BlobStore, job_id: str) -> TrainingHistory:
    """The history of a job, empty while no worker has had it."""
    rows = await warehouse.rows(_ATTEMPTS, {"job": job_id})
    reported = await warehouse.rows(_COORDINATORS, {"job": job_id})
    attempts = [_ended(msgspec.convert(row, AttemptRecord), reported) for row in rows]
    steps = [await _steps_of(warehouse, objects, job_id, attempt) for attempt in attempts]
    return TrainingHistory(attempts=attempts, steps=joined(steps))


def _ended(attempt: AttemptRecord, reported: Sequence[Row]) -> AttemptRecord:
    """An attempt whose worker fell silent has ended once the coordinator says so."""
    if attempt.state != "running":
        return attempt
    later = [row for row in reported if row["attempt"] == attempt.number + 1]
    ended = [row for row in reported if row["attempt"] == attempt.number and row["state"] in ("failed", "cancelled")]
    reasons = [row["error"] for row in later + ended if row["error"]]
    if not (later or ended):
        return attempt
    state = "cancelled" if ended and ended[0]["state"] == "cancelled" else "failed"
    return msgspec.structs.replace(attempt, state=state, error=reasons[0] if reasons else "its worker fell silent")


async def _steps_of(
    warehouse: Warehouse, objects: BlobStore, job_id: str, attempt: AttemptRecord
) -> Sequence[TrainStep]:
    if attempt.curves:
        try:
            return [*train_steps(await asyncio.to_thread(objects.get, attempt.curves))]
        except NotFound:
            pass  # collected since
    stride = max(1, attempt.last_step // POINTS)
    rows = await warehouse.rows(_HEARTBEATS, {"job": job_id, "attempt": attempt.number, "stride": stride})
    figures = [decode(row["figures"], JsonObject) if row["figures"].startswith("{") else {} for row in rows]
    return [TrainStep(row["step"], finite(members)) for row, members in zip(rows, figures, strict=True)]
