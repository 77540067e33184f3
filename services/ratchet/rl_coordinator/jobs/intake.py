"""The way in for requests that do not come from the bus: they are told there first, then become jobs."""

from __future__ import annotations

from ratchet.bus.connection import Bus
from ratchet.contract import TrainingRequest
from ratchet.contract.state import Job
from ratchet.rl_coordinator.jobs.feasibility import Feasibility
from ratchet.rl_coordinator.jobs.handlers import Coordinator
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs


class Intake:
    """Used by the HTTP API and the triggers."""

    def __init__(self, bus: Bus, store: KvJobs, coordinator: Coordinator, feasibility: Feasibility) -> None:
        self._bus = bus
        self._store = store
        self._coordinator = coordinator
        self._feasibility = feasibility

    async def consider(self, request: TrainingRequest) -> Job:
        """The job that `ask` would make, or find; nothing is written or told. Raises the same."""
        known = await self._store.find(request.training_job_id, request.role, request.idempotency_key)
        if known is not None:
            return known
        self._coordinator.check(request)
        await self._feasibility.check(request)
        return self._coordinator.draft(request)

    async def ask(self, request: TrainingRequest) -> tuple[Job, bool]:
        """As `submit`, for somebody who waits for the answer: what cannot work is refused at once.

        Raises `Conflict` as well, for what does not work now.
        """
        known = await self._store.find(request.training_job_id, request.role, request.idempotency_key)
        if known is not None:
            return known, False
        self._coordinator.check(request)
        await self._feasibility.check(request)
        return await self.submit(request)

    async def submit(self, request: TrainingRequest) -> tuple[Job, bool]:
        """The job of a request and whether it is new; asking twice is one job.

        The consumer sees the published request too and would make the same job, should we stop in between.
        Raises `Rejected` with every problem, `InvalidMessage`, or `Unavailable`.
        """
        known = await self._store.find(request.training_job_id, request.role, request.idempotency_key)
        if known is not None:
            return known, False
        self._coordinator.check(request)
        await self._bus.publish(request)
        return await self._coordinator.accept(request)
