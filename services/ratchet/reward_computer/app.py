"""Composition root of the reward computer.

RL_TRAJECTORIES ── Consumer ─┬─ handlers.RewardComputer ── Facts (ClickHouse, reads)
RL_FEEDBACK ────── Consumer ─┘      │  └─ Reward (published by the loop)
RL_TRAJECTORIES ── Projection turn-history ───┤  all in the bucket `baselines`
RL_REWARDS ─┬─┬─── Projection score-windows ──┘
            │ └─── Projection reward-drift ────── drift_alerts.DriftAlerts ── Alert
            ├╌╌╌╌╌ Consumer ──── judging.Judging ── ChatJudge (the gateway, or a server of its own)
            │                       └─ Feedback (published by the loop; it comes back as the next revision)
            ├╌╌╌╌╌ Consumer ──── scoring.Scoring ── RewardScores (an engine) ── Feedback
            └╌╌╌╌╌ Consumer ──── sharing.Sharing ── Facts ── Feedback
╌╌╌ only while the function in force asks judges or reward models, or shares rewards of parents
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import MappingProxyType

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import subscribe
from ratchet.bus.kv import Bucket
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.projection import Projection, Together, project
from ratchet.bus.registry import AS_DECLARED, Bounds
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.contract.state import JUDGE_SPEND, JUDGEMENTS, REWARD_FUNCTIONS
from ratchet.core.evaluation.http_player import Exchanging
from ratchet.core.evaluation.reward_scores import RewardScores
from ratchet.core.judging.chat_judge import Answer, ChatJudge, KvAnswers
from ratchet.core.judging.spending import DailyLedger
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.rules.alerts import gap_alert
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.engine_list import replica_urls
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer
from ratchet.core.service.paid_client import PaidClient
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.stored_watch import StoredWatch
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.clickhouse_facts import Facts
from ratchet.reward_computer.domain.drift import Drift, Watch, watch_reward
from ratchet.reward_computer.domain.function import FunctionRecord
from ratchet.reward_computer.domain.history import TurnHistory, add_trajectory, task_type
from ratchet.reward_computer.domain.normalization import ScoreWindows, add_reward, function_of
from ratchet.reward_computer.drift_alerts import EVERY_S, DriftAlerts
from ratchet.reward_computer.handlers import RewardComputer
from ratchet.reward_computer.judging import Judging
from ratchet.reward_computer.kv_functions import Functions
from ratchet.reward_computer.model_notes import ModelNotes
from ratchet.reward_computer.scoring import ANSWER_S, Scoring
from ratchet.reward_computer.settings import Settings, spec_of
from ratchet.reward_computer.sharing import Sharing

NAME = "reward_computer"
PATIENCE = timedelta(hours=1)
"""Feedback on a stored trajectory that has no reward by then becomes a dead letter, and so does a message that the
collector has settled and that has no row by then. A judge that has not answered by then is not asked any more."""


@asynccontextmanager
async def build(settings: Settings, bounds: Bounds = AS_DECLARED) -> AsyncIterator[App]:
    """Connect, and assemble projections, consumers and the watch of levels."""
    spec_of(settings)
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts(), rules=rules_digest())
        bus.bodies = StoredBodies(settings.shared)
        stack.push_async_callback(bus.close)
        warehouse = await Warehouse.connect(settings.shared)
        stack.push_async_callback(warehouse.close)
        judges = await stack.enter_async_context(judges_of(settings, bus))
        engine = await stack.enter_async_context(AsyncApiClient(engine_of(settings)))
        yield assembled(settings, bus, warehouse, engine, judges, bounds)


def assembled(
    settings: Settings,
    bus: Bus,
    warehouse: Warehouse,
    engine: Exchanging,
    judges: Mapping[str, ChatJudge] = MappingProxyType({}),
    bounds: Bounds = AS_DECLARED,
) -> App:
    """The reward computer on connections that are open; `engine` holds reward models."""
    histories, windows, drift = projections(bus)
    watcher = Periodic(EVERY_S, DriftAlerts(bus, drift).tick, "drift alerts")
    functions = functions_of(settings, bus)
    facts = Facts(warehouse)
    settled = StoredWatch(bus, [bus.contracts.topics[kind.TOPIC].stream for kind in (Trajectory, Feedback)])
    computer = RewardComputer(
        functions=functions,
        facts=facts,
        settled=settled,
        histories=histories,
        windows=windows,
        newest_reward=partial(last_reward, bus),
        now=bus.now,
        patience=PATIENCE,
    )
    judged, scored = ModelNotes(bus.now), ModelNotes(bus.now)
    judging = Judging(functions, judges, facts, Tries(warehouse), bus.now, PATIENCE, judged)
    scoring = Scoring(functions, partial(RewardScores, engine), facts, judging.texts, bus.now, PATIENCE, scored)
    sharing = Sharing(functions, facts, bus.now, PATIENCE)
    bounds = replace(bounds, linger_s=settings.linger_s)
    consumers = [
        subscribe(bus, "reward-trajectories", {Trajectory: computer.first_rewards}, bounds=bounds),
        subscribe(bus, "reward-feedback", {Feedback: computer.revisions}, bounds=bounds),
        # Each with its own place: a judge that is away for an hour holds up no reward model. They are there only where
        # the function in force needs them; one that is needed for the first time goes through what RL_REWARDS holds, of
        # which only what that function has computed counts.
        subscribe(bus, "reward-judge", {Reward: judging.judgements}, bounds=bounds, needed=judging.is_needed),
        subscribe(bus, "reward-model", {Reward: scoring.scores}, bounds=bounds, needed=scoring.is_needed),
        subscribe(bus, "reward-parent", {Reward: sharing.shared}, bounds=bounds, needed=sharing.is_needed),
    ]
    checks = {"broker": bus.check, "warehouse": warehouse.check}
    notes = {
        "turn-history": histories.check,
        "score-windows": windows.check,
        "reward-drift": drift.check,
        "consumers": bus.check_consumers,
        "reward-function": functions.check,
        "judge": judged.check,
        "reward-model": scored.check,
    }
    of_rewards = Together(bus, windows, drift)  # each with its own place, and what it folds it reads once
    return App(NAME, [histories, of_rewards, watcher, settled, *consumers, judging], checks, notes=notes)


def functions_of(settings: Settings, bus: Bus) -> Functions:
    """Which reward function is in force."""
    return Functions(Bucket(bus, REWARD_FUNCTIONS, FunctionRecord), spec_of(settings))


def ledgers_of(settings: Settings, bus: Bus) -> Mapping[str, DailyLedger]:
    """The budgets of the settings' judges, by the roles whose they are."""
    spending = Bucket(bus, JUDGE_SPEND, Amounts)
    return {name: judge.ledger(spending, name, bus.now) for name, judge in settings.judges.items()}


def engine_of(settings: Settings) -> Peer:
    """Where reward models are asked."""
    key = settings.engine_api_key.get_secret_value() if settings.engine_api_key else None
    return Peer("the engine", replica_urls(settings.engine_url)[0], bearer(key), ANSWER_S, quotable=False)


@asynccontextmanager
async def judges_of(settings: Settings, bus: Bus) -> AsyncGenerator[Mapping[str, ChatJudge]]:
    """The judges of the settings by digest; they share answers and budgets with all processes.

    A judge that fails is asked again by the consumer, which meanwhile has other work.
    """
    ledgers, answers = ledgers_of(settings, bus), KvAnswers(Bucket(bus, JUDGEMENTS, Answer))
    key = settings.shared.service_key.get_secret_value() if settings.shared.service_key else None
    async with AsyncExitStack() as stack:
        judges: dict[str, ChatJudge] = {}
        for name, judge in settings.judges.items():
            peer = replace(judge.peer(settings.gateway_url, key), quotable=False)
            http = await stack.enter_async_context(AsyncApiClient(peer))
            client = PaidClient(http, ledgers[name], judge.token_prices)
            judges[judge.profile.digest] = ChatJudge(client, judge.profile, answers, pauses_s=())
        yield judges


def projections(bus: Bus) -> tuple[Projection[TurnHistory], Projection[ScoreWindows], Projection[Drift]]:
    """The turns that tasks take, the recent scores of each component, and the levels that rewards keep to."""
    return (
        project(bus, "turn-history", kind=TurnHistory, key_of=task_type, step=add_trajectory, on_gap=gap_alert),
        project(bus, "score-windows", kind=ScoreWindows, key_of=function_of, step=add_reward, on_gap=gap_alert),
        project(bus, "reward-drift", kind=dict[str, Watch], key_of=function_of, step=watch_reward, on_gap=gap_alert),
    )


async def last_reward(bus: Bus) -> int:
    """Sequence of the newest reward that is still in the stream, 0 when there is none. Raises `BusUnavailable`."""
    stream = bus.contracts.topics[Reward.TOPIC].stream
    newest = OrderedReader(bus, stream, bus.contracts.subjects(Reward.TOPIC), start=None, headers_only=True)
    async with aclosing(newest.to_end()) as batches:
        return max([message.metadata.sequence.stream async for batch in batches for message in batch], default=0)
