"""The HTTP API: ask for training, follow it, stop it, and see which policies came of it. `http_app` is all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ratchet.core.contract.http.console import SessionOut
from ratchet.core.contract.http.jobs import JobIn
from ratchet.core.contract.http.status import HealthOut, StorageOut
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.service.authentication import session_of
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.health import Check, Health
from ratchet.rl_coordinator.http.erasures import ErasureRoutes
from ratchet.rl_coordinator.http.executions import ExecutionRoutes
from ratchet.rl_coordinator.http.job_request import job_body
from ratchet.rl_coordinator.http.jobs import JobRoutes
from ratchet.rl_coordinator.http.keys import KeyRoutes, KeyStore
from ratchet.rl_coordinator.http.models import ModelRoutes
from ratchet.rl_coordinator.http.status import StatusRoutes
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.registry import Registry
from ratchet.rl_coordinator.storage import Storage
from ratchet.rl_coordinator.triggers import Triggers

__all__ = ["ErasureRoutes", "ExecutionRoutes", "KeyStore", "Subjects", "http_app"]

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker, the warehouse or the object store is away.",
}


NO_SWEEP: Mapping[int, str] = {
    400: "One of the headers that are checked comes twice.",
    422: "No job and no policy is known although the store is not empty: its registry is missing.",
}


class SweepIn(BaseModel):
    """Options of a sweep. A misspelt name is refused: it must not remove anything."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Only say what would be done.")


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """What the coordinator is about: the faces of its parts."""

    jobs: Jobs
    registry: Registry
    triggers: Triggers
    storage: Storage
    keys: KeyStore
    erasures: ErasureRoutes
    executions: ExecutionRoutes


def http_app(checks: Mapping[str, Check], subjects: Subjects, now: Callable[[], datetime]) -> ControlApi:
    """The application with all routes; `checks`: by name, what training needs."""
    api = ControlApi(
        "Ratchet coordinator",
        "Training jobs and the policies they made. Every error is an ErrorOut.",
        ERRORS,
        {JobIn: job_body()},
    )

    async def health(roles: RoleSet) -> tuple[int, HealthOut]:
        """Whether everything that training needs answers; with a key for some roles without the reasons."""
        reasons = await Health("rl_coordinator", starting=None, checks=checks).reasons()
        if not roles.is_every:
            reasons = dict.fromkeys(reasons, "could not be reached or is not ready")
        return 503 if reasons else 200, HealthOut(status="degraded" if reasons else "ok", reasons=reasons)

    async def session(caller: Caller) -> SessionOut:
        """Who calls, and what the key allows for some role."""
        return session_of(caller)

    api.route("GET", "/v1/session", session, scope=None)
    answers = {200: "Everything answers.", 503: "Something does not answer."}
    api.route("GET", "/health", health, scope=KeyScope.VIEW, answers=answers)
    jobs, registry = subjects.jobs, subjects.registry
    JobRoutes(jobs, now).add_to(api)
    ModelRoutes(registry, jobs, now).add_to(api)
    KeyRoutes(subjects.keys, now).add_to(api)
    StatusRoutes(jobs, registry, subjects.triggers, now).add_to(api)
    subjects.erasures.add_to(api)
    subjects.executions.add_to(api)

    async def sweep(asked: SweepIn) -> StorageOut:
        """Set aside the objects that nothing needs any more, and remove those that were set aside long enough."""
        return await subjects.storage.collector.sweep(dry_run=asked.dry_run)

    api.route("POST", "/v1/storage/sweep", sweep, scope=KeyScope.ADMIN, errors=NO_SWEEP)
    return api


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: Any = None
    subjects: dict[str, Any] = dict.fromkeys(Subjects.__dataclass_fields__)
    subjects["erasures"] = ErasureRoutes(unused, unused, unused, unused)
    subjects["executions"] = ExecutionRoutes(unused)
    return http_app({}, Subjects(**subjects), unused)
