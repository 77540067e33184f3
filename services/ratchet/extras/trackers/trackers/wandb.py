"""Weights & Biases, offline: a job that has ended is a run in a directory, which `wandb sync` uploads when a person
runs it. Ratchet itself sends nothing there: it takes no API key, and no other mode is offered."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ratchet.core.errors import ConfigError
from ratchet.core.stores.policies import BlobStore
from ratchet.extras.trackers.foreign_package import FilesTracker, Package
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers.base import Tracker

OFFLINE = "offline"


async def tracker(settings: Settings, objects: BlobStore, stack: AsyncExitStack) -> Tracker | None:  # noqa: ARG001 - as all have it
    """The package of the interpreter in `RATCHET_TRACKER_WANDB_PYTHON`. Raises `ConfigError` for another mode."""
    if settings.wandb_python is None:
        return None
    if settings.wandb_mode != OFFLINE:
        raise ConfigError(
            f"wrong setting RATCHET_TRACKER_WANDB_MODE: {settings.wandb_mode!r}; runs are written offline, and "
            "`wandb sync` uploads them"
        )
    directory = settings.wandb_dir or settings.shared.data_dir / "wandb"
    environment = {"WANDB_MODE": OFFLINE, "WANDB_DIR": str(directory)}
    return FilesTracker(Package("wandb", settings.wandb_python, directory, environment), objects, settings.prefix)
