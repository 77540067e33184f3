"""The registry of policies: versions, lineage, the data behind each, and prompts to try a candidate on.

`build_registry` puts it together; `Registry` is what the other subjects ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.datasets.clickhouse_trajectories import Trajectories
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.registry.clickhouse_lineage import PolicyHistory
from ratchet.rl_coordinator.registry.domain import Policies, StartingPoint, continues_stable
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.registry.provenance import Page, Provenance
from ratchet.rl_coordinator.registry.replay import Replay

if TYPE_CHECKING:
    from ratchet.rl_coordinator.settings import Settings

__all__ = ["KvPolicies", "Page", "Policies", "Registry", "StartingPoint", "build_registry", "continues_stable"]


@dataclass(frozen=True, kw_only=True)
class Registry:
    """What can be asked about registered policies."""

    policies: KvPolicies
    history: PolicyHistory
    provenance: Provenance
    replay: Replay


def build_registry(settings: Settings, *, bus: Bus, warehouse: Warehouse, objects: Objects) -> Registry:
    """The registry on open connections."""
    policies = KvPolicies(Bucket(bus, POLICIES, Route), Bucket(bus, POLICIES, PolicyVersion))
    snapshots, history = Snapshots(objects, settings.shared.s3_bucket), PolicyHistory(warehouse)
    span = timedelta(days=settings.history_days)
    trajectories = Trajectories(warehouse, settings.history_limit, span, bus.now)
    return Registry(
        policies=policies,
        history=history,
        provenance=Provenance(policies=policies, jobs=Bucket(bus, JOBS, Job), snapshots=snapshots, history=history),
        replay=Replay(policies=policies, snapshots=snapshots, history=history, trajectories=trajectories),
    )
