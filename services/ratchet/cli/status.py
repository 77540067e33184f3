"""`ratchet status`: services, stored rows, streams, jobs and serving policies, and the reason of every fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from ratchet.bus.kv import Bucket
from ratchet.cli.api import get
from ratchet.cli.connections import addresses_of, connected, roles_at, warehouse_of
from ratchet.cli.drift import print_drift, read_drift, show_changes
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.ids import listed_ids
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole
from ratchet.cli.output import console, print_answer, print_facts, print_section, print_table
from ratchet.cli.started import upstreams_of_stack
from ratchet.core.contract.http.console import LedgerOut
from ratchet.core.contract.http.status import DpoStatusOut, StatusOut, TrainingStatusOut, TriggerOut
from ratchet.core.contract.state import JOBS, POLICIES, Job, RewardDrift, Route
from ratchet.core.errors import RatchetError, Rejected
from ratchet.core.rules.access import RoleSet
from ratchet.core.service.files import LOW_BYTES, free_bytes, shortage
from ratchet.core.service.readiness import readiness
from ratchet.core.stores.history import ledger_balance
from ratchet.local.local_stack.member import WELL, MemberState
from ratchet.local.local_stack.process import not_ready_for
from ratchet.local.local_stack.state import MemberRecord, StackRecord

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus
    from ratchet.core.service.settings import SharedSettings

app = typer.Typer()

T = TypeVar("T")
COORDINATOR = "rl_coordinator"
PART_S = 15.0
"""A server that has not answered by then counts as dead for this report: beside other work an answer takes seconds."""
COUNTED = ("trajectories", "turns", "rewards", "feedback")
"""Tables whose distinct events are counted."""
RECENT_JOBS = 8
"""Older jobs are left to `ratchet jobs`."""


class Subject(StrEnum):
    """A part of the system that has a report of its own."""

    TRAINING = "training"
    DPO = "dpo"
    REWARDS = "rewards"


@app.command()
def status(
    subject: Annotated[
        Subject | None,
        typer.Argument(
            help="Only what trains and waits (`training`), whether preferences start a training, and why (`dpo`), or"
            " the levels of rewards, and which of them changed (`rewards`)."
        ),
    ] = None,
    role: OptionalRole = None,
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Show the state of the system. Exit code 3: something is not ready; 4: no stack runs."""
    if subject is None and role is not None:
        raise Rejected("--role needs `training`, `dpo` or `rewards`: the whole report is of all roles")
    endpoints = locate(directory)
    query = f"?{urlencode({'role': role})}" if role else ""
    if subject == Subject.TRAINING:
        training = get(endpoints, "coordinator", f"/v1/status/training{query}", TrainingStatusOut)
        print_answer(training, as_json, lambda: _show_training(training))
    elif subject == Subject.DPO:
        dpo = get(endpoints, "coordinator", f"/v1/status/dpo{query}", DpoStatusOut)
        print_answer(dpo, as_json, lambda: _show_dpo(dpo))
    elif subject == Subject.REWARDS:
        print_drift(endpoints, role, as_json)
    else:
        endpoints.require()
        report = asyncio.run(collect(endpoints))
        print_answer(report, as_json, lambda: show(report))
        raise typer.Exit(report.exit_code)


class ServiceStatus(msgspec.Struct, kw_only=True):
    """One process and, when it is not ready, why."""

    state: str
    pid: int | None
    """Null while it starts when needed."""
    url: str
    restarts: int
    reason: str | None
    restarted: str | None = None
    """Why it was started again last."""
    health_url: str | None = None
    """Base of /healthz, /readyz and /metrics; null for the servers."""
    notes: dict[str, str] = {}
    """Faults that do not keep it from its work, such as events that a gateway could not keep."""


class UpstreamStatus(msgspec.Struct, kw_only=True):
    """A server that the gateway asks while a role has no policy, or when its engine fails; `ratchet doctor` asks it."""

    name: str
    url: str
    key_variable: str | None
    """Names its key; null for a server without keys."""


class ConsumerStatus(msgspec.Struct, kw_only=True):
    """A durable consumer's distance to the end of its stream."""

    lag: int
    unacknowledged: int
    redelivered: int
    oldest_s: float
    """For how many seconds the oldest message has waited that it has not settled; 0 for none."""


class StreamStatus(msgspec.Struct, kw_only=True):
    """The size of a stream, and its consumers."""

    messages: int
    bytes: int
    consumers: dict[str, ConsumerStatus]


class JobStatus(msgspec.Struct, kw_only=True):
    """A training job in one line."""

    training_job_id: str
    role: str
    algorithm: str
    state: str
    percent: float | None
    error: str | None


class RoleStatus(msgspec.Struct, kw_only=True):
    """The policies that serve a role."""

    stable: str | None
    canary: str | None
    weight: float | None


class StatusReport(msgspec.Struct, kw_only=True):
    """The whole report; `errors` names the parts that could not be read, and why."""

    running: bool
    directory: str
    pid: int | None
    services: dict[str, ServiceStatus]
    upstreams: list[UpstreamStatus] = []
    rows: dict[str, int] = {}
    ledger: list[LedgerOut] = []
    streams: dict[str, StreamStatus] = {}
    jobs: list[JobStatus] = []
    roles: dict[str, RoleStatus] = {}
    rewards: list[RewardDrift] = []
    """What is watched in rewards for a change of its level."""
    triggers: dict[str, list[TriggerOut]] = {}
    """By role, what starts its trainings by itself."""
    disk_free_bytes: int | None = None
    """Room on the stack's disk; null where no stack runs here."""
    left_out: str | None = None
    """What the key may not see, and so is not in here; null: it sees every role."""
    errors: dict[str, str] = {}

    @property
    def exit_code(self) -> ExitCode:
        """Done, partly if anything is not ready, or no stack if nothing answers at all."""
        if not self.running and len(self.errors) > 1:
            return ExitCode.NO_STACK
        amiss = self.errors or any(service.state not in WELL for service in self.services.values())
        return ExitCode.PARTLY if amiss else ExitCode.DONE


async def collect(endpoints: Endpoints) -> StatusReport:
    """Ask all servers and services at the same time."""
    record = endpoints.record
    report = StatusReport(
        running=record is not None,
        directory=str(endpoints.directory),
        pid=record.pid if record else None,
        services={},
    )
    if record is not None:
        statuses = await asyncio.gather(*map(_service, record.services.values()))
        report.services = dict(zip(record.services, statuses, strict=True))
        report.upstreams = [
            UpstreamStatus(name=upstream.name, url=upstream.address, key_variable=upstream.key_variable)
            for upstream in upstreams_of_stack(record, endpoints.env)
        ]
        try:
            report.disk_free_bytes = free_bytes(endpoints.directory)
            if missing := shortage(report.disk_free_bytes, LOW_BYTES, endpoints.directory):
                report.errors["disk"] = f"{missing}: the servers refuse to write, or soon will"
        except OSError as error:
            report.errors["disk"] = str(error)
    try:
        roles = await asyncio.to_thread(roles_at, endpoints)
    except Rejected as error:
        report.left_out = f"what is stored, streams and roles are left out: {error}"
        return report
    if not roles.is_every:
        report.left_out = "streams and the ledger are left out, and other roles: the key is for some roles"
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "clickhouse": lambda: _warehouse_part(addresses_of(endpoints), report, roles),
        "nats": lambda: _bus_part(addresses_of(endpoints), report, roles),
        COORDINATOR: lambda: _triggers_part(endpoints, report),
    }

    async def read(name: str) -> None:
        try:
            async with asyncio.timeout(PART_S):
                await parts[name]()
        except TimeoutError:
            report.errors[name] = f"no answer within {PART_S:g} s"
        except RatchetError as error:
            report.errors[name] = str(error)

    await asyncio.gather(*(read(name) for name in parts if _is_there(name, record)))
    return report


def _is_there(part: str, record: StackRecord | None) -> bool:
    """Servers answer wherever they run; the coordinator is asked where this stack runs it."""
    if record is None:
        return part != COORDINATOR
    member = record.services.get(part)
    return member is not None and (part != COORDINATOR or member.state == "ready")


async def _triggers_part(endpoints: Endpoints, report: StatusReport) -> None:
    answer = await asyncio.to_thread(get, endpoints, "coordinator", "/v1/status", StatusOut, timeout_s=PART_S)
    report.triggers = {role: standing.triggers for role, standing in sorted(answer.roles.items()) if standing.triggers}


async def _service(member: MemberRecord) -> ServiceStatus:
    """A service answers for itself; a server's state is the one that the supervisor saw last."""
    state, reason, health_url, notes = member.state, member.reason, None, dict[str, str]()
    if member.health_port is not None:
        health_url = f"http://127.0.0.1:{member.health_port}"
    if health_url is not None and member.pid is not None:
        reason, notes = await asyncio.to_thread(readiness, f"{health_url}/readyz", PART_S)
        state = "ready" if reason is None else "not ready" if state == "ready" else state
    if state == MemberState.STARTING:
        reason = ": ".join(part for part in (not_ready_for(time.time() - member.started_at), reason) if part)
    return ServiceStatus(
        state=state,
        pid=member.pid,
        url=member.url,
        restarts=member.restarts,
        reason=reason or member.reason,
        restarted=member.restarted,
        health_url=health_url,
        notes=notes,
    )


async def _warehouse_part(settings: SharedSettings, report: StatusReport, roles: RoleSet) -> None:
    own = "WHERE match(role, {roles:String})"
    async with warehouse_of(settings) as warehouse:
        for table in COUNTED:
            counted = f"SELECT uniqExact(role, trajectory_id, event_id) AS n FROM {table} {own}"  # noqa: S608 - our names
            report.rows[table] = (await warehouse.rows(counted, {"roles": roles.pattern or "."}))[0]["n"]
        report.ledger = await ledger_balance(warehouse) if roles.is_every else []


async def _bus_part(settings: SharedSettings, report: StatusReport, roles: RoleSet) -> None:
    async with connected(settings) as bus:
        if roles.is_every:
            await asyncio.gather(*(_stream(bus, name, report) for name in bus.contracts.streams))
        report.rewards = [drift for drift in await read_drift(bus) if drift.role in roles]
        jobs = [job for job in (await _values(bus, JOBS, Job)).values() if job.role in roles]
        newest_first = sorted(jobs, key=lambda job: (job.created_at, job.training_job_id), reverse=True)
        report.jobs = [
            JobStatus(
                training_job_id=job.training_job_id,
                role=job.role,
                algorithm=job.algorithm,
                state=job.state,
                percent=job.progress.percent_complete if job.progress else None,
                error=job.error.message if job.error else None,
            )
            for job in newest_first
        ]
        routes = await _values(bus, POLICIES, Route)
        for role in sorted(role for role in routes if role in roles):
            route, canary = routes[role], routes[role].canary
            report.roles[role] = RoleStatus(
                stable=route.stable.name if route.stable else None,
                canary=canary.policy.name if canary else None,
                weight=canary.schedule[-1].weight if canary and canary.schedule else None,
            )


async def _stream(bus: Bus, name: str, report: StatusReport) -> None:
    from ratchet.bus.figures import stream_figures  # noqa: PLC0415 - it needs the broker's library

    figures = await stream_figures(bus, name)
    report.streams[name] = StreamStatus(
        messages=figures.messages,
        bytes=figures.bytes,
        consumers={
            consumer.name: msgspec.convert(consumer, ConsumerStatus, from_attributes=True)
            for consumer in figures.consumers
        },
    )


async def _values(bus: Bus, bucket: str, kind: type[T]) -> dict[str, T]:
    """The values of a bucket; keys with a dot (`<role>.<version>`) hold values of another kind."""
    entries = await Bucket(bus, bucket, kind).items(lambda key: "." not in key)
    return {key: entry.value for key, entry in entries.items()}


def show(report: StatusReport) -> None:
    """Print every part that is not empty."""
    if report.running:
        room = f", {report.disk_free_bytes / 1e9:.1f} GB free" if report.disk_free_bytes is not None else ""
        console.print(f"stack in {report.directory}, supervisor pid {report.pid}{room}")
    else:
        console.print(
            f"no stack runs in {report.directory}; this is the system that the environment's addresses lead to"
        )
    print_section(("cannot read", "because"), list(report.errors.items()))
    services = [
        (name, service.state, service.url, service.restarts or None, service.reason or again)
        for name, service in report.services.items()
        for again in (f"restarted: {service.restarted}" if service.restarts and service.restarted else None,)
    ]
    print_section(("service", "state", "url", "restarts", "reason"), services)
    notes = [(name, check, note) for name, service in report.services.items() for check, note in service.notes.items()]
    print_section(("service", "notes", ""), notes)
    print_section(
        ("upstream", "url", "key"),
        [(upstream.name, upstream.url, upstream.key_variable) for upstream in report.upstreams],
    )
    if report.left_out is not None:
        console.print(f"\n{report.left_out}", markup=False)
    print_section(("stored rows", ""), list(report.rows.items()))
    rows: list[tuple[object, ...]] = []
    for name, stream in sorted(report.streams.items()):
        head: tuple[object, ...] = (name, stream.messages, f"{stream.bytes / 1e6:.1f}")
        consumers = [
            (durable, consumer.lag, consumer.unacknowledged, round(consumer.oldest_s) or "")
            for durable, consumer in stream.consumers.items()
        ]
        for consumer in consumers or [("-", "", "", "")]:
            rows.append((*head, *consumer))
            head = ("", "", "")
    print_section(("stream", "messages", "MB", "consumer", "lag", "unacked", "oldest s"), rows)
    counts = ("watermark", "stored", "dead", "duplicate", "lost", "missing", "absent")
    print_section(
        ("ledger of", *counts),
        [(ledger.stream, *(getattr(ledger, name) for name in counts)) for ledger in report.ledger],
    )
    print_section(
        ("role", "stable", "canary", "weight"), [(n, r.stable, r.canary, r.weight) for n, r in report.roles.items()]
    )
    show_changes(report.rewards)
    triggers = [(role, trigger.kind, *_standing(trigger)) for role, each in report.triggers.items() for trigger in each]
    print_section(("role", "trains on", "progress", "next", "last"), triggers)
    recent = report.jobs[:RECENT_JOBS]
    ids = listed_ids(job.training_job_id for job in report.jobs)
    jobs = [(ids[j.training_job_id], j.role, j.algorithm, j.state, j.percent, j.error) for j in recent]
    print_section(("job", "role", "algorithm", "state", "%", "error"), jobs)


def _show_training(report: TrainingStatusOut) -> None:
    slots = ", ".join(
        f"{pool_slots.used} of {pool_slots.total} of {pool}" for pool, pool_slots in sorted(report.slots.items())
    )
    counts = ", ".join(f"{count} {state}" for state, count in report.jobs.items() if count) or "none"
    enabled = "yes" if report.training_enabled else "no (RATCHET_COORDINATOR_TRAINING_ENABLED)"
    print_facts({"enabled": enabled, "slots in use": slots, "jobs": counts, "longest wait s": report.longest_wait_s})
    columns = ("role", "job", "algorithm", "state", "%", "loss", "reward", "error")
    parts = {"trains": report.active, "waits": report.waiting, "ended last": list(report.last.values())}
    rows = [
        (heading, j.role, j.training_job_id, j.algorithm, j.state, j.percent_complete, j.loss, j.reward_mean, j.error)
        for heading, briefs in parts.items()
        for j in briefs
    ]
    print_section(("", *columns), rows)


def _show_dpo(report: DpoStatusOut) -> None:
    columns = ("role", "preferences", "since the last dpo", "starts a training", "because", "newest policy")
    rows = [
        (
            role,
            standing.total,
            standing.since_last_dpo,
            "yes" if standing.would_fire else "no",
            standing.why,
            standing.newest_policy,
        )
        for role, standing in sorted(report.roles.items())
    ]
    print_table(columns, rows, "no role has preferences")


def _standing(trigger: TriggerOut) -> tuple[object, object, object]:
    """Progress, next time or end of the cooldown, and why it last fired, or fired for nothing."""
    counted = f"{trigger.progress} of {trigger.target}" if trigger.target is not None else trigger.state
    rests = f"rests until {trigger.rests_until}" if trigger.rests_until else None
    coming = trigger.next_at or rests or ("now" if trigger.is_due else None)
    last = f"{trigger.last.at}: {trigger.last.why}" if trigger.last else None
    return counted, coming, f"cannot start: {trigger.refused}" if trigger.refused else last
