"""Composition root of the reward computer.

RL_TRAJECTORIES ── Consumer ─┬─ handlers.RewardComputer ── Facts (ClickHouse, reads)
RL_FEEDBACK ────── Consumer ─┘      │  └─ Reward (published by the loop)
RL_TRAJECTORIES ── Projection turn-history ───┤  all in the bucket `baselines`
RL_REWARDS ─────── Projection score-windows ──┘
RL_REWARDS ─────── Projection reward-drift ────── drift_alerts.DriftAlerts ── Alert
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import subscribe
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.projection import Projection, project
from ratchet.bus.registry import AS_DECLARED, Bounds
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.rules.alerts import gap_alert
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.stores.stored_watch import StoredWatch
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.clickhouse_facts import Facts
from ratchet.reward_computer.domain.drift import Drift, Watch, watch_reward
from ratchet.reward_computer.domain.history import TurnHistory, add_trajectory, task_type
from ratchet.reward_computer.domain.normalization import ScoreWindows, add_reward, function_of
from ratchet.reward_computer.drift_alerts import EVERY_S, DriftAlerts
from ratchet.reward_computer.handlers import RewardComputer
from ratchet.reward_computer.settings import Settings, spec_of

NAME = "reward_computer"
PATIENCE = timedelta(hours=1)
"""Feedback on a stored trajectory that has no reward by then becomes a dead letter, and so does a message that the
collector has settled and that has no row by then."""


@asynccontextmanager
async def build(settings: Settings, bounds: Bounds = AS_DECLARED) -> AsyncIterator[App]:
    """Connect, and assemble projections, consumers and the watch of levels."""
    spec_of(settings)
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    warehouse = await Warehouse.connect(settings.shared)
    try:
        yield await assembled(settings, bus, warehouse, bounds)
    finally:
        await bus.close()
        await warehouse.close()


async def assembled(settings: Settings, bus: Bus, warehouse: Warehouse, bounds: Bounds = AS_DECLARED) -> App:
    """The reward computer on connections that are open."""
    histories, windows, drift = projections(bus)
    watcher = Periodic(EVERY_S, DriftAlerts(bus, drift).tick, "drift alerts")
    settled = StoredWatch(bus, [bus.contracts.topics[kind.TOPIC].stream for kind in (Trajectory, Feedback)])
    computer = RewardComputer(
        spec=spec_of(settings),
        facts=Facts(warehouse),
        settled=settled,
        histories=histories,
        windows=windows,
        windows_from=await last_reward(bus),
        now=bus.now,
        patience=PATIENCE,
    )
    bounds = replace(bounds, linger_s=settings.linger_s)
    consumers = [
        subscribe(bus, "reward-trajectories", {Trajectory: computer.first_rewards}, bounds=bounds),
        subscribe(bus, "reward-feedback", {Feedback: computer.revisions}, bounds=bounds),
    ]
    checks = {"broker": bus.check, "warehouse": warehouse.check}
    notes = {
        "turn-history": histories.check,
        "score-windows": windows.check,
        "reward-drift": drift.check,
        "consumers": bus.check_consumers,
    }
    return App(NAME, [histories, windows, drift, watcher, settled, *consumers], checks, notes=notes)


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
