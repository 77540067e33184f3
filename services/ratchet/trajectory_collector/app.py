"""Composition root of the collector.

RL_TRAJECTORIES ┐                   handlers.Collector ─┬─ Facts ── ClickHouse: facts
RL_STARTS       │   one consumer          │             └─ Ledger ─ ClickHouse: ledger   (screening.Screen before)
RL_TURNS        ├── per stream ───────────┘   └─ TrajectoryEnd -> Trajectory (published by the loop)
RL_SPANS        │
RL_REWARDS      │
RL_FEEDBACK     │   generations.Generations: which generation of a stream a sequence belongs to
RL_WORKFLOWS    │   audit.Auditor: ledger against the ack floor and the rows; restore.Restorer reads again
RL_TRAINING     │   trim.Trimmer: streams that fill, down to what every reader needs
RL_DEPLOYMENTS  ┘   idle.IdleAssembler: silent trajectories -> Trajectory (published here)
                    archiving.Archiver: rows that were hot long enough -> S3
                    traces.TraceAssembler: spans of traces that are over -> Turn, Trajectory, Feedback (published here)
KV erasures ─────── erasing.Eraser: removes what is there; erasing.Tombstones, before every handler: what comes late
RL_DEADLETTERS ──── dead_letters.DeadLetterWatch: alerts before it is full
RL_AUDIT ────────── audit_archive.AuditArchive: days that are over -> S3
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, subscribe
from ratchet.bus.contracts import Contracts
from ratchet.bus.registry import Bounds, ConsumerSpec
from ratchet.core.contract import MESSAGES, Trajectory, TrajectoryEnd, Turn
from ratchet.core.rules.recent_share import COLLECTION
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.alerts import Alerts, held_alerts
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.runtime import App, Component, Periodic
from ratchet.core.stores.audit_store import AuditStore
from ratchet.core.stores.erased import KEYS, Erased
from ratchet.core.stores.erasures import KnownErasures
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.archiving import Archiver
from ratchet.trajectory_collector.audit import Auditor
from ratchet.trajectory_collector.audit_archive import ARCHIVE_S, AuditArchive
from ratchet.trajectory_collector.clickhouse_facts import Facts, Most
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.clickhouse_retention import (
    LEDGER_TTL_DAYS,
    RETENTION_INTERVAL_S,
    Retention,
    days_by_table,
    least_age,
)
from ratchet.trajectory_collector.dead_letters import DeadLetterWatch
from ratchet.trajectory_collector.domain import Inference
from ratchet.trajectory_collector.erasing.tombstones import Tombstones
from ratchet.trajectory_collector.erasing.worker import Eraser
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.idle import IdleAssembler, Patience
from ratchet.trajectory_collector.nats_readers import NatsReaders
from ratchet.trajectory_collector.nats_streams import Streams
from ratchet.trajectory_collector.restore import Restorer
from ratchet.trajectory_collector.rows import TABLES
from ratchet.trajectory_collector.screening import Screen
from ratchet.trajectory_collector.settings import Settings, Tuning
from ratchet.trajectory_collector.silence import Silence
from ratchet.trajectory_collector.traces.assembler import STREAM, TraceAssembler
from ratchet.trajectory_collector.traces.clickhouse_spans import StoredSpans
from ratchet.trajectory_collector.trim import Trimmer

NAME = "trajectory_collector"
TUNING = Tuning()
OF_TRAJECTORIES = frozenset({Turn.TOPIC, TrajectoryEnd.TOPIC, Trajectory.TOPIC})
"""Messages that end the silence of a trajectory."""


@asynccontextmanager
async def build(
    settings: Settings, now: Callable[[], datetime] = utc_now, tuning: Tuning = TUNING
) -> AsyncIterator[App]:
    """Connect, and assemble one consumer per stream, the audit and the search for idle trajectories."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts(), now=now, rules=rules_digest())
    bus.bodies = StoredBodies(settings.shared)
    warehouse = await Warehouse.connect(settings.shared)
    try:
        yield assembled(settings, bus, warehouse, now, tuning)
    finally:
        await bus.close()
        await warehouse.close()


def assembled(
    settings: Settings, bus: Bus, warehouse: Warehouse, now: Callable[[], datetime], tuning: Tuning = TUNING
) -> App:
    """The collector on connections that are open."""
    bounds = Bounds(batch=tuning.batch, linger_s=settings.linger_s, ack_wait_s=tuning.ack_wait_s)
    specs = {stream: spec.within(bounds) for stream, spec in collected(bus.contracts).items()}
    durables = {stream: spec.name for stream, spec in specs.items()}
    tables = {stream: [TABLES[topic].name for topic in spec.topics] for stream, spec in specs.items()}
    days = days_by_table(settings)
    streams, ledger = Streams(bus), Ledger(warehouse, tables)
    alerts = Alerts(NAME, bus.publish, now, lambda: held_alerts(bus))
    facts = Facts(warehouse, Most(tuning.assembly_turns, tuning.assembly_bytes))
    generations = Generations(streams, ledger, alerts, now)
    inference = Inference(
        {role: frozenset(tools) for role, tools in settings.final_tools.items()}, settings.failure_by_error
    )
    erased = Erased(warehouse)
    known = KnownOptOuts(partial(_given, bus))
    tombstones = Tombstones(KnownErasures(bus), erased, ledger, generations, streams, known, now)
    screen = Screen(bus.contracts, rules_digest(), settings.refuse_unredacted)
    collector = partial(
        Collector,
        facts,
        ledger,
        generations,
        now=now,
        publish=bus.publish,
        screen=screen,
        tombstones=tombstones,
        inference=inference,
    )
    patience = timedelta(seconds=tuning.assembly_patience_s)
    collectors = {stream: collector(durable, patience=patience) for stream, durable in durables.items()}
    restorer = Restorer(bus, collectors, max(spec.batch for spec in specs.values()), tuning.restore_per_tick)
    auditor = Auditor(
        streams,
        ledger,
        generations,
        restorer,
        alerts,
        consumers=durables,
        now=now,
        width=tuning.audit_window,
        windows=tuning.audit_windows_per_tick,
        facts_ages={stream: least_age(days, tables[stream]) for stream in durables},
        ledger_age=timedelta(days=LEDGER_TTL_DAYS),
    )
    trimmer = Trimmer(
        streams,
        NatsReaders(bus, streams, settings.absent_readers),
        auditor.balanced_up_to,
        alerts,
        consumers=durables,
        now=now,
        above=tuning.trim_above,
        down_to=tuning.trim_to,
        alarm_above=tuning.fill_alarm_above,
        keep=timedelta(seconds=tuning.trim_keep_s),
    )
    idle = IdleAssembler(
        bus,
        facts,
        streams,
        {stream: name for stream, name in durables.items() if not OF_TRAJECTORIES.isdisjoint(specs[stream].topics)},
        patience=Patience(
            timedelta(seconds=settings.idle_s),
            timedelta(seconds=tuning.idle_lookback_s),
            {role: timedelta(seconds=idle_s) for role, idle_s in settings.idle_s_by_role.items()},
        ),
        inference=inference,
    )
    traces = TraceAssembler(
        bus,
        facts,
        StoredSpans(warehouse),
        streams,
        durables[STREAM],
        inference,
        timedelta(seconds=tuning.idle_lookback_s),
    )
    archiver = Archiver(
        warehouse,
        Objects(settings.shared),
        erased,
        hot={role: kept.hot for role, kept in settings.days_kept.items()},
        whole={role: kept.whole for role, kept in settings.days_kept.items()},
        alerts=alerts,
        now=now,
    )
    with_words = {stream: durable for stream, durable in durables.items() if not KEYS.keys().isdisjoint(tables[stream])}
    eraser = Eraser(
        bus,
        erased,
        ledger,
        generations,
        streams,
        tombstones,
        archiver.archives,
        consumers=with_words,
        tables=tables,
        now=now,
        monotonic=time.monotonic,
        settle_s=tuning.erasure_settle_s,
    )
    components: list[Component] = [
        known,
        *(subscribed(bus, spec, collectors[stream], bounds) for stream, spec in specs.items()),
        Periodic(tuning.audit_interval_s, auditor.tick, "audit"),
        Periodic(tuning.audit_interval_s, trimmer.tick, "trim"),
        Periodic(tuning.audit_interval_s, DeadLetterWatch(streams, alerts).tick, "dead letters"),
        Periodic(tuning.idle_interval_s, idle.tick, "idle trajectories"),
        Periodic(tuning.traces_interval_s, traces.tick, "traces"),
        Periodic(tuning.erasure_interval_s, eraser.tick, "erasures"),
        Periodic(RETENTION_INTERVAL_S, Retention(warehouse, settings).tick, "retention"),
        Periodic(RETENTION_INTERVAL_S, archiver.tick, "archive"),
        Periodic(ARCHIVE_S, AuditArchive(bus, AuditStore(Objects(settings.shared)), now).tick, "audit archive"),
    ]
    checks = {"broker": bus.check, "warehouse": warehouse.check, "ledger": auditor.check}
    silence = Silence(streams, now)
    components.append(Periodic(tuning.audit_interval_s, silence.tick, "silence"))
    notes = {
        "consumers": bus.check_consumers,
        "trajectories": silence.check_trajectories,
        "feedback": silence.check_feedback,
        COLLECTION: silence.check_collection,
    }
    return App(NAME, components, checks, notes)


async def _given(bus: Bus) -> Bus:
    return bus


def collected(contracts: Contracts) -> Mapping[str, ConsumerSpec]:
    """The streams whose every message is stored and accounted for, with the consumer that reads each."""
    return {spec.stream: spec for spec in contracts.consumers.values() if spec.service == NAME}


def subscribed(bus: Bus, spec: ConsumerSpec, collector: Collector, bounds: Bounds) -> Consumer:
    """The consumer of one stream, with a handler for each of its topics."""
    handlers = {MESSAGES[topic]: collector.handler(topic) for topic in spec.topics}
    return subscribe(bus, spec.name, handlers, bounds=bounds, on_dead=partial(collector.dead, spec.stream))
