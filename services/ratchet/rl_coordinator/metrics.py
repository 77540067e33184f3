"""What the coordinator counts."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable

from prometheus_client import Counter, Gauge, Histogram

from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.rl_coordinator.jobs.domain.failures import failures_in_a_row

JOBS = Gauge("ratchet_jobs", "Training jobs by state.", ["state"])
OPEN_JOBS = Gauge("ratchet_open_jobs", "Training jobs that have not ended: what each pool needs workers for.", ["pool"])
QUEUE_WAIT = Histogram(
    "ratchet_job_queue_wait_seconds",
    "Time from a job's creation to its first dispatch.",
    buckets=(1, 5, 15, 60, 300, 900, 3600, 14400),
)
FAILURES = Gauge("ratchet_training_failures_in_a_row", "Newest jobs of a role that all failed.", ["role"])
ATTEMPTS = Counter("ratchet_job_attempts_total", "Dispatched attempts, by whether they were the first.", ["kind"])
SNAPSHOT_TRAJECTORIES = Counter(
    "ratchet_snapshot_trajectories_total", "Trajectories seen by exports: exported, or why not.", ["fate"]
)
SWEPT = Counter("ratchet_swept_objects_total", "Objects that a sweep set aside, by reason.", ["reason"])
SWEPT_BYTES = Counter("ratchet_swept_bytes_total", "Their bytes.", ["reason"])
SNAPSHOT_SECONDS = Histogram(
    "ratchet_snapshot_seconds", "Time one export took.", buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900)
)


def count_jobs(jobs: Collection[Job], pools: Iterable[str]) -> None:
    """Set the gauge of every state and pool, also of those without a job, and of every role."""
    still_open = Tally(job.pool for job in jobs if job.state not in ENDED)
    OPEN_JOBS.clear()  # of a pool that no setting names any more
    for pool in {*pools, *still_open}:
        OPEN_JOBS.labels(pool).set(still_open[pool])
    for role, row in failures_in_a_row(jobs).items():
        FAILURES.labels(role).set(row)
    tally = Tally(job.state for job in jobs)
    for state in JobState:
        JOBS.labels(state.value).set(tally[state])
