"""Shows a status report to people."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.cli.output import console, print_table
from ratchet.cli.status import LedgerStatus, StatusReport

RECENT_JOBS = 8
"""Older jobs are left to `ratchet jobs`."""


def show(report: StatusReport) -> None:
    """Print every part that has something in it."""
    if report.running:
        room = f", {report.disk_free_bytes / 1e9:.1f} GB free" if report.disk_free_bytes is not None else ""
        console.print(f"stack in {report.directory}, supervisor pid {report.pid}{room}")
    else:
        console.print(f"no stack runs in {report.directory}; this is what the environment's addresses lead to")
    services = [(name, one.state, one.url, one.restarts or None, one.reason) for name, one in report.services.items()]
    _section(("service", "state", "url", "restarts", "reason"), services)
    notes = [(name, what, note) for name, one in report.services.items() for what, note in one.notes.items()]
    _section(("service", "notes", ""), notes)
    _section(("stored rows", ""), list(report.rows.items()))
    _section(("stream", "messages", "MB", "consumer", "lag", "unacked"), _streams(report))
    _section(
        ("ledger of", "watermark", "stored", "dead", "duplicate", "lost", "missing", "absent"),
        [_account(one) for one in report.ledger],
    )
    _section(
        ("role", "stable", "canary", "weight"), [(n, r.stable, r.canary, r.weight) for n, r in report.roles.items()]
    )
    jobs = [(j.training_job_id, j.role, j.algorithm, j.state, j.percent, j.error) for j in report.jobs[:RECENT_JOBS]]
    _section(("job", "role", "algorithm", "state", "%", "error"), jobs)
    _section(("cannot read", "because"), list(report.errors.items()))


def _account(one: LedgerStatus) -> tuple[object, ...]:
    return one.stream, one.watermark, one.stored, one.dead, one.duplicate, one.lost, one.missing, one.absent


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        console.print()
        print_table(columns, rows, "")


def _streams(report: StatusReport) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, stream in sorted(report.streams.items()):
        head: tuple[object, ...] = (name, stream.messages, stream.bytes / 1e6)
        consumers = [(durable, one.lag, one.unacknowledged) for durable, one in stream.consumers.items()]
        for consumer in consumers or [("-", "", "")]:
            rows.append((*head, *consumer))
            head = ("", "", "")
    return rows
