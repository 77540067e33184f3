"""Routes from the `policies` bucket: watched, polled, and the last known good ones on disk without their canary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from ratchet.gateway.domain.lease import Lease, has_lapsed, observe
from ratchet.gateway.domain.routes import without_canary
from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import BusUnavailable, NotFound, Unavailable
from ratchet.kernel.kv import Bucket
from ratchet.messages import encode
from ratchet.messages.routing import newest_by
from ratchet.messages.state import POLICIES, PolicyVersion, Route

log = structlog.get_logger()

V = TypeVar("V", bound=msgspec.Struct)

LISTED_S = 5.0
"""How long a list of a role's versions is believed: a new one answers to its alias at the latest after this."""

AGAIN_S = 2.0
"""Pause after a value that cannot be read."""


class Routes:
    """Where each role's traffic goes, as far as this process knows. Without a broker: as it was last known."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Bus]],
        folder: Path,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._routes_file, self._versions_file = folder / "routes.json", folder / "versions.json"
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._versions_bucket: Bucket[PolicyVersion] | None = None
        self._routes: dict[str, Route] = {}
        self._leases: dict[str, Lease | None] = {}
        self._versions: dict[str, PolicyVersion] = {}
        self._listed: dict[str, float] = {}
        self._listing = asyncio.Lock()
        self._stored_versions = 0
        self._fault: str | None = None
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
        """Readiness detail: what cannot be read, or roles whose canary lease has lapsed."""
        if self._fault is not None:
            return self._fault
        gone = [role for role in self._routes if self.lapsed(role)]
        return f"canary lease lapsed, serving stable: {', '.join(gone)}" if gone else None

    async def version(self, role: str, version: int) -> PolicyVersion:
        """A registered version. Raises `NotFound`, or `BusUnavailable` while it cannot be looked up."""
        key = f"{role}.{version}"
        if key not in self._versions:
            entry = await self._bucket().get(key)
            if entry is None:
                raise NotFound(f"{role} has no version {version}")
            self._versions[key] = entry.value
        return self._versions[key]

    async def newest(self, role: str, algorithm: str) -> PolicyVersion | None:
        """The newest version of a role that `algorithm` trained and that can be used."""
        with suppress(Unavailable):  # without a broker: among those that are known
            async with self._listing:
                await self._list(role)
        return newest_by(algorithm, [one for one in self._versions.values() if one.role == role])

    async def _list(self, role: str) -> None:
        """Look the role's versions up, unless that was done lately."""
        now = self._monotonic()
        if now - self._listed.get(role, -LISTED_S) < LISTED_S:
            return
        entries = await self._bucket().items(lambda key: key.startswith(f"{role}."))
        self._versions |= {key: entry.value for key, entry in entries.items()}
        if role in self._routes:
            self._listed[role] = now

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        self._routes = _restored(self._routes_file, Route) | self._routes
        self._versions = _restored(self._versions_file, PolicyVersion) | self._versions
        following = asyncio.create_task(self._keep_following())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        failed = following.exception() if following.done() else None
        following.cancel()
        stopping.cancel()
        await asyncio.gather(following, stopping, return_exceptions=True)
        if failed is not None:
            raise failed

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def _keep_following(self) -> None:
        """A value that this gateway cannot read must not end what it serves: it is told, and looked at again."""
        while True:
            try:
                await self._follow()
            except msgspec.MsgspecError as error:
                self._fault = f"a route cannot be read: {error}"
                log.error("route unreadable, serving what is known", reason=str(error))
                await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        bus = await self._connect()
        self._versions_bucket = bus.bucket(POLICIES, PolicyVersion)
        async for key, entry in bus.bucket(POLICIES, Route).watch(lambda key: "." not in key):
            self._fault = None
            if entry is None:
                self._routes.pop(key, None)
                self._leases.pop(key, None)
                self._listed.pop(key, None)
            else:
                self._routes[key] = entry.value
                self._leases[key] = observe(self._leases.get(key), entry.value, self._monotonic())
                await self._look_up_stable(key)
            self._save()

    async def _look_up_stable(self, role: str) -> None:
        """So that it can be loaded into an engine that lost it while the broker is away too."""
        stable = self._routes[role].stable
        if stable is not None:
            with suppress(NotFound, Unavailable):
                await self.version(role, stable.version)

    def _bucket(self) -> Bucket[PolicyVersion]:
        if self._versions_bucket is None:
            raise BusUnavailable("the broker has not been reached yet")
        return self._versions_bucket

    def _save(self) -> None:
        _store(self._routes_file, {role: without_canary(route) for role, route in self._routes.items()})
        if len(self._versions) != self._stored_versions:
            _store(self._versions_file, self._versions)
            self._stored_versions = len(self._versions)


def _restored(file: Path, kind: type[V]) -> dict[str, V]:
    """What was known last time."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, kind])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("what was stored is unreadable", file=str(file), reason=str(error))
        return {}


def _store(file: Path, values: dict[str, V]) -> None:
    staged = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(msgspec.json.encode({key: msgspec.Raw(encode(value)) for key, value in values.items()}))
        staged.replace(file)
    except OSError as error:
        log.warning("not stored", file=str(file), reason=str(error))
