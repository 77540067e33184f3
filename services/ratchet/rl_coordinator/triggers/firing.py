"""What every trigger does when it fires: one job per role, with each reason that asked for it.

Several coordinators, and several triggers, may fire for a role at one moment. The one that writes its request under the
role's key by compare-and-set asks for it; the others find it there. Should its writer stop before it asks, the next one
that fires asks in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
import uuid_utils
from msgspec.structs import replace

from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import Value
from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.state import ENDED, Job, TriggerNote
from ratchet.core.errors import Conflict, NotFound, RatchetError, Rejected, Unavailable
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.triggers.domain import Firing, noted, training_request, under_way
from ratchet.rl_coordinator.triggers.recipes import Recipe

log = structlog.get_logger()

UNASKED = timedelta(hours=1)
"""A claim without a job that is older was asked for, and its job is not kept any more."""


class Claim(Value, frozen=True, kw_only=True):
    """Which training triggers ask for, key `claim.<role>` in bucket `coordinator`."""

    request: TrainingRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a trigger that fired could start no training."""

    at: datetime
    why: str


class Firer:
    """Asks for trainings in the name of triggers."""

    def __init__(self, jobs: Jobs, claims: Bucket[Claim], now: Callable[[], datetime]) -> None:
        """`claims`: the coordinator's bucket, where the last training that triggers asked for lies by role."""
        self._jobs = jobs
        self._claims = claims
        self._now = now
        self._refused: dict[tuple[str, str], Refusal] = {}

    def refused(self, role: str, kind: str) -> Refusal | None:
        """Why the last firing of this kind started nothing; None when it did, or was noted."""
        return self._refused.get((role, kind))

    async def fire(self, role: str, firing: Firing, recipe: Recipe) -> None:
        """Ask for the training, or note the reason at the trigger's job that is under way. Raises `Unavailable`."""
        now = self._now()
        note = TriggerNote(kind=firing.kind, at=now, why=firing.why)
        try:
            job = await self._under_way(role) or await self._ask(role, firing, recipe, now)
        except Unavailable:
            raise
        except RatchetError as error:
            log.warning("a trigger's training cannot start now", role=role, kind=firing.kind, reason=str(error))
            self._refused[role, firing.kind] = Refusal(now, str(error))
            return
        self._refused.pop((role, firing.kind), None)
        if noted(job, note) != job:
            await self._jobs.store.change_job(job.training_job_id, lambda current: noted(current, note))

    async def _under_way(self, role: str) -> Job | None:
        """The job of a trigger that the role waits for, also where another coordinator has made or ended it."""
        known = under_way(role, self._jobs.store.jobs_of(role))
        if known is not None:
            try:
                current = await self._jobs.store.get_job(known.training_job_id)
            except NotFound:
                return None
            return current if current.state not in ENDED else None
        return None

    async def _ask(self, role: str, firing: Firing, recipe: Recipe, now: datetime) -> Job:
        """The role's one job: that of this firing, or of another one that came first. Raises `Rejected`, `Conflict`."""
        job_id = firing.job_id or str(uuid_utils.uuid7())
        asked = await self._jobs.store.find_job(job_id)
        if asked is not None:
            return asked
        planned: TrainingRequest | None = None
        while True:
            claim = await self._claims.get(_key(role))
            if claim is not None and (job := await self._job_of(claim.value.request, now)) is not None:
                return job
            if planned is None:
                request = training_request(firing, job_id, role, recipe.config, priority=recipe.priority, now=now)
                request = replace(request, start_hours=recipe.start_hours, evaluation=recipe.evaluation)
                planned = await self._jobs.planner.resolved(request)
                self._jobs.intake.require_valid(planned)
            if await self._claimed(planned, claim):
                job = await self._submitted(planned)
                log.info("a trigger fired", role=role, kind=firing.kind, why=firing.why, job=job.training_job_id)
                return job

    async def _job_of(self, claimed: TrainingRequest, now: datetime) -> Job | None:
        """The job that was claimed, asked for now if its claimer has not yet; None once it has ended."""
        job = await self._jobs.store.find_job(claimed.training_job_id)
        if job is not None:
            return job if job.state not in ENDED else None
        return await self._submitted(claimed) if abs(now - claimed.timestamp) < UNASKED else None

    async def _claimed(self, request: TrainingRequest, before: Entry[Claim] | None) -> bool:
        """Whether this request is the role's next one: no other was written since `before` was read."""
        key = _key(request.role)
        try:
            if before is None:
                await self._claims.create(key, Claim(request=request))
            else:
                await self._claims.update(key, Claim(request=request), before.revision)
        except Conflict:
            return False
        return True

    async def _submitted(self, request: TrainingRequest) -> Job:
        try:
            job, _ = await self._jobs.intake.submit(request)
        except Rejected:  # it never will be a job
            await self._claims.delete(_key(request.role))
            raise
        return job


def _key(role: str) -> str:
    return f"claim.{role}"
