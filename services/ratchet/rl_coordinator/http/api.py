"""The HTTP API: ask for training, follow it, stop it, and look at what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import uuid_utils
from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ratchet.errors import WrongState
from ratchet.rl_coordinator.http.models import (
    ErrorOut,
    HealthOut,
    JobIn,
    JobOut,
    JobsOut,
    PreviewOut,
    job_out,
)
from ratchet.rl_coordinator.http.status import Statuses, status_routes
from ratchet.rl_coordinator.jobs.dispatcher import Dispatcher
from ratchet.rl_coordinator.jobs.domain.jobs import State
from ratchet.rl_coordinator.jobs.handlers import Coordinator
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry.http_registry import Registry, RoleFilter, registry_routes
from ratchet.rl_coordinator.registry.http_replay import replay_routes
from ratchet.rl_coordinator.registry.replay import Replay
from ratchet.service.control_api import answer_errors
from ratchet.service.health import Check, Health

ASKED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": JobOut,
        "description": "The id or idempotency key is known: this is its job. With `dry_run`: the job that would be"
        " made.",
    },
    409: {
        "model": ErrorOut,
        "description": "It cannot work now: training is disabled, the role has no policy to continue from, or there is"
        " no data for it.",
    },
    422: {"model": ErrorOut, "description": "The request cannot be run as it is."},
}
"""What a request for training may get besides its new job."""
CHANGES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is no text, or one of the headers that are checked comes twice."},
    403: {"description": "From a page of another site, or for a host that is none of RATCHET_ALLOWED_HOSTS."},
    415: {"description": "The content type is not application/json."},
}
"""What any request that changes something may get."""


class AskIn(BaseModel):
    """How a request is meant. A misspelt name is refused: it must not start a training."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Only look whether it could work: no job is created and nothing is told.")


@dataclass(frozen=True)
class Parts:
    """What the routes work with."""

    intake: Intake
    coordinator: Coordinator
    store: KvJobs
    dispatcher: Dispatcher
    registry: Registry
    replay: Replay
    statuses: Statuses
    checks: Mapping[str, Check]
    training_enabled: bool
    now: Callable[[], datetime]


def http_app(parts: Parts) -> FastAPI:
    """The application with all routes."""
    app = FastAPI(
        title="Ratchet coordinator",
        version="1",
        description="Training jobs and the policies they made. Every error is an ErrorOut.",
        responses={
            422: {"model": ErrorOut, "description": "A parameter or the body is not what this document says."},
            503: {"model": ErrorOut, "description": "The broker, the warehouse or the object store is away."},
        },
    )
    app.include_router(_health_routes(parts))
    app.include_router(_job_commands(parts))
    app.include_router(_job_queries(parts))
    app.include_router(registry_routes(parts.registry))
    app.include_router(status_routes(parts.statuses))
    app.include_router(replay_routes(parts.replay))
    answer_errors(app)
    return app


def _job_commands(parts: Parts) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=CHANGES)

    @routes.post(
        "",
        status_code=201,
        responses=ASKED,
    )
    async def ask_for_training(body: JobIn, response: Response, asked: Annotated[AskIn, Query()]) -> JobOut:
        """Ask for training. The job is queued, or found if it was asked for before."""
        if not parts.training_enabled:
            raise WrongState("training is disabled here (RATCHET_COORDINATOR_TRAINING_ENABLED)")
        request = body.request(str(uuid_utils.uuid7()), parts.now())
        if asked.dry_run:
            response.status_code = 200
            return job_out(await parts.intake.consider(request))
        job, created = await parts.intake.ask(request)
        response.status_code = 201 if created else 200
        return job_out(job)

    @routes.post("/preview", responses={422: {"model": ErrorOut, "description": "No job could be run like that."}})
    async def preview_data(body: JobIn) -> PreviewOut:
        """Say what data the job would take if it started now, and what it would leave out. Nothing is created."""
        request = body.request(str(uuid_utils.uuid7()), parts.now())
        parts.coordinator.check(request)
        return PreviewOut.model_validate(await parts.dispatcher.preview(request), from_attributes=True)

    @routes.post(
        "/{job_id}/cancel",
        responses={404: {"model": ErrorOut}, 409: {"model": ErrorOut, "description": "The job has ended."}},
    )
    async def cancel_job(job_id: str) -> JobOut:
        """Cancel: a queued job at once, a running one as soon as its worker has stopped."""
        return job_out(await parts.coordinator.cancel(job_id))

    return routes


def _job_queries(parts: Parts) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @routes.get("")
    async def list_jobs(
        state: Annotated[State | None, Query()] = None,
        role: RoleFilter = None,
        algorithm: Annotated[str | None, Query()] = None,
        since: Annotated[AwareDatetime | None, Query(description="Created then or later.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        offset: Annotated[int, Query(ge=0, description="So many of the newest are left out.")] = 0,
    ) -> JobsOut:
        """Jobs that are kept, newest first."""
        wanted = {"state": state, "role": role, "algorithm": algorithm}
        given = {name: value for name, value in wanted.items() if value is not None}
        found = [
            job
            for job in reversed(parts.store.all())
            if all(getattr(job, name) == given[name] for name in given) and (since is None or job.created_at >= since)
        ]
        return JobsOut(jobs=[job_out(job) for job in found[offset : offset + limit]], total=len(found))

    @routes.get("/{job_id}", responses={404: {"model": ErrorOut}})
    async def get_job(job_id: str) -> JobOut:
        """One job."""
        return job_out(await parts.store.get(job_id))

    return routes


def _health_routes(parts: Parts) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health", tags=["health"], responses={503: {"model": HealthOut}})
    async def health(response: Response) -> HealthOut:
        """Whether everything that training needs answers."""
        reasons = await _reasons(parts.checks)
        response.status_code = 503 if reasons else 200
        status: Literal["ok", "degraded"] = "degraded" if reasons else "ok"
        return HealthOut(status=status, reasons=reasons)

    return routes


async def _reasons(checks: Mapping[str, Check]) -> dict[str, str]:
    return await Health("rl_coordinator", starting=None, checks=checks).reasons()
