"""The HTTP routes of training jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
import uuid_utils
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from ratchet.core.contract.http.jobs import (
    JobIn,
    JobOut,
    JobsOut,
    PlanOut,
    PreviewOut,
    RaterIn,
    RatersOut,
    ShapeOut,
    SnapshotOut,
)
from ratchet.core.contract.state import BANNED, Job, JobState
from ratchet.core.contract.training import TrainingRequest
from ratchet.core.errors import NotFound, WrongState
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.rules.job_facts import job_out
from ratchet.core.service.control_api import ControlApi
from ratchet.rl_coordinator.http.job_request import training_request
from ratchet.rl_coordinator.http.models import RoleFilter
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.jobs.domain.planning import AUTO, Shape

TWICE: Mapping[int, str] = {400: "One of the headers that are checked comes twice."}
UNKNOWN: Mapping[int, str] = {404: "There is no such job."}
ASKED: Mapping[int, str] = {
    201: "The new job.",
    200: "The id or idempotency key is known: this is its job. With `dry_run`: the job that would be made.",
}
BUILT: Mapping[int, str] = {201: "Where the snapshot is."}
NO_SNAPSHOT: Mapping[int, str] = {**TWICE, 422: "There is too little to choose from; the reasons are counted."}
REFUSED: Mapping[int, str] = {
    **TWICE,
    409: "It cannot work now: training is disabled, the role has no policy to continue from, or there is no data for"
    " it.",
    422: "The request cannot be run as it is.",
}


def shape_out(shape: Shape) -> ShapeOut:
    """A shape with the counts of its tries beside the others."""
    counts = {name: getattr(shape, name) for name in ShapeOut.__struct_fields__ if hasattr(shape, name)}
    tries = {name: getattr(shape.tries, name) for name in ShapeOut.__struct_fields__ if hasattr(shape.tries, name)}
    return ShapeOut(**counts, **tries)


def planned(body: JobIn, request: TrainingRequest) -> str | None:
    """What the planner noted about the algorithm of a request for `auto`; None for any other request."""
    return request.metadata.notes if body.algorithm == AUTO and request.metadata is not None else None


def require_own_reflector(body: JobIn, caller: Caller) -> None:
    """Raise `Forbidden` where a role would answer that the key is not for: the search's worker may ask every one."""
    reflector = body.prompts.reflector if body.prompts is not None else ""
    if reflector and "/" not in reflector:
        caller.require(KeyScope.TRAIN, reflector.partition("@")[0])


def possible(state: JobState | None) -> JobState | None:
    """A state that a job can have: as a filter, a state of a later version is a mistake."""
    if state is not None and state not in [*JobState]:
        raise ValueError(f"no job is ever {state}: it is one of {', '.join(JobState)}")
    return state


class AskIn(BaseModel):
    """Options of a request for training. A misspelt name is refused: it must not start a training."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Only check whether it could work: no job is created or announced.")


@dataclass(frozen=True)
class JobRoutes:
    """`/v1/jobs` and what is under it."""

    jobs: Jobs
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        ended = {**TWICE, **UNKNOWN, 409: "The job has ended."}
        going = {
            **TWICE,
            **UNKNOWN,
            409: "It has not ended, is complete or has no checkpoint, or could not run as this installation is now: its"
            " checkpoint is gone, its deadline has passed, its pool has no slot, or training is disabled.",
        }
        api.route("POST", "/v1/jobs", self.ask_for_training, scope=KeyScope.TRAIN, answers=ASKED, errors=REFUSED)
        api.route("POST", "/v1/jobs/preview", self.preview_data, scope=KeyScope.TRAIN, errors=TWICE, reads=True)
        api.route("POST", "/v1/snapshots", self.build_snapshot, scope=KeyScope.TRAIN, answers=BUILT, errors=NO_SNAPSHOT)
        api.route("GET", "/v1/plan", self.plan_training, scope=KeyScope.VIEW)
        api.route("POST", "/v1/raters", self.decide_on_rater, scope=KeyScope.TRAIN, errors=TWICE)
        api.route("POST", "/v1/jobs/{job_id}/cancel", self.cancel_job, scope=KeyScope.TRAIN, errors=ended)
        api.route("POST", "/v1/jobs/{job_id}/resume", self.resume_job, scope=KeyScope.TRAIN, errors=going)
        api.route("GET", "/v1/jobs", self.list_jobs, scope=KeyScope.VIEW)
        api.route("GET", "/v1/jobs/{job_id}", self.get_job, scope=KeyScope.VIEW, errors=UNKNOWN)

    async def ask_for_training(self, body: JobIn, asked: AskIn, caller: Caller) -> tuple[int, JobOut]:
        """Ask for training. The answer is the new job, or the one of an earlier request with the same id or key."""
        self._require_training()
        require_own_reflector(body, caller)
        named = msgspec.structs.replace(body, requester=caller.actor(body.requester))
        request = training_request(named, str(uuid_utils.uuid7()), self.now())
        request = await self.jobs.planner.resolved(request)
        job, created = await self.jobs.intake.submit(request, require_feasible=True, dry_run=asked.dry_run)
        if job.role not in caller.roles(KeyScope.TRAIN):
            raise WrongState(f"{job.training_job_id} is the id of another job")
        return 201 if created else 200, self._out(job)

    async def preview_data(self, body: JobIn) -> PreviewOut:
        """Say what data the job would take if it started now, and what it would leave out. Nothing is created."""
        request = await self._checked(body)
        preview = await self.jobs.exporter.preview(request)
        return msgspec.structs.replace(preview, planned=planned(body, request))

    async def build_snapshot(self, body: JobIn) -> tuple[int, SnapshotOut]:
        """Store the data that the job would take if it started now, as a snapshot that later requests can name."""
        request = await self._checked(body)
        built = await self.jobs.exporter.build(request)
        ref = built.snapshot
        return 201, SnapshotOut(uri=ref.uri, digest=ref.digest, rows=built.rows, planned=planned(body, request))

    async def plan_training(
        self,
        role: Annotated[str, Field(description="The role to train.")],
        held_out: Annotated[
            float | None, Field(ge=0, le=0.5, description="As in a request's `dataset.filter`.")
        ] = None,
    ) -> PlanOut:
        """Propose an algorithm and its data from what the role has, and say why not the others. `algorithm: auto` in a
        request stands for the proposal."""
        shape, plan = await self.jobs.planner.plan(role, held_out=held_out)
        return PlanOut(
            role=role,
            algorithm=plan.chosen.algorithm if plan.chosen else None,
            why=plan.chosen.why if plan.chosen else "nothing can be learnt yet",
            filter=plan.filter,
            rejected={verdict.algorithm: verdict.why for verdict in plan.rejected},
            shape=shape_out(shape),
        )

    async def cancel_job(
        self,
        job_id: str,
        caller: Caller,
        roles: RoleSet,
        now: Annotated[
            bool, Field(description="The second stage: the worker ends the training without a further checkpoint.")
        ] = False,
    ) -> JobOut:
        """Cancel: a queued job at once, a running one once its worker has stopped after its train step, with a
        checkpoint. `stopping` says that the worker has read it."""
        await self._job_of(job_id, roles)
        return self._out(await self.jobs.intake.cancel(job_id, caller.actor(), at_once=now))

    async def decide_on_rater(self, body: RaterIn, caller: Caller) -> RatersOut:
        """Let trainings learn from a rater's opinions although it is in quarantine, or not learn from them at all."""
        quarantine, banned = self.jobs.quarantine, body.decision == BANNED
        await quarantine.decide(body.role, body.rater, banned=banned, by=caller.actor(), at=self.now())
        return RatersOut(role=body.role, raters=dict(await quarantine.decisions(body.role)))

    async def resume_job(self, job_id: str, caller: Caller, roles: RoleSet) -> JobOut:
        """Let a cancelled or failed job go on from its newest checkpoint, with the same data, as its next attempt."""
        await self._job_of(job_id, roles)
        self._require_training()
        return self._out(await self.jobs.intake.resume(job_id, caller.actor()))

    async def list_jobs(  # noqa: PLR0913, PLR0917 - one for each filter of the query
        self,
        roles: RoleSet,
        state: Annotated[JobState | None, AfterValidator(possible)] = None,
        role: RoleFilter = None,
        algorithm: str | None = None,
        since: Annotated[AwareDatetime | None, Field(description="Created then or later.")] = None,
        prefix: Annotated[str, Field(max_length=200, description="Those whose ids begin with it.")] = "",
        limit: Annotated[int, Field(ge=1, le=10_000)] = 1000,
        offset: Annotated[int, Field(ge=0, description="So many of the newest are left out.")] = 0,
    ) -> JobsOut:
        """Jobs that are kept, newest first."""
        given = {"state": state, "role": role, "algorithm": algorithm}
        filters = {name: value for name, value in given.items() if value is not None}
        jobs = [
            job
            for job in reversed(self.jobs.store.all_jobs())
            if job.role in roles
            and all(getattr(job, name) == filters[name] for name in filters)
            and (since is None or job.created_at >= since)
            and job.training_job_id.startswith(prefix)
        ]
        return JobsOut(jobs=[self._out(job) for job in jobs[offset : offset + limit]], total=len(jobs))

    async def get_job(self, job_id: str, roles: RoleSet) -> JobOut:
        """One job."""
        return self._out(await self._job_of(job_id, roles))

    async def _job_of(self, job_id: str, roles: RoleSet) -> Job:
        """Raises `NotFound`, also for a job of another role."""
        job = await self.jobs.store.get_job(job_id)
        if job.role not in roles:
            raise NotFound(f"no such job: {job_id}")
        return job

    def _require_training(self) -> None:
        """Raises `WrongState`."""
        if not self.jobs.abilities.training_enabled:
            raise WrongState("training is disabled here (RATCHET_COORDINATOR_TRAINING_ENABLED)")

    async def _checked(self, body: JobIn) -> TrainingRequest:
        """The request of a body, which is not submitted. Raises `Rejected`."""
        request = training_request(body, str(uuid_utils.uuid7()), self.now())
        request = await self.jobs.planner.resolved(request)
        self.jobs.intake.require_valid(request)
        return request

    def _out(self, job: Job) -> JobOut:
        return job_out(job, self.now())
