"""What a person has to look at now: rules over one picture of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AttentionOut, LedgerOut, ServiceOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import JobBrief
from ratchet.core.rules.alert_book import RECENTLY

ACT, WARNING = "act", "warning"
URGENCY: Mapping[str, Sequence[str]] = {
    ACT: ("suspended", "approval", "held", "rollout_fault", "service", "ledger", "disk", "alert"),
    WARNING: ("alert", "service", "late", "lag", "job", "candidate", "paused", "dead_letters", "ledger"),
}
"""Kinds of each severity, the most urgent first."""
DEAD_LETTERS = "RL_DEADLETTERS"
LAG = 1000
"""A consumer that is fewer messages behind catches up within seconds."""
REFUSED = frozenset({"refused", "rolled_back", "aborted", "withdrawn"})
"""States of a rollout that ended without its candidate."""
SHOWN_ALREADY = ("training-failed:", "rollout:")
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
    """Everything that needs a person, most urgent first: what waits for one, then the order of `URGENCY`."""
    parts = (_of_rollouts, _of_services, _of_ledger, _of_servers, _of_jobs, _of_alerts)
    items = [item for part in parts for item in part(picture)]
    return sorted(items, key=lambda item: (item.severity != ACT, URGENCY[item.severity].index(item.kind)))


def _of_rollouts(picture: Picture) -> Iterator[AttentionOut]:
    for rollout in picture.rollouts:
        role, name, state = rollout.role, rollout.candidate.name, rollout.state
        if state == "awaiting_approval":
            yield _rollout(rollout, ACT, "approval", f"{name} waits for an approval")
        if state == "held":
            yield _rollout(rollout, ACT, "held", f"the canary of {role} is held: promote it or roll it back")
        if state == "suspended":
            title = f"the canary of {role} is suspended: resume it or roll it back"
            yield _rollout(rollout, ACT, "suspended", title)
        if rollout.fault is not None:
            yield _rollout(rollout, ACT, "rollout_fault", f"the rollout of {role} cannot go on", rollout.fault)
        if rollout.late is not None:
            yield _rollout(rollout, WARNING, "late", f"outcomes of {role} come late", rollout.late)
        if state == "paused":
            yield _rollout(rollout, WARNING, "paused", f"the canary of {role} is paused")
        elif rollout.parked:
            yield _rollout(rollout, WARNING, "paused", f"no candidate of {role} starts until its queue is resumed")
        ended_at = rollout.finished_at
        if state in REFUSED and ended_at is not None and picture.now - ended_at <= RECENTLY:
            title = f"{name} was {state.replace('_', ' ')}"
            yield _rollout(rollout, WARNING, "candidate", title, since=ended_at)


def _of_services(picture: Picture) -> Iterator[AttentionOut]:
    for service in picture.services:
        if service.state == "away":
            yield _item(ACT, "service", f"{service.name} does not answer", service.reason or "", service.name)
        if service.state == "not ready":
            yield _item(WARNING, "service", f"{service.name} is not ready", service.reason or "", service.name)
    for service in picture.services:  # faults that a service works in spite of
        for name, note in sorted(service.notes.items()):
            yield _item(WARNING, "service", f"{service.name}: {name}", note, service.name)


def _of_ledger(picture: Picture) -> Iterator[AttentionOut]:
    for ledger in picture.ledger:
        stream = ledger.stream
        if ledger.missing or ledger.absent:
            detail = f"{ledger.missing} settled without an entry, {ledger.absent} stored without a row"
            yield _item(ACT, "ledger", f"messages of {stream} are not accounted for", detail, stream)
        if ledger.lost:
            detail = f"{ledger.lost} are neither in ClickHouse nor in the stream"
            yield _item(WARNING, "ledger", f"messages of {stream} are lost for good", detail, stream)


def _of_servers(picture: Picture) -> Iterator[AttentionOut]:
    if picture.disk is not None:
        yield _item(ACT, "disk", "the disk is nearly full: servers refuse to write, or soon will", picture.disk, None)
    for growth in picture.growths:
        if growth.lag >= LAG:
            detail = f"{growth.lag} messages behind, {growth.before} {growth.seconds:.0f} s ago"
            yield _item(WARNING, "lag", f"{growth.consumer} falls behind", detail, growth.stream)
    for stream in picture.streams:
        if stream.name == DEAD_LETTERS and stream.messages:
            title = f"{stream.messages} messages could not be handled"
            yield _item(WARNING, "dead_letters", title, "`ratchet deadletters list` shows why", stream.name)


def _of_jobs(picture: Picture) -> Iterator[AttentionOut]:
    for job in picture.ended_jobs:
        ended_at = job.finished_at or job.created_at
        if job.state == "failed" and picture.now - ended_at <= RECENTLY:
            title = f"the last training of {job.role} failed ({job.algorithm})"
            item = _item(WARNING, "job", title, job.error or "", job.training_job_id)
            yield replace(item, role=job.role, since=ended_at)


def _of_alerts(picture: Picture) -> Iterator[AttentionOut]:
    """What is for information is no reason to act."""
    alerts = [alert for alert in picture.alerts if alert.severity != "info" and not alert.key.startswith(SHOWN_ALREADY)]
    alerts.sort(key=lambda alert: alert.severity != "critical")
    for alert in alerts[:ALERTS]:
        severity = ACT if alert.severity == "critical" else WARNING
        item = _item(severity, "alert", alert.summary, f"raised by {alert.source}", alert.key)
        yield replace(item, role=alert.role, since=alert.at)
    if len(alerts) > ALERTS:
        yield _item(WARNING, "alert", f"{len(alerts) - ALERTS} more alerts", "the stream RL_ALERTS has them", None)


def _rollout(
    rollout: RolloutOut, severity: str, kind: str, title: str, detail: str | None = None, since: datetime | None = None
) -> AttentionOut:
    item = _item(severity, kind, title, rollout.reason if detail is None else detail, rollout.rollout_id)
    return replace(item, role=rollout.role, since=since or rollout.stage_since or rollout.created_at)


def _item(severity: str, kind: str, title: str, detail: str, subject: str | None) -> AttentionOut:
    return AttentionOut(
        severity=severity, kind=kind, title=title, detail=detail, role=None, subject=subject, since=None
    )
