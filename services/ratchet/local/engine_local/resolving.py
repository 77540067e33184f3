"""Policies come into memory when a request names them for the first time: the name is the address in the object store.

Each is loaded once, however many requests wait for it, and one at a time. Names that the store does not hold cost it
little: one without a digest nothing, any other one listing in five seconds, and only `MOST_LOADS` names wait at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from ratchet.core.errors import DigestMismatch, NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.rules.engines import LOADS_BUSY, MOST_LOADS, POLICY_REFUSED
from ratchet.core.service.problems import HttpError
from ratchet.core.stores.failed_names import FailedNames
from ratchet.core.stores.policies import Policy, is_policy_name
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.registry import Entry, Registry
from ratchet.local.engine_local.torch_policies import Served

log = structlog.get_logger()

REFUSALS = {NotFound: "policy_not_found", DigestMismatch: "digest_mismatch"}
"""Codes of refusals that are not `policy_refused`."""


class Resolver:
    """Finds and loads policies by name. Runs on one event loop; `find` and `load` do their work elsewhere."""

    def __init__(
        self,
        registry: Registry[Served],
        find: Callable[[str], Awaitable[Policy]],
        load: Callable[[str], Awaitable[Served]],
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find`: a policy's name to its manifest; `load`: the manifest's uri to what answers."""
        self._registry = registry
        self._find = find
        self._load = load
        self._now = now
        self._one_load = asyncio.Lock()
        self._resolving: dict[str, asyncio.Task[Entry[Served]]] = {}
        self._failed = FailedNames(clock)

    async def resolve(self, name: str) -> Entry[Served]:
        """The policy called `name`, in memory. A caller that goes away leaves the load to those that wait with it.

        Raises `HttpError` 404 for a name that the store does not hold, `HttpError` `POLICY_REFUSED`, and `Unavailable`.
        """
        entry = self._registry.get(name)
        if entry is not None:
            return entry
        if not is_policy_name(name):
            raise unknown_model(name)
        self._failed.raise_remembered(name)
        resolving = self._resolving.get(name)
        if resolving is None:
            if len(self._resolving) >= MOST_LOADS:
                raise Unavailable(LOADS_BUSY, code="loads_busy")
            resolving = self._resolving[name] = asyncio.create_task(self._resolved(name))
            resolving.add_done_callback(lambda task: self._end(name, task))
        return await asyncio.shield(resolving)

    def _end(self, name: str, task: asyncio.Task[Entry[Served]]) -> None:
        del self._resolving[name]
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, HttpError):
            self._failed.remember(name, failure)

    async def _resolved(self, name: str) -> Entry[Served]:
        try:
            policy = await self._find(name)
        except NotFound as error:
            raise unknown_model(name) from error
        except Exception as error:
            raise not_loaded(name, error) from error
        async with self._one_load:
            return await self._loaded(name, policy)

    async def _loaded(self, name: str, policy: Policy) -> Entry[Served]:
        if not self._registry.has_room():
            raise Unavailable("no room for another policy: all resident ones are busy", code="no_room")
        began = time.monotonic()
        try:
            served = await self._load(policy.uri)
        except Exception as error:
            metrics.LOADS.labels("refused").inc()
            raise not_loaded(name, error) from error
        now = time.monotonic()
        entry = Entry(name, policy.digest, policy.uri, served, self._now().timestamp(), now, served.own_bytes)
        evicted = self._registry.add(entry)
        metrics.LOADS.labels("loaded").inc()
        metrics.LOAD_SECONDS.observe(now - began)
        metrics.EVICTIONS.labels("room").inc(len(evicted))
        metrics.RESIDENT.set(len(self._registry))
        log.info("policy loaded", policy=name, digest=policy.digest, seconds=round(now - began, 3), evicted=evicted)
        return entry


def unknown_model(name: str) -> HttpError:
    """The error of a name that is no policy's."""
    return HttpError(404, f"The model `{name}` does not exist.", kind="NotFoundError", code="model_not_found")


def not_loaded(name: str, error: Exception) -> RatchetError:
    """What the caller gets. Nothing was computed: an engine that cannot load a policy is no policy that breaks one."""
    known = isinstance(error, RatchetError | OSError)
    # Of known errors only the kind: their texts may quote the store's, and only the caller may read those.
    log.warning("policy not loaded", policy=name, error=type(error).__name__, exc_info=None if known else error)
    if isinstance(error, NotFound | Rejected | DigestMismatch):  # not found: its base, or one of its files
        code = next((code for kind, code in REFUSALS.items() if isinstance(error, kind)), "policy_refused")
        return HttpError(POLICY_REFUSED, str(error), code=code)
    if isinstance(error, RatchetError):
        return error
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return Unavailable(f"{name} cannot be kept or read on this engine's disk: {reason}")
    return Unavailable(f"{name} cannot be loaded on this engine now; its log has the details")
