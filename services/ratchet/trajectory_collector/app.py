"""Composition root of the collector.

RL_TRAJECTORIES ┐
RL_TURNS        │   one consumer   handlers.Collector ── Facts ── ClickHouse: facts, ledger
RL_REWARDS      ├── per stream ──────────┘   └─ TrajectoryEnd -> Trajectory (published by the loop)
RL_FEEDBACK     │
RL_TRAINING     │   audit.Auditor: ledger against the broker's ack floor; restore.Restorer reads gaps again
RL_DEPLOYMENTS  ┘   idle.IdleAssembler: silent trajectories -> Trajectory (published here)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

from ratchet.kernel.bus import Bus, utc_now
from ratchet.kernel.consumer import Consumer, Subscription
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.runtime import App, Component, Periodic
from ratchet.kernel.warehouse import Warehouse
from ratchet.trajectory_collector.audit import Auditor
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.idle import IdleAssembler
from ratchet.trajectory_collector.nats_streams import Streams
from ratchet.trajectory_collector.restore import Restorer
from ratchet.trajectory_collector.settings import Settings

STREAMS = ("RL_TRAJECTORIES", "RL_TURNS", "RL_REWARDS", "RL_FEEDBACK", "RL_TRAINING", "RL_DEPLOYMENTS")
"""Streams whose every message is stored and accounted for."""
TELLING = ("RL_TURNS", "RL_TRAJECTORIES")
"""Streams that hold news of a trajectory: its turns and its end, and the trajectory itself."""


@asynccontextmanager
async def build(settings: Settings, now: Callable[[], datetime] = utc_now) -> AsyncIterator[App]:
    """Connect, and assemble one consumer per stream, the audit and the search for idle trajectories."""
    bus = await Bus.connect(settings.kernel, name="trajectory_collector", contracts=Contracts.load(), now=now)
    warehouse = await Warehouse.connect(settings.kernel)
    facts = Facts(warehouse)
    durables = {stream: _durable(stream) for stream in STREAMS}
    collectors = {
        stream: Collector(facts, durable, now, settings.assembly_patience) for stream, durable in durables.items()
    }
    restorer = Restorer(bus, facts, collectors, settings.batch, settings.restore_per_tick)
    streams = Streams(bus)
    auditor = Auditor(streams, facts, durables, restorer, settings.trim_above)
    components: list[Component] = [
        *(_consumer(bus, collector, stream, settings) for stream, collector in collectors.items()),
        Periodic(settings.audit_interval_s, auditor.tick, "audit"),
        Periodic(settings.idle_interval_s, _idle(bus, facts, streams, settings).tick, "idle trajectories"),
    ]
    try:
        yield App(
            "trajectory_collector",
            components,
            {"broker": bus.check, "warehouse": warehouse.check, "ledger": auditor.check},
        )
    finally:
        await bus.close()
        await warehouse.close()


def _consumer(bus: Bus, collector: Collector, stream: str, settings: Settings) -> Consumer:
    handlers = {t: handler for t, handler in collector.table().items() if bus.contracts.topics[t].stream == stream}
    subscription = Subscription(
        stream=stream,
        durable=collector.consumer,
        handlers=handlers,
        batch=settings.batch,
        linger_s=settings.linger_s,
        ack_wait_s=settings.ack_wait_s,
        on_dead=partial(collector.dead, stream),
    )
    return Consumer(bus, subscription)


def _idle(bus: Bus, facts: Facts, streams: Streams, settings: Settings) -> IdleAssembler:
    return IdleAssembler(
        bus,
        facts,
        streams,
        {stream: _durable(stream) for stream in TELLING},
        idle=timedelta(seconds=settings.idle_s),
        lookback=timedelta(seconds=settings.idle_lookback_s),
    )


def _durable(stream: str) -> str:
    return f"collector-{stream.removeprefix('RL_').lower()}"
