"""Routes and versions, followed in the `policies` bucket; the last good ones on disk, without their canary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import Lasting
from ratchet.core.contract import encode
from ratchet.core.contract.state import POLICIES, PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import BusUnavailable, NotFound, Unavailable
from ratchet.core.rules.arms import newest_by
from ratchet.core.service.files import write_whole
from ratchet.gateway.domain.routing import Lease, has_lapsed, is_overdue, observe, without_canary
from ratchet.gateway.kv_bundles import Bundles

log = structlog.get_logger()

V = TypeVar("V", bound=msgspec.Struct)


class Routes(Lasting):
    """Each role's route, as far as this process knows. Without a broker: as the process last knew it."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Bus]],
        folder: Path,
        *,
        lease_s: float,
        monotonic: Callable[[], float],
        bundles: Bundles,
    ) -> None:
        super().__init__()
        self._connect = connect
        self.bundles = bundles
        """What policies that are bundles change of calls."""
        self._routes_file, self._versions_file = folder / "routes.json", folder / "versions.json"
        self._on_disk: dict[Path, bytes] = {}
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._bucket: Bucket[msgspec.Raw] | None = None
        self._routes: dict[str, Route] = {}
        self._leases: dict[str, Lease | None] = {}
        """Of every route that this process has read from the bucket (not from disk); None without a canary."""
        self._versions: dict[str, PolicyVersion] = {}
        self._unreadable: dict[str, str] = {}
        """Entries that this gateway cannot read, by key, with the reason."""
        self._has_read = False
        """Whether this process has read the bucket once; the bucket may hold no route."""

    def get_route(self, role: str) -> Route | None:
        """The route of a role, None when there is none."""
        return self._routes.get(role)

    def policies_of(self, role: str) -> list[ServedPolicy]:
        """The policies that a role's route names: stable, previous, canary."""
        route = self._routes.get(role)
        named = (route.stable, route.previous, route.canary.policy if route.canary else None) if route else ()
        return [policy for policy in named if policy is not None]

    def roles(self) -> list[str]:
        """Roles that serve a policy."""
        return sorted(role for role, route in self._routes.items() if route.stable is not None)

    def has_lapsed(self, role: str) -> bool:
        """Whether the role's canary has outlived its lease, or this process has never seen it renewed."""
        route = self._routes.get(role)
        return route is not None and has_lapsed(self._leases.get(role), route, self._monotonic(), self._lease_s)

    async def ready(self) -> str | None:
        """Readiness: None once the process has read the routes, or knows them from an earlier run; else the reason."""
        if self._has_read or self._routes:
            return None
        return "the gateway has not read the routes yet, and none are on disk: it waits for the broker"

    async def check(self) -> str | None:
        """What is wrong with the routes although calls are answered: unreadable entries, lapsed leases.

        A lease may take its own time to grow after a start: the deployer may wait for this gateway to be ready.
        """
        problems = [f"{key} cannot be read: {reason}" for key, reason in self._unreadable.items()]
        now = self._monotonic()
        overdue = [role for role, lease in self._leases.items() if lease and is_overdue(lease, now, self._lease_s)]
        if overdue:
            problems.append(f"canary lease lapsed, serving stable: {', '.join(overdue)}")
        return "; ".join(problems) or None

    async def version(self, role: str, version: int) -> PolicyVersion:
        """A registered version, also one that the watch has not delivered yet.

        Raises `NotFound`, or `Unavailable` when the bucket is away or its entry unreadable.
        """
        key = f"{role}.{version}"
        if key in self._versions:
            return self._versions[key]
        if self._bucket is None:
            raise BusUnavailable(f"the gateway cannot look up {role}@{version}: it has not reached the broker yet")
        entry = await self._bucket.get(key)
        if entry is None:
            self._unreadable.pop(key, None)
            raise NotFound(f"{role} has no version {version}; GET /v1/models lists the versions that serve")
        self._versions[key] = self._decode(key, entry.value, PolicyVersion)
        return self._versions[key]

    def takes_tools(self, role: str, version: int) -> bool | None:
        """Whether a version's chat template shows it tools; None where that is unknown, here or to the deployer."""
        known = self._versions.get(f"{role}.{version}")
        return known.takes_tools if known is not None else None

    def newest(self, role: str, algorithm: str) -> PolicyVersion | None:
        """The newest usable version of a role that `algorithm` trained."""
        return newest_by(algorithm, [version for version in self._versions.values() if version.role == role])

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        self._routes = _restored(self._routes_file, Route) | self._routes
        self._versions = _restored(self._versions_file, PolicyVersion) | self._versions
        await super().run()

    async def _work(self) -> None:
        self._bucket = Bucket(await self._connect(), POLICIES, msgspec.Raw)
        async for changes in self._bucket.watch():
            for key, entry in changes:
                with suppress(Unavailable):  # an unreadable entry: its last good value stays, and `check` names it
                    self._take_over(key, entry.value if entry else None)
            keys = {key for key, _ in changes}
            if keys and not self._has_read:
                keys |= self._forget_others(keys)
            if not self._has_read or any(entry is None for _, entry in changes):
                self.bundles.prune(self._digests())
            if any("." not in key for key in keys):
                self._store(self._routes_file, {role: without_canary(route) for role, route in self._routes.items()})
            if any("." in key for key in keys):
                self._store(self._versions_file, self._versions)
            for key in keys:
                await self.bundles.prepare(self.policies_of(key))
            self._has_read = True

    def _forget_others(self, keys: Set[str]) -> set[str]:
        """Forget what an earlier run has left on disk beside all that the bucket holds; returns its keys."""
        gone = (self._routes.keys() | self._versions.keys()) - keys
        for key in gone:
            self._take_over(key, None)
        return gone

    def _digests(self) -> set[str]:
        """Of all policies that a route or the registry names."""
        routed = {policy.digest for role in self._routes for policy in self.policies_of(role)}
        return routed | {version.digest for version in self._versions.values()}

    def _take_over(self, key: str, stored: msgspec.Raw | None) -> None:
        """Change what this process knows as the bucket has changed. Raises `Unavailable` for an unreadable entry."""
        if stored is None:
            for known in (self._routes, self._leases, self._versions, self._unreadable):
                known.pop(key, None)
        elif "." in key:
            self._versions[key] = self._decode(key, stored, PolicyVersion)
        else:
            route = self._decode(key, stored, Route)
            first = key not in self._leases
            self._routes[key] = route
            self._leases[key] = observe(self._leases.get(key), route, self._monotonic(), first=first)

    def _decode(self, key: str, stored: msgspec.Raw, kind: type[V]) -> V:
        """An entry's value. Raises `Unavailable` for an unreadable one, and remembers it: it stops no other entry."""
        try:
            value = msgspec.json.decode(stored, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            if self._unreadable.get(key) != str(error):
                log.error("entry unreadable", key=key, reason=str(error))
            self._unreadable[key] = str(error)
            message = f"the entry {key} cannot be read: {error}; the operator must restore it in the bucket {POLICIES}"
            raise Unavailable(message) from error
        self._unreadable.pop(key, None)
        return value

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
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, kind])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("what was stored is unreadable", file=str(file), reason=str(error))
        return {}
