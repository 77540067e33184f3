"""What a person has to look at now: a table of rules over one picture of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AttentionOut, LedgerOut, ServiceOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import JobBrief

ACT, WARNING = "act", "warning"
RECENTLY = timedelta(days=1)
"""For how long a failed job, a refused candidate and an alert that is not cleared are worth a line."""
DEAD_LETTERS = "RL_DEADLETTERS"
LAG = 1000
"""A consumer that is fewer messages behind catches up within seconds."""
REFUSED = frozenset({"refused", "rolled_back", "aborted"})
"""States of a rollout that ended without its candidate."""
SHOWN_ALREADY = ("job-", "rollout:", "registration:")
"""Beginnings of the keys of alerts about jobs and candidates, which have rules of their own."""
ALERTS = 20
"""Most alerts that have a line each; one more says how many there are."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A consumer that is further behind than it was."""

    stream: str
    consumer: str
    before: int
    lag: int
    seconds: float
    """Between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is known of the loop; a part that could not be read is empty."""

    now: datetime
    rollouts: Sequence[RolloutOut] = ()
    """Every role's newest one."""
    ended_jobs: Sequence[JobBrief] = ()
    """Every role's newest job that has ended."""
    services: Sequence[ServiceOut] = ()
    ledger: Sequence[LedgerOut] = ()
    streams: Sequence[StreamOut] = ()
    growths: Sequence[Growth] = ()
    alerts: Sequence[Alert] = ()
    """Those that hold."""
    disk: str | None = None
    """What is wrong with the room on the disk."""


def attention(picture: Picture) -> list[AttentionOut]:
    """Everything that needs a person, most urgent first: what waits for one, then the order of the rules."""
    items = [item for rule in RULES for item in rule(picture)]
    return sorted(items, key=lambda item: item.severity != ACT)


def _approval(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        if rollout.state == "awaiting_approval":
            yield _of_rollout(rollout, ACT, "approval", f"{rollout.candidate.name} waits for an approval")


def _held(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        if rollout.state == "held":
            yield _of_rollout(rollout, ACT, "held", f"the canary of {rollout.role} is held: promote it or roll it back")


def _rollout_fault(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        if rollout.fault is not None:
            title = f"the rollout of {rollout.role} cannot go on"
            yield _of_rollout(rollout, ACT, "rollout_fault", title, rollout.fault)


def _away(picture: Picture) -> Iterator[AttentionOut]:
    for service in picture.services:
        if service.state == "away":
            yield _of(ACT, "service", f"{service.name} does not answer", service.reason or "", service.name)


def _unbalanced(picture: Picture) -> Iterator[AttentionOut]:
    for ledger in picture.ledger:
        if ledger.missing or ledger.absent:
            detail = f"{ledger.missing} settled without an entry, {ledger.absent} stored without a row"
            yield _of(ACT, "ledger", f"messages of {ledger.stream} are not accounted for", detail, ledger.stream)


def _disk(picture: Picture) -> Iterator[AttentionOut]:
    if picture.disk is not None:
        yield _of(ACT, "disk", "the disk is nearly full: servers refuse to write, or soon will", picture.disk, None)


def _not_ready(picture: Picture) -> Iterator[AttentionOut]:
    for service in picture.services:
        if service.state == "not ready":
            yield _of(WARNING, "service", f"{service.name} is not ready", service.reason or "", service.name)


def _noted(picture: Picture) -> Iterator[AttentionOut]:
    """Faults that a service works in spite of."""
    for service in picture.services:
        for name, note in sorted(service.notes.items()):
            yield _of(WARNING, "service", f"{service.name}: {name}", note, service.name)


def _late(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        if rollout.late is not None:
            yield _of_rollout(rollout, WARNING, "late", f"outcomes of {rollout.role} come late", rollout.late)


def _paused(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        if rollout.state == "paused":
            yield _of_rollout(rollout, WARNING, "paused", f"the canary of {rollout.role} is paused")
        elif rollout.parked:
            title = f"no candidate of {rollout.role} starts until its queue is resumed"
            yield _of_rollout(rollout, WARNING, "paused", title)


def _lag(picture: Picture) -> Iterator[AttentionOut]:
    for growth in picture.growths:
        if growth.lag >= LAG:
            detail = f"{growth.lag} messages behind, {growth.before} {growth.seconds:.0f} s ago"
            yield _of(WARNING, "lag", f"{growth.consumer} falls behind", detail, growth.stream)


def _job(picture: Picture) -> Iterator[AttentionOut]:
    for job in picture.ended_jobs:
        ended_at = job.finished_at or job.created_at
        if job.state == "failed" and picture.now - ended_at <= RECENTLY:
            title = f"the last training of {job.role} failed ({job.algorithm})"
            item = _of(WARNING, "job", title, job.error or "", job.training_job_id)
            yield replace(item, role=job.role, since=ended_at)


def _candidate(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        ended_at = rollout.finished_at
        if rollout.state in REFUSED and ended_at is not None and picture.now - ended_at <= RECENTLY:
            state = rollout.state.replace("_", " ")
            yield _of_rollout(rollout, WARNING, "candidate", f"{rollout.candidate.name} was {state}", since=ended_at)


def _lost(picture: Picture) -> Iterator[AttentionOut]:
    for ledger in picture.ledger:
        if ledger.lost:
            detail = f"{ledger.lost} are neither in ClickHouse nor in the stream"
            yield _of(WARNING, "ledger", f"messages of {ledger.stream} are lost for good", detail, ledger.stream)


def _dead_letters(picture: Picture) -> Iterator[AttentionOut]:
    for stream in picture.streams:
        if stream.name == DEAD_LETTERS and stream.messages:
            title = f"{stream.messages} messages could not be handled"
            yield _of(WARNING, "dead_letters", title, "`ratchet deadletters list` shows why", stream.name)


def _alert(picture: Picture) -> Iterator[AttentionOut]:
    """Critical ones first; what is for information is no reason to act."""
    alerts = [one for one in picture.alerts if one.severity != "info" and not one.key.startswith(SHOWN_ALREADY)]
    alerts.sort(key=lambda one: one.severity != "critical")
    for alert in alerts[:ALERTS]:
        severity = ACT if alert.severity == "critical" else WARNING
        item = _of(severity, "alert", alert.summary, f"raised by {alert.source}", alert.key)
        yield replace(item, role=alert.role, since=alert.at)
    if len(alerts) > ALERTS:
        yield _of(WARNING, "alert", f"{len(alerts) - ALERTS} more alerts", "the stream RL_ALERTS has them", None)


Rule = Callable[[Picture], Iterator[AttentionOut]]
RULES: Sequence[Rule] = (
    _approval,
    _held,
    _rollout_fault,
    _away,
    _unbalanced,
    _disk,
    _alert,
    _not_ready,
    _late,
    _lag,
    _job,
    _candidate,
    _paused,
    _noted,
    _dead_letters,
    _lost,
)
"""In the order of urgency among those of the same severity."""


def _of_rollout(
    rollout: RolloutOut, severity: str, kind: str, title: str, detail: str | None = None, since: datetime | None = None
) -> AttentionOut:
    item = _of(severity, kind, title, rollout.reason if detail is None else detail, rollout.rollout_id)
    return replace(item, role=rollout.role, since=since or rollout.stage_since or rollout.created_at)


def _of(severity: str, kind: str, title: str, detail: str, subject: str | None) -> AttentionOut:
    return AttentionOut(
        severity=severity, kind=kind, title=title, detail=detail, role=None, subject=subject, since=None
    )
