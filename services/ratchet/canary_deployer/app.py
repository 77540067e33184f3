"""The deployer, put together.

BrokerClock: what all that follows calls now
Leadership: one of several deployers leads; the others serve what can be read, and wait
RL_TRAINING --training.status--> Handlers --> policies KV (next version) --> Deployments.registered   (while leading)
Deployments, while leading: one RolloutController per role
    gates (engine, held-out command, people) --> RolloutKeeper --> rollouts KV, policies KV, RL_DEPLOYMENTS, RL_ALERTS
    RL_STARTS, RL_TURNS, RL_REWARDS --> NatsEvents --> domain (fold, decide) --> RolloutKeeper
Api on `port`: what there is, and operators' acts
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import each
from ratchet.canary_deployer.controller import Work
from ratchet.canary_deployer.controllers import Deployments
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.gates import build_gates
from ratchet.canary_deployer.gates.base import GateTools, ReplayTools
from ratchet.canary_deployer.handlers import Handlers
from ratchet.canary_deployer.http_api import Api, Ledger
from ratchet.canary_deployer.http_coordinator import HttpCoordinator, coordinator_peer
from ratchet.canary_deployer.http_engine import HttpEngine, engine_peer
from ratchet.canary_deployer.http_gateway import HttpGateway, gateway_peer
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.leadership import Leader, Leadership, WhileLeading
from ratchet.canary_deployer.nats_clock import BrokerClock
from ratchet.canary_deployer.nats_decisions import NatsDecisions
from ratchet.canary_deployer.nats_events import NatsEvents, Places, newest
from ratchet.canary_deployer.nats_traffic import NatsTraffic
from ratchet.canary_deployer.rollout_store import Office
from ratchet.canary_deployer.settings import Settings
from ratchet.canary_deployer.subprocess_heldout import HeldoutPlan, SubprocessHeldout
from ratchet.canary_deployer.subprocess_judge import SubprocessJudge
from ratchet.contract import TrainingStatus
from ratchet.contract.state import JOBS, POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, Job, PolicyVersion, Route
from ratchet.service.contracts import load_contracts
from ratchet.service.http import HttpServer
from ratchet.service.http_client import AsyncApiClient
from ratchet.service.runtime import App
from ratchet.stores.objects import Objects

NAME = "canary_deployer"


@dataclass(frozen=True, slots=True)
class BusSource:
    """Starts, turns and rewards from the broker."""

    bus: Bus

    async def places(self) -> Places:
        """The newest message of each stream."""
        return await newest(self.bus)

    async def open(self, role: str, places: Places) -> NatsEvents:
        """Read on after these places."""
        return await NatsEvents.open(self.bus, role, places)


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and wire everything; disconnect at the end."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    try:
        await bus.ensure_streams()
        clock = BrokerClock(bus)
        await clock.look()
        engine_key, gateway_key = _secret(settings.engine_api_key), _secret(settings.gateway_api_key)
        async with (
            AsyncApiClient(engine_peer(settings.engine_url, engine_key)) as engine,
            AsyncApiClient(coordinator_peer(settings.coordinator_url or "")) as coordinator,
            AsyncApiClient(gateway_peer(settings.gateway_url, gateway_key)) as gateway,
        ):
            clients = Clients(
                HttpEngine(engine, settings.load_timeout_s),
                HttpCoordinator(coordinator if settings.coordinator_url else None),
                HttpGateway(gateway),
            )
            yield assembled(settings, bus, clients, clock)
    finally:
        await bus.close()


@dataclass(frozen=True, slots=True)
class Clients:
    """Servers that are asked over HTTP."""

    engine: HttpEngine
    coordinator: HttpCoordinator
    gateway: HttpGateway


def assembled(settings: Settings, bus: Bus, clients: Clients, clock: BrokerClock) -> App:
    """The deployer on connections that are open."""
    leadership = Leadership(bus.bucket(ROLLOUTS, Leader), settings.url, settings.takeover_s)
    policies = KvPolicies(bus.bucket(POLICIES, Route), bus.bucket(POLICIES, PolicyVersion), leadership)
    announcer = Announcer(settings.gateway_url, settings.serving_platform)
    office = Office(
        policies=policies,
        rollouts=bus.bucket(ROLLOUTS, Rollout),
        chunks=bus.bucket(ROLLOUT_CHUNKS, Chunk),
        publish=bus.publish_all,
        now=clock,
        rules=settings.rules(),
        announcer=announcer,
        lease_s=settings.lease_s,
        lead=leadership,
    )
    tools = _gate_tools(settings, clients)
    work = Work(
        gates=build_gates(settings.further_gates, tools),
        source=BusSource(bus),
        traffic=NatsTraffic(bus),
        history=clients.coordinator,
        strategy=settings.strategy,
        tick_s=settings.tick_s,
    )
    deployments = Deployments(office, work)
    jobs, objects = bus.bucket(JOBS, Job), Objects(settings.shared)
    handlers = Handlers(policies, jobs, objects, deployments.registered, announcer, clock)
    api = Api(deployments, Ledger(policies, NatsDecisions(bus)), office.rules)
    return App(
        name=NAME,
        components=[
            clock,
            leadership,
            WhileLeading(leadership, lambda: deployments),
            WhileLeading(leadership, lambda: bus.subscribe(NAME, {TrainingStatus: each(handlers.on_training_status)})),
            HttpServer(api.app(), settings.shared.http_host, settings.port, hosts=settings.shared.allowed_hosts),
        ],
        checks={"bus": bus.check, "leader": leadership.check, "rollouts": deployments.check},
    )


def _secret(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key else None


def _gate_tools(settings: Settings, clients: Clients) -> GateTools:
    heldout = None
    if settings.heldout_command:
        plan = HeldoutPlan(
            command=settings.heldout_command,
            tasks=settings.heldout_tasks,
            seed=settings.heldout_seed,
            gateway_url=settings.gateway_url,
            gateway_api_key=_secret(settings.gateway_api_key),
            deadline_s=settings.heldout_deadline_s,
            cache=settings.shared.data_dir / "heldout",
        )
        heldout = SubprocessHeldout(plan)
    return GateTools(
        engine=clients.engine,
        heldout=heldout,
        heldout_margin=settings.heldout_margin,
        heldout_confidence=settings.heldout_confidence,
        warmup_prompts=settings.warmup_prompts,
        approval=settings.approval,
        replay=_replay_tools(settings, clients) if settings.replay_command else None,
    )


def _replay_tools(settings: Settings, clients: Clients) -> ReplayTools:
    return ReplayTools(
        log=clients.coordinator,
        player=clients.gateway,
        judge=SubprocessJudge(settings.replay_command or "", settings.replay_deadline_s),
        prompts=settings.replay_prompts,
        fewest=settings.replay_min_prompts,
        margin=settings.replay_margin,
        confidence=settings.replay_confidence,
        deadline_s=settings.replay_deadline_s,
    )
