"""Routes from the `policies` bucket: watched, polled, and the last known good ones on disk without their canary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from ratchet.gateway.domain.lease import Lease, has_lapsed, observe
from ratchet.gateway.domain.routes import without_canary
from ratchet.kernel.errors import NotFound
from ratchet.kernel.kv import Bucket
from ratchet.messages import encode
from ratchet.messages.state import PolicyVersion, Route

log = structlog.get_logger()


class Routes:
    """Where each role's traffic goes, as far as this process knows."""

    def __init__(
        self,
        routes: Bucket[Route],
        versions: Bucket[PolicyVersion],
        file: Path,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._bucket = routes
        self._versions_bucket = versions
        self._file = file
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._routes: dict[str, Route] = {}
        self._leases: dict[str, Lease | None] = {}
        self._versions: dict[str, PolicyVersion] = {}
        self._stopping = asyncio.Event()

    def get(self, role: str) -> Route | None:
        """The route of a role, None when there is none."""
        return self._routes.get(role)

    def roles(self) -> list[str]:
        """Roles that serve a policy."""
        return sorted(role for role, route in self._routes.items() if route.stable is not None)

    def lapsed(self, role: str) -> bool:
        """Whether the role's canary has outlived its lease."""
        route = self._routes.get(role)
        return route is not None and has_lapsed(self._leases.get(role), route, self._monotonic(), self._lease_s)

    async def check(self) -> str | None:
        """Readiness detail: roles whose canary lease has lapsed."""
        gone = [role for role in self._routes if self.lapsed(role)]
        return f"canary lease lapsed, serving stable: {', '.join(gone)}" if gone else None

    async def version(self, role: str, version: int) -> PolicyVersion:
        """A registered version. Raises `NotFound`, or `BusUnavailable` while it cannot be looked up."""
        key = f"{role}.{version}"
        if key not in self._versions:
            entry = await self._versions_bucket.get(key)
            if entry is None:
                raise NotFound(f"{role} has no version {version}")
            self._versions[key] = entry.value
        return self._versions[key]

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        self._restore()
        following = asyncio.create_task(self._follow())
        await self._stopping.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def _follow(self) -> None:
        async for key, entry in self._bucket.watch(lambda key: "." not in key):
            if entry is None:
                self._routes.pop(key, None)
                self._leases.pop(key, None)
            else:
                self._routes[key] = entry.value
                self._leases[key] = observe(self._leases.get(key), entry.value, self._monotonic())
            self._save()

    def _restore(self) -> None:
        """Begin with what was known last time: without a broker stable is served all the same."""
        try:
            stored = msgspec.json.decode(self._file.read_bytes(), type=dict[str, Route])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("stored routes are unreadable", file=str(self._file), reason=str(error))
            return
        self._routes = stored | self._routes

    def _save(self) -> None:
        kept = {role: msgspec.Raw(encode(without_canary(route))) for role, route in self._routes.items()}
        staged = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(msgspec.json.encode(kept))
            staged.replace(self._file)
        except OSError as error:
            log.warning("routes not stored", file=str(self._file), reason=str(error))
