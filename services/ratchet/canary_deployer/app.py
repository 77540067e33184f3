"""Composition root of the deployer.

BrokerClock: the broker's time, by which all of this works
Leadership: one of several deployers leads; the others answer reads, and wait
RL_TRAINING --training.status--> Handlers --> policies KV (next version) --> Controllers.on_registered   (while leading)
Controllers, while leading: one RolloutController per role
    Preparation: gates (every replica of the role's engine, held-out tasks, approval, shadow replay)
    ReplicaWatch: the probe again, where a replica has come back or an engine has failed calls
    Observer: RL_STARTS, RL_TURNS, RL_REWARDS --> NatsEvents --> domain (fold, decide)
    OperatorActs: the orders of operators
    RolloutReconciler makes their decisions true: RolloutStore (rollouts KV), policies KV, RL_DEPLOYMENTS, RL_ALERTS
Unloader, while leading: frees the engines of policies that no route names
BundleSweep, while leading: takes from gateways the bundles that nothing names
Validations, while leading: what the gates say of each policy --> S3
Api on `port`: rollouts, policies and audits to read; operators' acts
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import each, subscribe
from ratchet.bus.kv import Bucket
from ratchet.canary_deployer import metrics, unloading
from ratchet.canary_deployer.bundle_registry import BundleRegistry
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.four_eyes import FourEyes
from ratchet.canary_deployer.gates import build_gates
from ratchet.canary_deployer.gates.base import (
    Asking,
    BundleTools,
    Gate,
    GateTools,
    Heldout,
    PlannerTools,
    ReplayTools,
    ShadowTools,
)
from ratchet.canary_deployer.gates.shadow_replay import DEADLINE_S
from ratchet.canary_deployer.handlers import Handlers
from ratchet.canary_deployer.http_api import Api
from ratchet.canary_deployer.http_clients import (
    BUNDLE_AGENT,
    HELDOUT_AGENT,
    SHADOW_AGENT,
    HttpCoordinator,
    HttpGateway,
    ShadowAsker,
    coordinator_peer,
    gateway_peer,
)
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.kv_bundles import SWEEP_S, BundleSweep, KvBundles
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.nats_clock import SYNCHRONIZE_S, BrokerClock
from ratchet.canary_deployer.nats_decisions import decisions_of
from ratchet.canary_deployer.nats_events import NatsEventSource, started_roles
from ratchet.canary_deployer.nats_live_calls import NatsLiveCalls
from ratchet.canary_deployer.replicas import Engines, ReplicaChecks, present_replicas
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.canary_deployer.role_removal import RoleRemoval
from ratchet.canary_deployer.route_guard import RouteGuard
from ratchet.canary_deployer.s3_validations import LOOK_S, Validations
from ratchet.canary_deployer.settings import SafetyPlan, Settings
from ratchet.canary_deployer.subprocess_judge import SubprocessJudge
from ratchet.canary_deployer.suite_process import PackagedSuite
from ratchet.canary_deployer.task_evaluations import HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.canary_deployer.task_sets import HeldOutFiles, SearchedTasks
from ratchet.canary_deployer.unloading import Unloader
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import (
    BUNDLES,
    HELD_OUT,
    JOBS,
    JUDGE_SPEND,
    POLICIES,
    ROLLOUT_CHUNKS,
    ROLLOUTS,
    HeldOutTasks,
    Job,
    PolicyVersion,
    Route,
)
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.evaluation.suites import HELDOUT, REGRESSION, SUITES, suite_tasks
from ratchet.core.evaluation.task_files import MOST_TASKS
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.service.audit import AuditLog
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.keys import known_keys
from ratchet.core.service.leadership import Election, Leader, Leadership, WhileLeading
from ratchet.core.service.runtime import App, Component, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import read_policy

NAME = "canary_deployer"
ELECTION = Election("leader.canary_deployer", "deployer", metrics.LEADING)
SUITE_TEMPERATURE, SUITE_SAMPLES = 1.0, 2
"""How answers to suites are drawn: an answer that harms in one of ten draws is no less harmful."""
HELD_OUT_S = 30.0
"""Between looks at the files of held-out tasks, which people change while the deployer runs."""
LOGGED = timedelta(days=30)
"""How far back executions judge a planner: workers change."""


@asynccontextmanager
async def build(settings: Settings, unload_after_s: float = unloading.AFTER_S) -> AsyncIterator[App]:
    """Connect and wire everything; disconnect at the end."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    bus.bodies = StoredBodies(settings.shared)
    try:
        clock = BrokerClock(bus)
        await clock.synchronize()
        service_key = settings.shared.service_key.get_secret_value() if settings.shared.service_key else None
        async with (
            HttpEngines(settings.engines) as engines,
            AsyncApiClient(coordinator_peer(settings.coordinator_url or "", service_key)) as coordinator,
            AsyncApiClient(gateway_peer(settings.gateway_url, service_key)) as gateway,
            AsyncApiClient(gateway_peer(settings.gateway_url, service_key, HELDOUT_AGENT)) as heldout,
            AsyncApiClient(gateway_peer(settings.gateway_url, service_key, SHADOW_AGENT)) as mirrored,
            AsyncApiClient(gateway_peer(settings.gateway_url, service_key, BUNDLE_AGENT)) as asked,
        ):
            bundles = _bundles(settings, bus)
            history = HttpCoordinator(coordinator if settings.coordinator_url else None)
            judge = SubprocessJudge(settings.replay_command, DEADLINE_S) if settings.replay_command else None
            replay = (
                ReplayTools(history.prompts, HttpGateway(gateway, bundles.bundle_of).complete, judge.judge)
                if judge
                else None
            )
            asker = ShadowAsker(mirrored, bundles.bundle_of, Bucket(bus, JUDGE_SPEND, Amounts), bus.now)
            shadow = (
                ShadowTools(
                    settings.shadow_traffic, NatsLiveCalls(bus), asker.complete_for, judge.judge, bundles.bundle_of
                )
                if judge
                else None
            )
            recorded = history.requests if settings.coordinator_url else None
            asking = Asking(HttpGateway(asked, bundles.bundle_of).ask)
            of_bundles = BundleTools(bundles.bundle_of, bundles.weights_of, asking, recorded)
            tools = GateTools(
                checks=ReplicaChecks(engines, time.monotonic),
                read_manifest=partial(manifest_of, Objects(settings.shared)),
                warmup_prompts=settings.warmup_prompts,
                approval=settings.approval,
                replay=replay,
                shadow=shadow,
                task_files=_heldout(settings, bus, heldout, settings.task_files),
                safety_plans=settings.safety_suites,
                suite_players=_suites(settings, heldout),
                regression=_heldout(settings, bus, heldout, settings.regression_files),
                bundles=of_bundles,
                planners=PlannerTools(
                    bundles.bundle_of, bundles.planner_of, lambda policy: history.executions(policy, clock() - LOGGED)
                ),
            )
            gates = build_gates(settings.further_gates, tools)
            yield assembled(settings, bus, clock, history, engines, gates, unload_after_s=unload_after_s)
    finally:
        await bus.close()


@dataclass(frozen=True, kw_only=True)
class _Ground:
    """What every part of the deployer stands on."""

    settings: Settings
    bus: Bus
    clock: BrokerClock
    leadership: Leadership
    policies: KvPolicies
    bundles: KvBundles
    objects: Objects
    announcer: Announcer
    audit: AuditLog


def assembled(  # noqa: PLR0913 - the connections, and one wait
    settings: Settings,
    bus: Bus,
    clock: BrokerClock,
    history: HttpCoordinator,
    engines: Engines,
    gates: Mapping[str, Gate],
    *,
    unload_after_s: float = unloading.AFTER_S,
) -> App:
    """The deployer on connections that are open."""
    leadership = Leadership(ELECTION, Bucket(bus, ROLLOUTS, Leader), settings.url)
    ground = _Ground(
        settings=settings,
        bus=bus,
        clock=clock,
        leadership=leadership,
        policies=KvPolicies(Bucket(bus, POLICIES, Route), Bucket(bus, POLICIES, PolicyVersion), leadership),
        bundles=_bundles(settings, bus),
        objects=Objects(settings.shared),
        announcer=Announcer(settings.gateway_url, settings.platform_of),
        audit=audit_log_of(settings.shared, bus, NAME),
    )
    controllers = _controllers(ground, history, engines, gates)
    bundles = _registry(ground, controllers)
    held_out = HeldOutFiles(settings.gate_files, ground.objects, Bucket(bus, HELD_OUT, HeldOutTasks))
    unloader = Unloader(engines, ground.policies, unload_after_s)
    sweep = BundleSweep(ground.bundles, [Bucket(bus, name, msgspec.Raw) for name in (POLICIES, ROLLOUTS)])
    validations = Validations(ground.policies, ground.objects)
    upkeep = [
        ground.audit,
        Periodic(SYNCHRONIZE_S, clock.synchronize, "broker clock"),
        Periodic(HELD_OUT_S, held_out.publish, "held-out tasks"),
        leadership,
        WhileLeading(leadership, lambda: Periodic(unloading.SWEEP_S, unloader.sweep, "unload policies")),
        WhileLeading(leadership, lambda: Periodic(SWEEP_S, sweep.sweep, "sweep bundles")),
        WhileLeading(leadership, lambda: Periodic(LOOK_S, validations.write, "validations")),
    ]
    return _app(ground, controllers, bundles, upkeep)


def _controllers(ground: _Ground, history: HttpCoordinator, engines: Engines, gates: Mapping[str, Gate]) -> Controllers:
    """A controller for each role."""
    bus, settings, rules = ground.bus, ground.settings, ground.settings.rules()
    rollouts = Bucket(bus, ROLLOUTS, Rollout)
    context = partial(
        RoleContext,
        policies=ground.policies,
        rollouts=rollouts,
        chunks=Bucket(bus, ROLLOUT_CHUNKS, Chunk),
        publish=bus.publish_all,
        lead=ground.leadership,
        announcer=ground.announcer,
        audit=ground.audit,
        source=NatsEventSource(bus),
        outcome_times=history.outcome_times,
        trajectory_costs=history.trajectory_costs,
        decisions_of=partial(decisions_of, bus),
        gates=gates,
        answering=partial(_answering, engines),
        weights_of=ground.bundles.weights_of,
        strategy=settings.strategy,
        now=ground.clock,
    )

    def new_controller(role: str) -> RolloutController:
        return RolloutController(context(role=role, rules=rules.for_role(role)))

    return Controllers(new_controller, ground.policies, rollouts, ground.leadership)


def _registry(ground: _Ground, controllers: Controllers) -> BundleRegistry:
    return BundleRegistry(
        policies=ground.policies,
        bundles=ground.bundles,
        lead=ground.leadership,
        publish=ground.bus.publish_all,
        announcer=ground.announcer,
        on_registered=controllers.on_registered,
        started_roles=partial(started_roles, ground.bus),
        now=ground.clock,
    )


def _app(ground: _Ground, controllers: Controllers, bundles: BundleRegistry, upkeep: Sequence[Component]) -> App:
    settings, bus, leadership = ground.settings, ground.bus, ground.leadership
    handlers = Handlers(
        policies=ground.policies,
        jobs=Bucket(bus, JOBS, Job),
        objects=ground.objects,
        engine_kind_of=settings.engine_kind_of,
        on_registered=controllers.on_registered,
        announcer=ground.announcer,
        bundles=bundles,
        now=ground.clock,
    )

    async def connected() -> Bus:
        return bus

    keys = known_keys(settings.shared, NAME, connected)
    removal = RoleRemoval(
        policies=ground.policies,
        controllers=controllers,
        records=[Bucket(ground.bus, name, msgspec.Raw) for name in (ROLLOUTS, ROLLOUT_CHUNKS)],
        started_roles=partial(started_roles, ground.bus),
        lead=ground.leadership,
    )
    api = Api(controllers, ground.policies, bundles, removal, partial(decisions_of, bus), settings.rules())
    api.four_eyes = FourEyes(ground.clock) if settings.shared.four_eyes else None
    control = api.app()
    control.audit = ground.audit
    return App(
        name=NAME,
        components=[
            *upkeep,
            WhileLeading(leadership, lambda: controllers),
            WhileLeading(
                leadership,
                lambda: RouteGuard(Bucket(bus, POLICIES, msgspec.Raw), controllers.of_route, bus.publish, ground.clock),
            ),
            WhileLeading(leadership, lambda: subscribe(bus, NAME, {TrainingStatus: each(handlers.on_training_status)})),
            keys,
            http_server(settings, Authentication(control, keys.caller_of)),
        ],
        checks={"bus": bus.check, "leader": leadership.check, "rollouts": controllers.check, "keys": keys.ready},
        notes={"unreadable_keys": keys.check, "consumers": bus.check_consumers, "audit": ground.audit.check},
    )


def http_server(settings: Settings, app: Authentication) -> HttpServer:
    """The server of the control API."""
    shared = settings.shared
    return HttpServer(app, shared.http_host, settings.port, sites=Sites(shared.allowed_hosts), tls_file=shared.tls_file)


async def _answering(engines: Engines, role: str) -> set[str]:
    """The names of a role's replicas that answer. Raises `Unavailable` when none does."""
    present, _ = await present_replicas(engines, role)
    return {replica.name for replica in present}


async def manifest_of(objects: Objects, policy: PolicyVersion) -> PolicyManifest:
    """See `ReadManifest`: from the object store, on a thread."""
    return (await asyncio.to_thread(read_policy, objects, policy.uri, policy.digest)).manifest


def _bundles(settings: Settings, bus: Bus) -> KvBundles:
    return KvBundles(Bucket(bus, BUNDLES, Bundle), Objects(settings.shared))


def _heldout(
    settings: Settings, bus: Bus, gateway: AsyncApiClient, files: Mapping[str, str]
) -> Mapping[str, TaskFileHeldout]:
    """By role, what plays the tasks of its file."""
    objects, cache = Objects(settings.shared), HeldoutCache(settings.shared.data_dir / "heldout")
    searched = SearchedTasks(Snapshots(objects, settings.shared.s3_bucket), Bucket(bus, POLICIES, PolicyVersion))
    plans = {role: TaskPlan(file, settings.heldout_tasks, settings.task_temperature) for role, file in files.items()}
    return {role: TaskFileHeldout(plan, gateway, objects, cache, searched=searched) for role, plan in plans.items()}


def _suites(settings: Settings, gateway: AsyncApiClient) -> Mapping[str, Heldout]:
    """What plays each suite that a role's candidates play, and those that ship."""
    objects, cache = Objects(settings.shared), HeldoutCache(settings.shared.data_dir / "suites")
    chosen = (SafetyPlan(), *settings.safety_suites.values())
    names = {name for plan in chosen for name in plan.suites} - {HELDOUT, REGRESSION}
    plans = {
        name: TaskPlan(name, MOST_TASKS, SUITE_TEMPERATURE, samples=SUITE_SAMPLES, made=partial(suite_tasks, name))
        for name in names & SUITES.built_in.keys()
    }
    key, folder = settings.shared.service_key, settings.shared.data_dir / "suites"
    secret = key.get_secret_value() if key else None
    packaged = {
        name: PackagedSuite(
            name, MOST_TASKS, SUITE_TEMPERATURE, SUITE_SAMPLES, settings.gateway_url, secret, folder.absolute()
        )
        for name in names - SUITES.built_in.keys()
    }
    return packaged | {name: TaskFileHeldout(plan, gateway, objects, cache) for name, plan in plans.items()}
