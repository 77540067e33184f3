"""The HTTP route of the object store's upkeep."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from ratchet.core.contract.http.status import StorageOut
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.control_api import ControlApi
from ratchet.rl_coordinator.storage import Storage

ERRORS: Mapping[int, str] = {
    400: "One of the headers that are checked comes twice.",
    422: "No job and no policy is known although the store is not empty: its registry is missing.",
}


class SweepIn(BaseModel):
    """Options of a sweep. A misspelt name is refused: it must not remove anything."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Only say what would be done.")


class StorageRoutes:
    """`/v1/storage/sweep`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add_to(self, api: ControlApi) -> None:
        """Serve it."""
        api.route("POST", "/v1/storage/sweep", self.sweep, scope=KeyScope.ADMIN, errors=ERRORS)

    async def sweep(self, asked: SweepIn) -> StorageOut:
        """Set aside the objects that nothing needs any more, and remove those that were set aside long enough."""
        return await self._storage.collector.sweep(dry_run=asked.dry_run)
