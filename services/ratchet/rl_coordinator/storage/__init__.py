"""What nothing needs any more leaves the object store.

    S3 listing, manifests ──┐
    KV jobs, policies,   ───┴─> plan_sweep ──> Collector ──> S3: set aside, take back, remove
       rollouts

`build_storage` puts it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ratchet.bus.bodies import KEPT_S
from ratchet.bus.connection import Bus
from ratchet.core.service.runtime import Component, Periodic
from ratchet.core.stores.objects import Objects
from ratchet.rl_coordinator.storage.collector import Collector
from ratchet.rl_coordinator.storage.domain import Retention

if TYPE_CHECKING:
    from ratchet.rl_coordinator.settings import Settings

__all__ = ["Storage", "build_storage"]

TICK_S = 600.0
"""How often a coordinator looks whether a sweep is due."""
EVERY_S = 86_400.0
"""Time between two sweeps, of all coordinators together."""
GRACE = timedelta(hours=48)
"""What is younger is never swept: longer than anything takes from its first file to what names it."""
TRASH = timedelta(days=7)
"""What a sweep set aside can be read for this long, which takes it back; then it is removed."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The object store's upkeep; `components` run for as long as the service does."""

    collector: Collector
    components: Sequence[Component]


def build_storage(settings: Settings, *, bus: Bus, objects: Objects) -> Storage:
    """The collector on open connections."""
    retention = Retention(
        grace=GRACE,
        retention=timedelta(days=settings.artifact_retention_days),
        trash=TRASH,
        bodies=timedelta(seconds=KEPT_S) + GRACE,
    )
    dry_run = settings.sweep == "dry_run"
    collector = Collector(bus, objects, retention, EVERY_S, dry_run=dry_run)
    ticks = [] if settings.sweep == "off" else [Periodic(TICK_S, collector.tick, "sweep")]
    return Storage(collector=collector, components=ticks)
