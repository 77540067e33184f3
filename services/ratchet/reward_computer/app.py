"""Composition root of the reward computer.

RL_TRAJECTORIES ── Consumer ─┬─ handlers.RewardComputer ── Facts (ClickHouse, reads)
RL_FEEDBACK ────── Consumer ─┘      │  └─ Reward (published by the loop)
RL_TRAJECTORIES ── Projection turn-history ───┤  both in the bucket `baselines`
RL_REWARDS ─────── Projection score-windows ──┘
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, Subscription
from ratchet.bus.projection import Fold, Projection
from ratchet.contract import Feedback, Reward, Trajectory
from ratchet.contract.state import BASELINES
from ratchet.reward_computer.clickhouse_facts import Facts
from ratchet.reward_computer.domain.history import TurnHistory, add_trajectory, task_type
from ratchet.reward_computer.domain.normalization import ScoreWindows, add_reward, function_of
from ratchet.reward_computer.handlers import RewardComputer
from ratchet.reward_computer.nats_rewards import last_reward
from ratchet.reward_computer.settings import Settings, spec_of
from ratchet.rules.alerts import gap_alert
from ratchet.service.contracts import load_contracts
from ratchet.service.runtime import App
from ratchet.stores.warehouse import Warehouse

TURN_HISTORY = Fold(
    name="turn-history",
    stream="RL_TRAJECTORIES",
    topics=[Trajectory.TOPIC],
    bucket=BASELINES,
    kind=TurnHistory,
    key_of=task_type,
    step=add_trajectory,
    on_gap=gap_alert,
)
SCORE_WINDOWS = Fold(
    name="score-windows",
    stream="RL_REWARDS",
    topics=[Reward.TOPIC],
    bucket=BASELINES,
    kind=ScoreWindows,
    key_of=function_of,
    step=add_reward,
    on_gap=gap_alert,
)


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble two projections and two consumers."""
    spec = spec_of(settings)
    bus = await Bus.connect(settings.shared.bus, name="reward_computer", contracts=load_contracts())
    warehouse = await Warehouse.connect(settings.shared)
    histories, windows = Projection(bus, TURN_HISTORY), Projection(bus, SCORE_WINDOWS)
    try:
        computer = RewardComputer(
            spec=spec,
            facts=Facts(warehouse),
            histories=histories,
            windows=windows,
            windows_from=await last_reward(bus),
            now=bus.now,
            patience=timedelta(seconds=settings.patience_s),
        )
        consumers = [Consumer(bus, subscription) for subscription in _subscriptions(computer, settings)]
        yield App(
            "reward_computer",
            [histories, windows, *consumers],
            {
                "broker": bus.check,
                "warehouse": warehouse.check,
                "turn-history": histories.check,
                "score-windows": windows.check,
            },
        )
    finally:
        await bus.close()
        await warehouse.close()


def _subscriptions(computer: RewardComputer, settings: Settings) -> list[Subscription]:
    return [
        _subscription(computer, settings, Trajectory.TOPIC, "RL_TRAJECTORIES", "reward-trajectories"),
        _subscription(computer, settings, Feedback.TOPIC, "RL_FEEDBACK", "reward-feedback"),
    ]


def _subscription(computer: RewardComputer, settings: Settings, topic: str, stream: str, durable: str) -> Subscription:
    return Subscription(
        stream=stream,
        durable=durable,
        handlers={topic: computer.table()[topic]},
        batch=settings.batch,
        linger_s=settings.linger_s,
        ack_wait_s=settings.ack_wait_s,
    )
