"""Whether this process is alive and ready, and what it counts: /healthz, /readyz and /metrics on its own loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ratchet.core.errors import RatchetError
from ratchet.core.service.asgi import AsgiApp, Receive, Scope, Send

Check = Callable[[], Awaitable[str | None]]
"""Returns None when all is well, else the reason why not."""

FAILING = Gauge("ratchet_check_failing", "1 while a check of /readyz fails, or notes something.", ["check"])

CHECK_DEADLINE_S = 2.0
"""A check that takes longer counts as failed: the caller is waiting."""


@dataclass
class Health:
    """The state behind /readyz. `starting` holds the reason until the service is built."""

    service: str
    starting: str | None = "starting"
    checks: Mapping[str, Check] = field(default_factory=dict[str, Check])
    notes: Mapping[str, Check] = field(default_factory=dict[str, Check])
    """Faults that do not keep the service from its work."""
    others: Mapping[str, AsgiApp] = field(default_factory=dict[str, AsgiApp])
    """What else the port serves, by path."""
    _shown: set[str] = field(default_factory=set[str])
    """Checks whose state the metrics have."""

    def stop(self) -> None:
        """Report not ready from now on. Comes before anything is stopped, so that callers go elsewhere."""
        self.starting = "stopping"

    async def state(self) -> tuple[dict[str, str], dict[str, str]]:
        """Why the service is not ready, by check, and its faults; the metrics say from then on which checks fail."""
        reasons, notes = await asyncio.gather(self.reasons(), _failing(self.notes))
        self._shown |= {"start", *self.checks, *self.notes}
        for name in self._shown:
            FAILING.labels(name).set(name in reasons or name in notes)
        return reasons, notes

    async def reasons(self) -> dict[str, str]:
        """Why the service is not ready, by check; empty when it is."""
        return {"start": self.starting} if self.starting is not None else await _failing(self.checks)


async def _failing(checks: Mapping[str, Check]) -> dict[str, str]:
    reasons = await asyncio.gather(*(_reason(check) for check in checks.values()))
    return {name: reason for name, reason in zip(checks, reasons, strict=True) if reason is not None}


async def _reason(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_DEADLINE_S):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_DEADLINE_S:g} s"
    except RatchetError as error:
        return str(error)


async def has_files() -> str | None:
    """A check: None while the process can open one more file, and so one more connection, else the reason."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f"no file and no connection can be opened: {error.strerror}"
    return None


def health_app(health: Health) -> AsgiApp:
    """The three routes, and what else the service has there."""

    async def alive(_: Request) -> Response:
        return JSONResponse({"service": health.service, "status": "alive"})

    async def ready(_: Request) -> Response:
        reasons, notes = await health.state()
        status = {"service": health.service, "ready": not reasons, "reasons": reasons, "notes": notes}
        return JSONResponse(status, status_code=503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        await health.state()
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    own = Starlette(routes=[Route("/healthz", alive), Route("/readyz", ready), Route("/metrics", metrics)])

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await health.others.get(scope.get("path", ""), own)(scope, receive, send)

    return served
