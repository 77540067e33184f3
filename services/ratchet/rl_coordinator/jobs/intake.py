"""Every way in for a request: from the bus, over HTTP, from a trigger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.message import Cause, cause_of
from ratchet.bus.received import Received
from ratchet.core.contract import Message, TrainingRequest
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import ErrorCode, TrainingError
from ratchet.core.errors import Rejected, WrongState
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.jobs import CountedOf
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, as_asked, problems
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.feasibility import Feasibility
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs


@dataclass(frozen=True)
class Intake:
    """Turns requests into jobs. What the bus must hear about them follows from the jobs."""

    bus: Bus
    store: KvJobs
    feasibility: Feasibility
    abilities: Abilities
    schedule: Schedule
    counted: CountedOf

    async def submit(
        self, request: TrainingRequest, *, require_feasible: bool = False, dry_run: bool = False
    ) -> tuple[Job, bool]:
        """The job of a request and whether it is new; asking twice is one job.

        The request is published, then becomes a job. The consumer sees it too, and would make the same job should the
        coordinator stop in between. `require_feasible`: the caller waits for the answer, so the coordinator refuses at
        once what cannot work. `dry_run`: the job that would be made; nothing is published or stored.
        Raises `Rejected` with every problem, `Conflict` for what does not work now, `InvalidMessage` or `Unavailable`.
        """
        existing = await self.store.find_job(request.training_job_id, request.role, request.idempotency_key)
        if existing is not None:
            return existing, False
        self.require_valid(request)
        findings = await self.feasibility.require_feasible(request) if require_feasible else []
        job = replace(self._job_of(request, cause_of(request)), findings=findings or None)
        if dry_run:
            return job, False
        await self.bus.publish(request)
        stored, created = await self.store.create_job(job)
        return replace(stored, findings=stored.findings or job.findings), created

    async def on_request(self, received: Received[TrainingRequest]) -> Sequence[Message]:
        """A request from the bus. One that cannot run becomes a failed job, which its sender hears of."""
        request = received.message
        job = self._job_of(request, received.as_cause())
        reasons = [*problems(request, self.abilities), *self._unplaced(job.pool)]
        if reasons:
            job = jobs.fail(job, TrainingError(code=ErrorCode.DATA, message="; ".join(reasons)), self.bus.now())
        await self.store.create_job(job)
        return []

    def require_valid(self, request: TrainingRequest) -> None:
        """Raise `Rejected` with every problem of a request that cannot run here."""
        reasons = [*problems(request, self.abilities), *self._unplaced(self.schedule.pool_of(request))]
        if reasons:
            raise Rejected("; ".join(reasons))

    def _unplaced(self, pool: str) -> Iterator[str]:
        if not self.schedule.slots.get(pool):
            yield f"its pool {pool} has no slot here (RATCHET_COORDINATOR_SLOTS)"

    async def cancel(self, job_id: str, actor: str, *, at_once: bool = False) -> Job:
        """Cancel a job, or ask its worker to. Raises `NotFound`, or `WrongState` when it has ended."""
        return await self.store.change_job(job_id, lambda job: jobs.cancel(job, self.bus.now(), actor, at_once=at_once))

    async def resume(self, job_id: str, actor: str) -> Job:
        """Let a cancelled or failed job go on from its newest checkpoint. Raises `NotFound`, or `WrongState`.

        What is certain to fail is refused at once.
        """
        job = await self.store.get_job(job_id)
        resumed = jobs.resume(job, self.bus.now(), actor)
        obstacles = [*self._obstacles(resumed), *await self.feasibility.lost_checkpoint(resumed)]
        if obstacles:
            raise WrongState(f"job {job_id} cannot go on: {'; '.join(obstacles)}")
        return await self.store.change_job(job_id, lambda job: jobs.resume(job, self.bus.now(), actor))

    def _obstacles(self, job: Job) -> Iterator[str]:
        """Why a queued job could never run, as this installation is now."""
        deadline = job.request.deadline
        if deadline is not None and deadline < self.bus.now():
            yield f"its deadline {deadline.isoformat()} has passed"
        yield from self._unplaced(job.pool)
        yield from problems(as_asked(job.request), self.abilities)

    def _job_of(self, request: TrainingRequest, cause: Cause) -> Job:
        pool, counted = self.schedule.pool_of(request), self.counted(request.role)
        return jobs.accept(request, pool=pool, counted=counted, now=self.bus.now(), cause=cause)
