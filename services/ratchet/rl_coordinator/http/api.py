"""The HTTP API: ask for training, follow it, stop it, and look at what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fastapi import FastAPI

from ratchet.contract.http.jobs import JobIn
from ratchet.contract.http.status import HealthOut
from ratchet.rl_coordinator.http.job_request import job_body
from ratchet.service.control_api import ControlApi
from ratchet.service.health import Check, Health

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker, the warehouse or the object store is away.",
}


class Routes(Protocol):
    """The routes of one subject."""

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        ...


def http_app(checks: Mapping[str, Check], subjects: Sequence[Routes]) -> FastAPI:
    """The application with all routes; `checks`: by name, what training needs."""
    api = ControlApi(
        "Ratchet coordinator",
        "Training jobs and the policies they made. Every error is an ErrorOut.",
        ERRORS,
        {JobIn: job_body()},
    )

    async def health() -> tuple[int, HealthOut]:
        """Whether everything that training needs answers."""
        reasons = await Health("rl_coordinator", starting=None, checks=checks).reasons()
        return 503 if reasons else 200, HealthOut(status="degraded" if reasons else "ok", reasons=reasons)

    api.route("GET", "/health", health, tag="health", answers={200: "All does.", 503: "Something does not."})
    for subject in subjects:
        subject.add_to(api)
    return api.app
