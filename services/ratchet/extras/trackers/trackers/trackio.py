"""trackio: a job that has ended is a run of the project of its role, in SQLite on this machine."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ratchet.core.stores.policies import BlobStore
from ratchet.extras.trackers.foreign_package import FilesTracker, Package
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers.base import Tracker


async def tracker(settings: Settings, objects: BlobStore, stack: AsyncExitStack) -> Tracker | None:  # noqa: ARG001 - as all have it
    """The package of the interpreter in `RATCHET_TRACKER_TRACKIO_PYTHON`."""
    if settings.trackio_python is None:
        return None
    directory = settings.trackio_dir or settings.shared.data_dir / "trackio"
    environment = {"TRACKIO_DIR": str(directory), "HF_HUB_OFFLINE": "1"}
    return FilesTracker(Package("trackio", settings.trackio_python, directory, environment), objects, settings.prefix)
