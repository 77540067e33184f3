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
TemplateWatch, while leading: asks again whether chat templates show stable policies tools --> policies KV, RL_ALERTS
Api on `port`: rollouts, policies and audits to read; operators' acts
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pydantic import SecretStr

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import each, subscribe
from ratchet.bus.kv import Bucket
from ratchet.canary_deployer import template_watch, unloading
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.gating import PROBE
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.gates import build_gates
from ratchet.canary_deployer.gates.base import Gate, GateTools, ReplayTools
from ratchet.canary_deployer.handlers import Handlers
from ratchet.canary_deployer.http_api import Api
from ratchet.canary_deployer.http_clients import (
    HELDOUT_AGENT,
    HttpCoordinator,
    HttpGateway,
    coordinator_peer,
    gateway_peer,
)
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.leadership import Lead, Leader, Leadership, WhileLeading
from ratchet.canary_deployer.nats_clock import SYNCHRONIZE_S, BrokerClock
from ratchet.canary_deployer.nats_decisions import NatsDecisions
from ratchet.canary_deployer.nats_events import EventSource, NatsEventSource
from ratchet.canary_deployer.observer import Observer
from ratchet.canary_deployer.operator_acts import OperatorActs
from ratchet.canary_deployer.preparation import History, Preparation
from ratchet.canary_deployer.reconciler import Publish, RolloutReconciler
from ratchet.canary_deployer.replica_watch import Answering, ReplicaWatch
from ratchet.canary_deployer.replicas import Engines, ReplicaChecks, present_replicas
from ratchet.canary_deployer.rollout_store import LONGEST_TICK_S, RolloutStore
from ratchet.canary_deployer.s3_manifests import S3Manifests
from ratchet.canary_deployer.settings import Settings
from ratchet.canary_deployer.subprocess_judge import SubprocessJudge
from ratchet.canary_deployer.task_evaluations import HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.canary_deployer.template_watch import TemplateWatch
from ratchet.canary_deployer.unloading import Unloader
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.state import JOBS, POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, Job, PolicyVersion, Route
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.keys import known_keys
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.objects import Objects

NAME = "canary_deployer"


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and wire everything; disconnect at the end."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    try:
        await bus.ensure_streams()
        clock = BrokerClock(bus)
        await clock.synchronize()
        gateway_key, service_key = _gateway_key(settings), _secret(settings.shared.service_key)
        async with (
            HttpEngines(settings.engines, settings.load_timeout_s) as engines,
            AsyncApiClient(coordinator_peer(settings.coordinator_url or "", service_key)) as coordinator,
            AsyncApiClient(gateway_peer(settings.gateway_url, gateway_key)) as gateway,
            AsyncApiClient(gateway_peer(settings.gateway_url, gateway_key, HELDOUT_AGENT)) as heldout,
        ):
            history = HttpCoordinator(coordinator if settings.coordinator_url else None)
            replay = _replay_tools(settings, history, HttpGateway(gateway)) if settings.replay_command else None
            tools = _gate_tools(settings, engines, heldout, replay)
            yield assembled(settings, bus, clock, history, engines, build_gates(settings.further_gates, tools))
    finally:
        await bus.close()


def assembled(
    settings: Settings,
    bus: Bus,
    clock: BrokerClock,
    history: HttpCoordinator,
    engines: Engines,
    gates: Mapping[str, Gate],
) -> App:
    """The deployer on connections that are open."""
    leadership = Leadership(Bucket(bus, ROLLOUTS, Leader), settings.url, settings.takeover_s)
    policies = KvPolicies(Bucket(bus, POLICIES, Route), Bucket(bus, POLICIES, PolicyVersion), leadership)
    rollouts, announcer = Bucket(bus, ROLLOUTS, Rollout), Announcer(settings.gateway_url, settings.platform_of)
    new_controller = ControllerFactory(
        policies=policies,
        rollouts=rollouts,
        chunks=Bucket(bus, ROLLOUT_CHUNKS, Chunk),
        publish=bus.publish_all,
        lead=leadership,
        announcer=announcer,
        source=NatsEventSource(bus),
        history=history,
        gates=gates,
        answering=partial(_answering, engines),
        rules=settings.rules(),
        strategy=settings.strategy,
        lease_s=settings.lease_s,
        tick_s=settings.tick_s,
        now=clock,
    )
    controllers = Controllers(new_controller, policies, rollouts, leadership)
    jobs, objects = Bucket(bus, JOBS, Job), Objects(settings.shared)
    unloader = Unloader(engines, policies, settings.unload_after_s, time.monotonic)
    templates = TemplateWatch(
        engines=engines, policies=policies, publish=bus.publish_all, lead=leadership, announcer=announcer, now=clock
    )
    handlers = Handlers(
        policies=policies,
        jobs=jobs,
        objects=objects,
        engine_kind_of=settings.engine_kind_of,
        on_registered=controllers.on_registered,
        announcer=announcer,
        now=clock,
    )

    async def connected() -> Bus:
        return bus

    keys = known_keys(settings.shared, NAME, connected)
    api = Api(controllers, policies, NatsDecisions(bus), new_controller.rules)
    return App(
        name=NAME,
        components=[
            Periodic(SYNCHRONIZE_S, clock.synchronize, "broker clock"),
            leadership,
            WhileLeading(leadership, lambda: controllers),
            WhileLeading(leadership, lambda: Periodic(unloading.SWEEP_S, unloader.sweep, "unload policies")),
            WhileLeading(leadership, lambda: Periodic(template_watch.SWEEP_S, templates.sweep, "chat templates")),
            WhileLeading(leadership, lambda: subscribe(bus, NAME, {TrainingStatus: each(handlers.on_training_status)})),
            keys,
            http_server(settings, Authentication(api.app(), keys.caller_of)),
        ],
        checks={"bus": bus.check, "leader": leadership.check, "rollouts": controllers.check, "keys": keys.ready},
        notes={"unreadable_keys": keys.check},
    )


def http_server(settings: Settings, app: Authentication) -> HttpServer:
    """The server of the control API."""
    shared = settings.shared
    return HttpServer(app, shared.http_host, settings.port, sites=Sites(shared.allowed_hosts))


@dataclass(frozen=True, kw_only=True)
class ControllerFactory:
    """Builds the controller of a role on what all roles share."""

    policies: KvPolicies
    rollouts: Bucket[Rollout]
    chunks: Bucket[Chunk]
    publish: Publish
    lead: Lead
    announcer: Announcer
    source: EventSource
    history: History
    gates: Mapping[str, Gate]
    answering: Answering
    rules: Rules
    strategy: str
    lease_s: float
    tick_s: float
    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    longest_tick_s: float = LONGEST_TICK_S

    def __call__(self, role: str) -> RolloutController:
        """A controller that has read nothing yet."""
        rules = self.rules.for_role(role)
        store = RolloutStore(
            role=role,
            rollouts=self.rollouts,
            chunks=self.chunks,
            lead=self.lead,
            rules=rules,
            idle_save_s=self.lease_s,
            monotonic=self.monotonic,
            longest_tick_s=self.longest_tick_s,
        )
        reconciler = RolloutReconciler(
            store=store,
            policies=self.policies,
            publish=self.publish,
            lead=self.lead,
            rules=rules,
            announcer=self.announcer,
            now=self.now,
        )
        preparation = Preparation(
            role=role,
            policies=self.policies,
            gates=self.gates,
            source=self.source,
            history=self.history,
            strategy=self.strategy,
            rules=rules,
            now=self.now,
        )
        return self._controller(store, reconciler, preparation)

    def _controller(
        self, store: RolloutStore, reconciler: RolloutReconciler, preparation: Preparation
    ) -> RolloutController:
        woken = asyncio.Event()
        observer = Observer(
            store=store,
            reconciler=reconciler,
            policies=self.policies,
            source=self.source,
            rules=store.rules,
            lease_s=self.lease_s,
            tick_s=self.tick_s,
            monotonic=self.monotonic,
        )
        watch = ReplicaWatch(
            gate=self.gates[PROBE], answering=self.answering, policies=self.policies, monotonic=self.monotonic
        )
        operators = OperatorActs(
            store=store,
            reconciler=reconciler,
            preparation=preparation,
            policies=self.policies,
            rules=store.rules,
            woken=woken,
            now=self.now,
        )
        return RolloutController(
            store=store,
            reconciler=reconciler,
            preparation=preparation,
            observer=observer,
            watch=watch,
            operators=operators,
            policies=self.policies,
            rules=store.rules,
            woken=woken,
            monotonic=self.monotonic,
        )


async def _answering(engines: Engines, role: str) -> set[str]:
    """The names of a role's replicas that answer. Raises `Unavailable` when none does."""
    present, _ = await present_replicas(engines, role)
    return {replica.name for replica in present}


def _gateway_key(settings: Settings) -> str | None:
    """The deployer's own key of the gateway, else that of all services."""
    return _secret(settings.gateway_api_key) or _secret(settings.shared.service_key)


def _secret(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key else None


def _gate_tools(settings: Settings, engines: Engines, gateway: AsyncApiClient, replay: ReplayTools | None) -> GateTools:
    objects = Objects(settings.shared)
    return GateTools(
        checks=ReplicaChecks(engines, time.monotonic),
        manifests=S3Manifests(objects),
        heldout_margin=settings.heldout_margin,
        heldout_confidence=settings.heldout_confidence,
        warmup_prompts=settings.warmup_prompts,
        approval=settings.approval,
        replay=replay,
        task_files={role: _task_file(settings, file, gateway, objects) for role, file in settings.task_files.items()},
    )


def _task_file(settings: Settings, file: str, gateway: AsyncApiClient, objects: Objects) -> TaskFileHeldout:
    plan = TaskPlan(
        file=file,
        tasks=settings.heldout_tasks,
        seed=settings.heldout_seed,
        temperature=settings.task_temperature,
        max_tokens=settings.task_max_tokens,
        deadline_s=settings.heldout_deadline_s,
    )
    return TaskFileHeldout(plan, gateway, objects, HeldoutCache(settings.shared.data_dir / "heldout"))


def _replay_tools(settings: Settings, log: HttpCoordinator, player: HttpGateway) -> ReplayTools:
    return ReplayTools(
        log=log,
        player=player,
        judge=SubprocessJudge(settings.replay_command or "", settings.replay_deadline_s),
        prompts=settings.replay_prompts,
        fewest=settings.replay_min_prompts,
        margin=settings.replay_margin,
        confidence=settings.replay_confidence,
        deadline_s=settings.replay_deadline_s,
    )
