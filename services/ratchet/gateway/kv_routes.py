"""Routes and versions from the `policies` bucket, watched; the last known good ones on disk, without their canary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.tasks import end
from ratchet.contract import encode
from ratchet.contract.state import POLICIES, PolicyVersion, Route
from ratchet.errors import BusUnavailable, NotFound, Unavailable
from ratchet.gateway.domain.lease import Lease, has_lapsed, is_overdue, observe
from ratchet.gateway.domain.routes import without_canary
from ratchet.rules.arms import newest_by
from ratchet.service.files import write_whole

log = structlog.get_logger()

V = TypeVar("V", bound=msgspec.Struct)


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
        self._on_disk: dict[Path, bytes] = {}
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._bucket: Bucket[msgspec.Raw] | None = None
        self._routes: dict[str, Route] = {}
        self._leases: dict[str, Lease | None] = {}
        """Of every route that this process has looked at, None without a canary. What was on disk is no look."""
        self._versions: dict[str, PolicyVersion] = {}
        self._unreadable: dict[str, str] = {}
        """Entries that this gateway cannot read, by key, with the reason."""
        self._looked = False
        """Whether the routes were read once since the start; there may be none."""
        self._stopping = asyncio.Event()

    def get(self, role: str) -> Route | None:
        """The route of a role, None when there is none."""
        return self._routes.get(role)

    def roles(self) -> list[str]:
        """Roles that serve a policy."""
        return sorted(role for role, route in self._routes.items() if route.stable is not None)

    def lapsed(self, role: str) -> bool:
        """Whether the role's canary has outlived its lease, or was never seen to be alive."""
        route = self._routes.get(role)
        return route is not None and has_lapsed(self._leases.get(role), route, self._monotonic(), self._lease_s)

    async def ready(self) -> str | None:
        """Readiness: None once the routes were looked at, or are known from an earlier run; else the reason."""
        return None if self._looked or self._routes else "the routes were not looked at yet, and none were kept"

    async def check(self) -> str | None:
        """What is wrong with the routes, though calls are answered: entries that cannot be read, lapsed leases.

        Not in the time that a lease may take to grow after a start: the deployer may wait for this gateway.
        """
        told = [f"{key} cannot be read: {reason}" for key, reason in self._unreadable.items()]
        now = self._monotonic()
        gone = [role for role, lease in self._leases.items() if lease and is_overdue(lease, now, self._lease_s)]
        if gone:
            told.append(f"canary lease lapsed, serving stable: {', '.join(gone)}")
        return "; ".join(told) or None

    async def version(self, role: str, version: int) -> PolicyVersion:
        """A registered version. Raises `NotFound`, or `Unavailable` when it cannot be looked up or read."""
        key = f"{role}.{version}"
        found = self._versions.get(key) or await self._look_up(key)
        if found is None:
            raise NotFound(f"{role} has no version {version}")
        return found

    def newest(self, role: str, algorithm: str) -> PolicyVersion | None:
        """The newest version of a role that `algorithm` trained and that can be used."""
        return newest_by(algorithm, [one for one in self._versions.values() if one.role == role])

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        self._routes = _restored(self._routes_file, Route) | self._routes
        self._versions = _restored(self._versions_file, PolicyVersion) | self._versions
        following = asyncio.create_task(self._follow())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        failed = following.exception() if following.done() else None
        await end(following, stopping)
        if failed is not None:
            raise failed

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def _follow(self) -> None:
        self._bucket = (await self._connect()).bucket(POLICIES, msgspec.Raw)
        async for changes in self._bucket.watch():
            for key, entry in changes:
                with suppress(Unavailable):  # as it was last known, and told
                    self._take_over(key, entry)
            self._save({"." in key for key, _ in changes})
            self._looked = True

    def _take_over(self, key: str, entry: Entry[msgspec.Raw] | None) -> None:
        """Raises `Unavailable` for what cannot be read."""
        if entry is None:
            for known in (self._routes, self._leases, self._versions, self._unreadable):
                known.pop(key, None)
        elif "." in key:
            self._versions[key] = self._read(key, entry.value, PolicyVersion)
        else:
            self._change(key, self._read(key, entry.value, Route))

    def _change(self, role: str, route: Route) -> None:
        first = role not in self._leases
        self._routes[role] = route
        self._leases[role] = observe(self._leases.get(role), route, self._monotonic(), first=first)

    async def _look_up(self, key: str) -> PolicyVersion | None:
        """A version that the watch has not told yet. Raises `Unavailable` when the bucket is away, or unreadable."""
        entry = await self._reached().get(key)
        if entry is None:
            self._unreadable.pop(key, None)
            return None
        self._versions[key] = self._read(key, entry.value, PolicyVersion)
        return self._versions[key]

    def _read(self, key: str, stored: msgspec.Raw, kind: type[V]) -> V:
        """An entry's value. Raises `Unavailable`, and remembers it, when it is none: nobody else's is held up by it."""
        try:
            value = msgspec.json.decode(stored, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            if self._unreadable.get(key) != str(error):
                log.error("entry unreadable", key=key, reason=str(error))
            self._unreadable[key] = str(error)
            raise Unavailable(f"the entry {key} cannot be read: {error}") from error
        self._unreadable.pop(key, None)
        return value

    def _reached(self) -> Bucket[msgspec.Raw]:
        if self._bucket is None:
            raise BusUnavailable("the broker has not been reached yet")
        return self._bucket

    def _save(self, changed: set[bool]) -> None:
        """What was known, for a start without a broker; `changed`: of versions (True), of routes (False)."""
        if False in changed:
            self._store(self._routes_file, {role: without_canary(route) for role, route in self._routes.items()})
        if True in changed:
            self._store(self._versions_file, self._versions)

    def _store(self, file: Path, values: Mapping[str, msgspec.Struct]) -> None:
        blob = msgspec.json.encode({key: msgspec.Raw(encode(value)) for key, value in values.items()})
        if self._on_disk.get(file) == blob:  # a renewed lease changes nothing of a route without its canary
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, blob, durable=False)
        except OSError as error:
            log.warning("not stored", file=str(file), reason=str(error))
        else:
            self._on_disk[file] = blob


def _restored(file: Path, kind: type[V]) -> dict[str, V]:
    """What was known last time."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, kind])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("what was stored is unreadable", file=str(file), reason=str(error))
        return {}
