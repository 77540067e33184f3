"""The trackers by name; each makes itself of the settings, and None where they do not name it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from ratchet.experiment_tracker.settings import Settings
from ratchet.experiment_tracker.trackers import mlflow, trackio, wandb
from ratchet.experiment_tracker.trackers.base import Tracker
from ratchet.stores.policies import BlobStore

TRACKERS: Mapping[str, Callable[[Settings, BlobStore, AsyncExitStack], Awaitable[Tracker | None]]] = {
    "mlflow": mlflow.tracker,
    "trackio": trackio.tracker,
    "wandb": wandb.tracker,
}
