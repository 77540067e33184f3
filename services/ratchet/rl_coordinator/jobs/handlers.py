"""What happens when somebody asks for training, cancels it, or a worker speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.bus.message import Cause
from ratchet.bus.received import Received
from ratchet.contract import Message, TrainingRequest, TrainingStatus
from ratchet.contract.state import Job
from ratchet.contract.training import TrainingError
from ratchet.errors import NotFound, Rejected
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.jobs import Limits
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, problems
from ratchet.rl_coordinator.jobs.domain.schedule import pool_of
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.triggers.domain import Counted

log = structlog.get_logger()


@dataclass(frozen=True)
class House:
    """What this installation offers, and its rules."""

    abilities: Abilities
    slots: Mapping[str, int]
    ageing_s: float
    limits: Limits


class Coordinator:
    """Turns requests into jobs and folds statuses into them. What the bus must hear of follows from the jobs."""

    def __init__(
        self, store: KvJobs, house: House, counted: Callable[[str], Counted], now: Callable[[], datetime]
    ) -> None:
        """`counted`: what of a role was ever counted."""
        self._store = store
        self._house = house
        self._counted = counted
        self._now = now

    async def on_request(self, received: Received[TrainingRequest]) -> Sequence[Message]:
        """A request from the bus. One that cannot be run becomes a failed job: whoever asked hears of it."""
        request = received.message
        found = problems(request, self._house.abilities)
        job = self._new(request, received.as_cause())
        if found:
            error = TrainingError(code="DATA", message="; ".join(found))
            job = jobs.fail(job, error, self._now())
        await self._store.create(job)
        return []

    async def on_status(self, received: Received[TrainingStatus]) -> Sequence[Message]:
        """A worker's word. It changes the job only if it comes from the job's present attempt."""
        status = received.message
        try:
            await self._store.change(
                status.training_job_id, lambda job: jobs.fold(job, status, self._now(), self._house.limits)
            )
        except NotFound:
            log.warning("status of an unknown job", job=status.training_job_id, status=status.status)
        return []

    def check(self, request: TrainingRequest) -> None:
        """Raise `Rejected` with every problem of a request that cannot be run."""
        found = problems(request, self._house.abilities)
        if found:
            raise Rejected("; ".join(found))

    async def accept(self, request: TrainingRequest) -> tuple[Job, bool]:
        """The job of a request that was checked, and whether it is new."""
        return await self._store.create(self.draft(request))

    def draft(self, request: TrainingRequest) -> Job:
        """The job of a request, kept nowhere."""
        return self._new(request, Cause(event_id=request.event_id, correlation_id=request.event_id))

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job, or ask its worker to. Raises `NotFound`, or `WrongState` when it has ended."""
        return await self._store.change(job_id, lambda job: jobs.cancel(job, self._now()))

    def _new(self, request: TrainingRequest, cause: Cause) -> Job:
        counted = self._counted(request.role)
        job = jobs.accept(
            request,
            pool=pool_of(request, self._house.slots),
            rewarded=counted.rewarded,
            now=self._now(),
            cause=cause,
        )
        return replace(job, preferences=counted.preferences)
