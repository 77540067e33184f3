"""Composition root of the coordinator.

HTTP API ───┐                         ┌─ Keeper: leases, deadlines, announcements ──> RL_TRAINING, RL_JOBS
triggers ───┼─> Intake ─> RL_TRAINING │
            │                │        ├─ Dispatcher: free slots ─> Exporter: ClickHouse -> S3 snapshot
RL_TRAINING ┴─> Coordinator (handlers)│
                     └──> jobs KV <───┘      RL_REWARDS, RL_FEEDBACK ─> counters (projections) ─> ThresholdTrigger
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Handlers, each
from ratchet.bus.projection import KeyOf, Projection
from ratchet.contract import TrainingRequest, TrainingStatus
from ratchet.contract.snapshot import PAIRS
from ratchet.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.datasets.clickhouse_preferences import Preferences
from ratchet.datasets.clickhouse_trajectories import Trajectories
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.datasets.selector import SnapshotSelector
from ratchet.errors import ConfigError
from ratchet.rl_coordinator.http import JobRoutes, StatusRoutes, http_app
from ratchet.rl_coordinator.http.overview import Overview
from ratchet.rl_coordinator.http.preference_overview import PreferenceOverview
from ratchet.rl_coordinator.jobs.dispatcher import Dispatcher
from ratchet.rl_coordinator.jobs.domain.jobs import Limits
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.jobs.exporter import Exporter
from ratchet.rl_coordinator.jobs.feasibility import Feasibility, Given
from ratchet.rl_coordinator.jobs.handlers import Coordinator, House
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.reconciler import Keeper, Pace
from ratchet.rl_coordinator.registry.clickhouse_lineage import PolicyHistory
from ratchet.rl_coordinator.registry.http_registry import RegistryRoutes
from ratchet.rl_coordinator.registry.http_replay import ReplayRoutes
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.registry.provenance import Provenance
from ratchet.rl_coordinator.registry.replay import Replay
from ratchet.rl_coordinator.settings import Settings
from ratchet.rl_coordinator.triggers.clickhouse_counts import Counts
from ratchet.rl_coordinator.triggers.domain import Counted, count_one_more, counted_role, preferring_role
from ratchet.rl_coordinator.triggers.recipes import Recipe, read_recipes
from ratchet.rl_coordinator.triggers.thresholds import Thresholds, ThresholdTrigger
from ratchet.rules.alerts import gap_alert
from ratchet.rules.algorithms import dataset_format
from ratchet.rules.training_options import Amounts
from ratchet.service.contracts import load_contracts
from ratchet.service.health import Check
from ratchet.service.http import HttpServer
from ratchet.service.runtime import App, Component, Periodic
from ratchet.stores.history import History
from ratchet.stores.objects import Objects
from ratchet.stores.stored import StoredWatch, stored_check
from ratchet.stores.warehouse import Warehouse

NAME = "rl_coordinator"
BUCKET = "coordinator"
"""Our own bucket: counters of rewarded trajectories and of preferences, and the job of every idempotency key."""


@dataclass(frozen=True)
class Stores:
    """The connections."""

    bus: Bus
    warehouse: Warehouse
    objects: Objects

    def checks(self) -> Mapping[str, Check]:
        """Readiness by what is depended on."""
        return {"broker": self.bus.check, "warehouse": self.warehouse.check, "objects": self._check_objects}

    async def _check_objects(self) -> str | None:
        await asyncio.to_thread(self.objects.ping)
        return None


@dataclass(frozen=True)
class Recipes:
    """What triggers train, by role."""

    rewarded: Mapping[str, Recipe]
    """When enough trajectories were rewarded."""
    preferences: Mapping[str, Recipe]
    """When there are enough preferences."""


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble the coordinator."""
    house, recipes = rules_of(settings)
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    warehouse = await Warehouse.connect(settings.shared)
    stores = Stores(bus, warehouse, Objects(settings.shared))
    try:
        yield await assembled(settings, stores, house, recipes)
    finally:
        await bus.close()
        await warehouse.close()


def rules_of(settings: Settings) -> tuple[House, Recipes]:
    """What the settings say of schedules and triggers. Raises `ConfigError`."""
    return _house(settings), _recipes(settings)


async def assembled(settings: Settings, stores: Stores, house: House, recipes: Recipes) -> App:
    """The coordinator on connections that are open."""
    bus = stores.bus
    counter = _counting(bus, "rewarded", lambda received: counted_role(received.message))
    preferring = _counting(bus, "preferences", lambda received: preferring_role(received.message))
    store = KvJobs(bus.bucket(JOBS, Job), bus.bucket(BUCKET, str))
    await store.load()
    policies = KvPolicies(bus.bucket(POLICIES, Route), bus.bucket(POLICIES, PolicyVersion))
    coordinator = Coordinator(store, house, _counted(counter, preferring), bus.now)
    intake = Intake(bus, store, coordinator, _feasibility(settings, stores, policies, store))
    keeper = Keeper(bus, store, Pace(settings.tick_s, house.limits, settings.job_retention_s), bus.now)
    dispatcher = Dispatcher(store, policies, _exporter(settings, stores), keeper, house, bus.now)
    counts, settled = Counts(stores.warehouse), StoredWatch(bus, (counter.stream, preferring.stream))
    is_stored = stored_check(settled, History(stores.warehouse))
    triggers = [
        ThresholdTrigger(store, intake, is_stored, Thresholds("rewarded", counter, recipes.rewarded), bus.now),
        ThresholdTrigger(store, intake, is_stored, Thresholds("preferences", preferring, recipes.preferences), bus.now),
    ]
    api = http_app(
        stores.checks(),
        [
            JobRoutes(
                intake=intake,
                coordinator=coordinator,
                store=store,
                dispatcher=dispatcher,
                training_enabled=settings.training_enabled,
                now=bus.now,
            ),
            _registry_routes(settings, stores, policies, store),
            StatusRoutes(
                Overview(store, policies, house, counter.states, recipes.rewarded),
                PreferenceOverview(store, policies, counts, preferring.states, recipes.preferences),
                bus.now,
            ),
            ReplayRoutes(_replay(settings, stores, policies)),
        ],
    )
    handlers: Handlers = {
        TrainingRequest: each(coordinator.on_request),
        TrainingStatus: each(coordinator.on_status),
    }
    components: list[Component] = [
        counter,
        preferring,
        settled,
        bus.subscribe("coordinator-training", handlers),
        Periodic(settings.tick_s, keeper.tick, "keeper"),
        Periodic(settings.tick_s, dispatcher.tick, "dispatcher"),
        *(Periodic(settings.trigger_tick_s, one.tick, "triggers") for one in triggers if settings.training_enabled),
        HttpServer(api, settings.shared.http_host, settings.port, hosts=settings.shared.allowed_hosts),
    ]
    checks = {**stores.checks(), "rewarded": counter.check, "preferences": preferring.check}
    return App(NAME, components, checks)


def _feasibility(settings: Settings, stores: Stores, policies: KvPolicies, jobs: KvJobs) -> Feasibility:
    given = Given(stores.objects, Snapshots(stores.objects, settings.shared.s3_bucket))
    return Feasibility(policies, Counts(stores.warehouse), given, _amounts(settings), jobs.all)


def _counting(bus: Bus, name: str, role_of: KeyOf) -> Projection[int]:
    """Counts messages by role."""
    return bus.project(name, kind=int, key_of=role_of, step=lambda count, _: count_one_more(count), on_gap=gap_alert)


def _counted(rewarded: Projection[int], preferences: Projection[int]) -> Callable[[str], Counted]:
    return lambda role: Counted(rewarded.state(role) or 0, preferences.state(role) or 0)


def _exporter(settings: Settings, stores: Stores) -> Exporter:
    selector = SnapshotSelector(
        _trajectories(settings, stores),
        Preferences(stores.warehouse, settings.history_limit),
        _amounts(settings),
        pairs_per_group=settings.pairs_per_group,
    )
    snapshots = Snapshots(stores.objects, settings.shared.s3_bucket)
    return Exporter(selector, snapshots, settings.chunk, stores.bus.now)


def _trajectories(settings: Settings, stores: Stores) -> Trajectories:
    return Trajectories(stores.warehouse, settings.history_limit, timedelta(days=settings.history_days), stores.bus.now)


def _replay(settings: Settings, stores: Stores, policies: KvPolicies) -> Replay:
    snapshots = Snapshots(stores.objects, settings.shared.s3_bucket)
    return Replay(policies, snapshots, PolicyHistory(stores.warehouse), _trajectories(settings, stores))


def _registry_routes(settings: Settings, stores: Stores, policies: KvPolicies, jobs: KvJobs) -> RegistryRoutes:
    snapshots, history = Snapshots(stores.objects, settings.shared.s3_bucket), PolicyHistory(stores.warehouse)
    return RegistryRoutes(
        policies=policies,
        provenance=Provenance(policies, jobs, snapshots, history),
        jobs=jobs.all,
        history=history,
        now=stores.bus.now,
    )


def _house(settings: Settings) -> House:
    return House(
        abilities=_abilities(settings),
        slots=settings.slots,
        ageing_s=settings.ageing_s,
        limits=Limits(settings.lease_s, settings.max_attempts, settings.retries),
    )


def _abilities(settings: Settings) -> Abilities:
    return Abilities(settings.training_enabled, settings.algorithms, _amounts(settings))


def _amounts(settings: Settings) -> Amounts:
    return Amounts(
        most=settings.history_limit,
        trajectories=settings.minimum_trajectories,
        pairs=settings.minimum_pairs,
        labels=settings.minimum_labels,
    )


def _recipes(settings: Settings) -> Recipes:
    """The recipes of file and environment. Raises `ConfigError` if one of them could never be run."""
    document = {**_recipes_in_file(settings), **settings.recipes}
    abilities = _abilities(settings)
    of_pairs = frozenset(name for name in settings.algorithms if dataset_format(name) == PAIRS)
    return Recipes(
        rewarded=read_recipes(document, settings.threshold, abilities),
        preferences=read_recipes(
            settings.preference_recipes, settings.preference_threshold, replace(abilities, algorithms=of_pairs)
        ),
    )


def _recipes_in_file(settings: Settings) -> Mapping[str, Mapping[str, Any]]:
    if settings.recipes_file is None:
        return {}
    try:
        return json.loads(settings.recipes_file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read training recipes from {settings.recipes_file}: {error}") from error
