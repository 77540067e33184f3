"""Which queued jobs get a slot now: priorities, first come first served within one, and nothing starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from ratchet.contract.state import Job, JobState
from ratchet.contract.training import TrainingRequest
from ratchet.rl_coordinator.jobs.domain.jobs import ACTIVE, announcement

PRIORITIES: Mapping[str, int] = {"urgent": 0, "high": 1, "normal": 2, "low": 3}
DEFAULT_POOL, GPU_POOL = "default", "gpu"


def turn_at(job: Job, ageing_s: float) -> datetime:
    """When the job's turn comes: its creation, put off by `ageing_s` for each step below `urgent`.

    Jobs are served in this order. A job is therefore overtaken only by better ones created within a bounded time after
    it (three steps at most), and equal priorities are first come, first served.
    """
    step = PRIORITIES.get(job.priority, PRIORITIES["normal"])
    return job.created_at + timedelta(seconds=step * ageing_s)


def in_order(jobs: Iterable[Job], ageing_s: float) -> list[Job]:
    """Jobs as they will be served."""
    return sorted(jobs, key=lambda job: (turn_at(job, ageing_s), job.created_at, job.training_job_id))


def next_up(jobs: Iterable[Job], slots: Mapping[str, int], *, ageing_s: float, now: datetime) -> list[Job]:
    """The queued jobs that fit into free slots of their pools, best first; the rest keeps waiting."""
    everything = list(jobs)
    used = slots_used(everything)
    free = {pool: total - used[pool] for pool, total in slots.items()}
    chosen: list[Job] = []
    for job in in_order((job for job in everything if _is_waiting(job, now)), ageing_s):
        if free.get(job.pool, 0) > 0:
            free[job.pool] -= 1
            chosen.append(job)
    return chosen


def slots_used(jobs: Iterable[Job]) -> Counter[str]:
    """Held slots by pool."""
    return Counter(job.pool for job in jobs if job.state in ACTIVE)


def pool_of(request: TrainingRequest, slots: Mapping[str, int]) -> str:
    """Jobs that ask for a GPU go to the pool `gpu` where there is one, all others to `default`."""
    compute = request.training_config.compute
    wants_gpu = compute is not None and (compute.gpu_count or 0) > 0
    return GPU_POOL if wants_gpu and GPU_POOL in slots else DEFAULT_POOL


def _is_waiting(job: Job, now: datetime) -> bool:
    """Queued, announced as such (so that the bus hears of states in order), and not in a pause before a retry."""
    announced = job.announced == announcement(job)
    return job.state == JobState.QUEUED and announced and (job.retry_at is None or job.retry_at <= now)
