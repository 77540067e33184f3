"""What every trigger does when it fires: one job per role, with each reason that asked for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog

from ratchet.contract.state import TriggerNote
from ratchet.errors import Conflict, Rejected
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.triggers.domain import Firing, noted, training_request, under_way
from ratchet.rl_coordinator.triggers.recipes import Recipe

log = structlog.get_logger()


class Firer:
    """Asks for trainings in the name of triggers."""

    def __init__(self, jobs: Jobs, now: Callable[[], datetime]) -> None:
        self._jobs = jobs
        self._now = now

    async def fire(self, role: str, firing: Firing, recipe: Recipe) -> None:
        """Ask for the training, or note the reason at the trigger's job that is under way. Raises `Unavailable`."""
        now = self._now()
        note = TriggerNote(kind=firing.kind, at=now, why=firing.why)
        job = under_way(role, self._jobs.store.all_jobs())
        if job is None:
            request = training_request(firing, role, recipe.config, priority=recipe.priority, now=now)
            try:
                planned = await self._jobs.planner.resolved(request)
                job, created = await self._jobs.intake.submit(planned)
            except (Conflict, Rejected) as error:
                log.warning("a trigger's training cannot start now", role=role, kind=firing.kind, reason=str(error))
                return
            if created:
                log.info("a trigger fired", role=role, kind=firing.kind, why=firing.why, job=job.training_job_id)
        if noted(job, note) != job:
            await self._jobs.store.change_job(job.training_job_id, lambda current: noted(current, note))
