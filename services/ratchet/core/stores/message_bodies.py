"""Bodies of messages in the object store, by role and SHA-256: `bodies/<role>/<sha256>`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.errors import ObjectsUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.listing import BODIES

if TYPE_CHECKING:
    from ratchet.core.stores.objects import Objects

T = TypeVar("T")

PATIENCE_S = 20.0
"""For one body: others wait behind it, in their order."""
REST_S = 30.0
"""After it was away the store is left alone for so long."""


class StoredBodies:
    """Keeps bodies for `Bus`. The client of the store is made with the first body: few programs meet one."""

    def __init__(self, settings: SharedSettings) -> None:
        self._settings = settings
        self._objects: Objects | None = None
        self._rests_until = 0.0

    async def put(self, place: str, sha256: str, body: bytes) -> None:  # noqa: ARG002 - the store computes it itself
        """See `Bodies`. What was put before is written again: its age counts anew. `sha256` is the body's."""
        await self._within_patience(lambda objects: objects.put(body, f"{BODIES}/{place or DEFAULT_ROLE}"))

    async def get(self, place: str, sha256: str) -> bytes:
        """See `Bodies`."""
        uri = f"s3://{self._settings.s3_bucket}/{BODIES}/{place or DEFAULT_ROLE}/{sha256}"
        return await self._within_patience(lambda objects: objects.get(uri, sha256))

    async def _within_patience(self, work: Callable[[Objects], T]) -> T:
        if time.monotonic() < self._rests_until:
            raise ObjectsUnavailable("the object store was away a moment ago")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.to_thread(lambda: work(self._opened()))
        except (ObjectsUnavailable, TimeoutError) as error:
            self._rests_until = time.monotonic() + REST_S
            raise ObjectsUnavailable(str(error) or f"the object store took longer than {PATIENCE_S:g} s") from error

    def _opened(self) -> Objects:
        if self._objects is None:
            from ratchet.core.stores.objects import Objects  # noqa: PLC0415 - boto3 takes 30 MB and a while

            objects = Objects(self._settings)
            objects.ensure_bucket()
            self._objects = objects
        return self._objects
