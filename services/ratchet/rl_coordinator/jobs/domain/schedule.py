"""Which queued jobs get a slot now: priorities, first come first served within one, and no job starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import TrainingRequest
from ratchet.core.rules.algorithms import ALGORITHMS, PROMPTS
from ratchet.rl_coordinator.jobs.domain.jobs import ACTIVE, is_announced

PRIORITIES: Mapping[str, int] = {"urgent": 0, "high": 1, "normal": 2, "low": 3}
SKEW = timedelta(minutes=1)
"""So far apart are the clocks of two coordinators at most."""
DEFAULT_POOL, GPU_POOL = "default", "gpu"


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many jobs run at a time, and which one is next."""

    slots: Mapping[str, int]
    """By pool."""
    ageing_s: float
    """A job is put off by this long for each priority below `urgent`."""

    def pool_of(self, request: TrainingRequest) -> str:
        """Searches for bundles go to the pool `prompts`, jobs that ask for a GPU to `gpu` where there is one, and all
        others to `default`."""
        algorithm = ALGORITHMS.get(request.training_config.algorithm)
        if algorithm is not None and algorithm.writes_bundle:
            return PROMPTS
        compute = request.training_config.compute
        asks_for_gpu = compute is not None and (compute.gpu_count or 0) > 0
        return GPU_POOL if asks_for_gpu and GPU_POOL in self.slots else DEFAULT_POOL

    def in_order(self, jobs: Iterable[Job]) -> list[Job]:
        """Jobs as they will be served: by creation, put off by `ageing_s` for each step below `urgent`.

        A job is therefore overtaken only by better ones created within a bounded time after it (three steps at most),
        and equal priorities are first come, first served.
        """

        def turn_at(job: Job) -> datetime:
            step = PRIORITIES.get(job.priority, PRIORITIES["normal"])
            return job.created_at + timedelta(seconds=step * self.ageing_s)

        return sorted(jobs, key=lambda job: (turn_at(job), job.created_at, job.training_job_id))

    def next_up(self, jobs: Iterable[Job], now: datetime) -> list[Job]:
        """The queued jobs that fit into free slots of their pools, best first; the rest keeps waiting.

        A job waits until it is announced as queued, so that the bus hears of states in order, through its pause before
        a retry, and for the hours in which it may start.
        """
        everything = list(jobs)
        used = self.slots_used(everything)
        free = {pool: total - used[pool] for pool, total in self.slots.items()}
        chosen: list[Job] = []
        for job in self.in_order(job for job in everything if job.state == JobState.QUEUED and is_announced(job)):
            if free.get(job.pool, 0) > 0 and not _pauses(job, now) and may_start(job, now):
                free[job.pool] -= 1
                chosen.append(job)
        return chosen

    def slots_used(self, jobs: Iterable[Job]) -> Mapping[str, int]:
        """Held slots by pool."""
        held = Counter(job.pool for job in jobs if job.state in ACTIVE)
        return {pool: held[pool] for pool in self.slots}


def may_start(job: Job, now: datetime) -> bool:
    """Whether it is one of the hours that the job waits for; one of high priority waits for none."""
    hours = job.request.start_hours
    if hours is None or PRIORITIES.get(job.priority, PRIORITIES["normal"]) < PRIORITIES["normal"]:
        return True
    first, end = map(int, hours.split("-"))
    hour = now.astimezone(UTC).hour
    return first <= hour < end if first < end else hour >= first or hour < end


def _pauses(job: Job, now: datetime) -> bool:
    """Whether a job waits through its pause. One that was written in the future, by a wrong clock, has none that means
    anything."""
    return job.retry_at is not None and job.retry_at > now and job.updated_at <= now + SKEW
