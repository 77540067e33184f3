"""The trackers by name; each makes itself of the settings, and None where they do not name it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from ratchet.core.stores.policies import BlobStore
from ratchet.extras.trackers.foreign_package import trackio, wandb
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers import mlflow
from ratchet.extras.trackers.trackers.base import Tracker

TRACKERS: Mapping[str, Callable[[Settings, BlobStore, AsyncExitStack], Awaitable[Tracker | None]]] = {
    "mlflow": mlflow.tracker,
    "trackio": trackio,
    "wandb": wandb,
}
