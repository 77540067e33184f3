"""Composition root of the collector.

RL_TRAJECTORIES ┐
RL_TURNS        │   one consumer   handlers.Collector ── Facts ── ClickHouse: facts, ledger
RL_REWARDS      ├── per stream ──────────┘   └─ TrajectoryEnd -> Trajectory (published by the loop)
RL_FEEDBACK     │
RL_TRAINING     │   audit.Auditor: ledger against the broker's ack floor; trims full streams
RL_DEPLOYMENTS  ┘
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ratchet.kernel.bus import Bus
from ratchet.kernel.consumer import Consumer, Subscription
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.runtime import App, Component, Periodic
from ratchet.kernel.warehouse import Warehouse
from ratchet.trajectory_collector.audit import Auditor
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.settings import Settings

STREAMS = ("RL_TRAJECTORIES", "RL_TURNS", "RL_REWARDS", "RL_FEEDBACK", "RL_TRAINING", "RL_DEPLOYMENTS")
"""Streams whose every message is stored and accounted for."""


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble one consumer per stream plus the audit."""
    bus = await Bus.connect(settings.kernel, name="trajectory_collector", contracts=Contracts.load())
    warehouse = await Warehouse.connect(settings.kernel)
    facts = Facts(warehouse)
    consumers = [_consumer(bus, facts, stream, settings) for stream in STREAMS]
    auditor = Auditor(bus, facts, {stream: _durable(stream) for stream in STREAMS}, settings.trim_above)
    components: list[Component] = [*consumers, Periodic(settings.audit_interval_s, auditor.tick, "audit")]
    try:
        yield App(
            "trajectory_collector",
            components,
            {"broker": bus.check, "warehouse": warehouse.check, "ledger": auditor.check},
        )
    finally:
        await bus.close()
        await warehouse.close()


def _consumer(bus: Bus, facts: Facts, stream: str, settings: Settings) -> Consumer:
    durable = _durable(stream)
    collector = Collector(facts, durable, bus.now, settings.assembly_patience)
    handlers = {t: handler for t, handler in collector.table().items() if bus.contracts.topics[t].stream == stream}
    subscription = Subscription(
        stream=stream,
        durable=durable,
        handlers=handlers,
        batch=settings.batch,
        linger_s=settings.linger_s,
        ack_wait_s=settings.ack_wait_s,
        on_dead=partial(collector.dead, stream),
    )
    return Consumer(bus, subscription)


def _durable(stream: str) -> str:
    return f"collector-{stream.removeprefix('RL_').lower()}"
