"""Jobs whose data was erased in part: those that have not ended begin anew, a policy's is asked for once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.core.contract.state import ENDED, Job
from ratchet.core.contract.training import SnapshotRef
from ratchet.rl_coordinator.jobs.domain.jobs import begin_anew
from ratchet.rl_coordinator.jobs.domain.requests import as_asked
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs

log = structlog.get_logger()


@dataclass(frozen=True)
class Anew:
    """Trainings without what was erased."""

    store: KvJobs
    intake: Intake
    now: Callable[[], datetime]

    async def begin(self, after: Mapping[str, SnapshotRef | None]) -> None:
        """Have the jobs that learn from some snapshots wait as their next attempt, with data chosen anew.

        `after`: by digest, the other rows of each; those that a person named are taken in their place.
        """
        for job in self.store.all_jobs():
            if job.state not in ENDED and job.snapshot is not None and job.snapshot.digest in after:
                instead = after[job.snapshot.digest]
                await self.store.change_job(
                    job.training_job_id, lambda current, instead=instead: begin_anew(current, instead, self.now())
                )
                log.warning("a job begins anew without erased data", job=job.training_job_id)

    async def ask(self, job_id: str, *, anew_id: str, base_model: str, by: str) -> Job:
        """The job `anew_id`, which is asked for as the job `job_id` was, from another base and with today's data.

        Raises `NotFound` where that one is not kept, and what `Intake.submit` does.
        """
        request = as_asked((await self.store.get_job(job_id)).request)
        config = request.training_config
        dataset = replace(config.dataset, snapshot=None, source="clickhouse")
        anew = replace(
            request,
            training_job_id=anew_id,
            timestamp=self.now(),
            requester=by,
            idempotency_key=None,
            deadline=None,
            training_config=replace(config, base_model=base_model, dataset=dataset),
        )
        job, _ = await self.intake.submit(anew, require_feasible=True)
        return job
