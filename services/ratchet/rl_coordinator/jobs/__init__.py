"""Training jobs, from the request to the policy.

    request from the bus ──> Intake ──> KvJobs <── JobReconciler: statuses, leases, deadlines ─> bus
    HTTP API, triggers   ──>   │          ^
              Feasibility <────┘          └── Dispatcher: free slots ─> bus
                                                └─> Exporter ─> S3 snapshot

`build_jobs` puts it together; `Jobs` is what the other subjects ask, and `jobs.domain` has the rules that they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Handlers, each, subscribe
from ratchet.bus.kv import Bucket
from ratchet.core.contract import TrainingRequest, TrainingStatus
from ratchet.core.contract.state import HELD_OUT, JOBS, RATERS, HeldOutTasks, Job, RaterDecisions
from ratchet.core.datasets.clickhouse_executions import Executions
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.datasets.clickhouse_trajectories import Trajectories
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.datasets.selector import SnapshotSelector
from ratchet.core.preferences.quarantine import Quarantine
from ratchet.core.rules.training_options import Amounts
from ratchet.core.service.engine_list import engine_kinds
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.runtime import Component, Periodic
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.jobs.anew import Anew
from ratchet.rl_coordinator.jobs.dispatcher import Dispatcher
from ratchet.rl_coordinator.jobs.domain.jobs import CountedOf, Limits
from ratchet.rl_coordinator.jobs.domain.requests import STREAM_NAME, Abilities
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.exporter import Exporter
from ratchet.rl_coordinator.jobs.feasibility import Feasibility
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.planner import Planner, RoleData
from ratchet.rl_coordinator.jobs.reconciler import JobReconciler
from ratchet.rl_coordinator.jobs.task_sets import TaskFiles
from ratchet.rl_coordinator.registry import KvPolicies

if TYPE_CHECKING:
    from ratchet.rl_coordinator.settings import Settings, Timing

__all__ = ["Jobs", "abilities", "build_jobs"]

BUCKET = "coordinator"
"""The coordinator's own bucket: here the job of every idempotency key."""
AGEING_S = 1800.0
"""Each priority below `urgent` puts a job off by this long; no job that comes later still overtakes it."""
MAX_ATTEMPTS = 5
"""Attempts of workers after which a job whose workers keep vanishing fails."""
RETENTION_S = 90 * 86_400.0
"""Ended jobs are kept this long, and the last one of each role and algorithm; the history in ClickHouse has all."""
EXPORTS = 4
"""Roles whose data is exported at a time: a slow export delays its own role alone. Each holds the catalogue of its role
in memory, about 200 MB at the limit of the history."""
PAIRS_PER_GROUP = 4
"""Most pairs of one task in a snapshot, the newest; pairs without a group key, as people give, are not bounded."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """What can be asked about training jobs, and of them; `components` run for as long as the service does."""

    intake: Intake
    store: KvJobs
    exporter: Exporter
    planner: Planner
    quarantine: Quarantine
    policies: KvPolicies
    warehouse: Warehouse
    abilities: Abilities
    schedule: Schedule
    anew: Anew
    components: Sequence[Component]


def abilities(settings: Settings) -> Abilities:
    """What this installation can train."""
    amounts = Amounts(settings.history_limit, settings.minimum_rows, settings.minimum_pairs, settings.human_share)
    engines = engine_kinds(settings.shared.engines, settings.shared.engine_kind)
    return Abilities(settings.training_enabled, settings.algorithms, amounts, engines)


async def build_jobs(  # noqa: PLR0913 - assembles the subject of all that it is given
    settings: Settings,
    timing: Timing,
    *,
    bus: Bus,
    warehouse: Warehouse,
    objects: Objects,
    policies: KvPolicies,
    counted: CountedOf,
    gateway: AsyncApiClient | None,
) -> Jobs:
    """Jobs on open connections. `gateway`: None where it is not known."""
    able, schedule = abilities(settings), Schedule(settings.slots, AGEING_S)
    store = KvJobs(Bucket(bus, JOBS, Job), Bucket(bus, BUCKET, str))
    await store.load()
    data = _role_data(settings, able.amounts, bus, warehouse, objects)
    held = partial(bus.extent, STREAM_NAME)
    exporter = Exporter(store, policies, data.selector, data.snapshots, objects, data.tasks, bus.now, held)
    feasibility = Feasibility(policies, exporter, objects, data.snapshots, able.amounts, store, gateway)
    intake = Intake(bus, store, feasibility, able, schedule, counted)
    limits = Limits(settings.lease_s, timing.claim_s, MAX_ATTEMPTS, DEFAULT_RETRIES)
    reconciler = JobReconciler(
        bus=bus, store=store, limits=limits, tick_s=timing.tick_s, retention_s=RETENTION_S, pools=settings.slots
    )
    dispatcher = Dispatcher(bus=bus, store=store, prepare=exporter.prepare, schedule=schedule, exports=EXPORTS)
    handlers: Handlers = {TrainingRequest: each(intake.on_request), TrainingStatus: each(reconciler.on_status)}
    return Jobs(
        intake=intake,
        store=store,
        exporter=exporter,
        planner=Planner(store, policies, data, able, exporter),
        quarantine=data.quarantine,
        policies=policies,
        warehouse=warehouse,
        abilities=able,
        schedule=schedule,
        anew=Anew(store, intake, bus.now),
        components=[
            store,
            subscribe(bus, "coordinator-training", handlers),
            Periodic(timing.tick_s, reconciler.tick, "reconciler"),
            dispatcher,
            Periodic(timing.tick_s, dispatcher.tick, "dispatcher"),
        ],
    )


def _role_data(settings: Settings, amounts: Amounts, bus: Bus, warehouse: Warehouse, objects: Objects) -> RoleData:
    """Where the data of a role is read, and what chooses from it."""
    span = timedelta(days=settings.history_days)
    trajectories = Trajectories(warehouse, settings.history_limit, span, bus.now)
    preferences = Preferences(warehouse, settings.history_limit)
    quarantine = Quarantine(Bucket(bus, RATERS, RaterDecisions))
    return RoleData(
        trajectories=trajectories,
        preferences=preferences,
        snapshots=Snapshots(objects, settings.shared.s3_bucket),
        selector=SnapshotSelector(
            trajectories, preferences, Executions(warehouse), amounts, PAIRS_PER_GROUP, quarantine.left_out
        ),
        tasks=TaskFiles(objects, Bucket(bus, HELD_OUT, HeldOutTasks)),
        pairs_per_group=PAIRS_PER_GROUP,
        quarantine=quarantine,
    )
