"""What the `ratchet preferences` commands do: connections, and what is shown of the outcome."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.cli.broker import connected
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.imports import CheckOnly
from ratchet.cli.json_input import json_in
from ratchet.cli.output import Bar, console, print_table
from ratchet.cli.roles import require_known
from ratchet.contract import Preference
from ratchet.errors import Rejected
from ratchet.preferences.clickhouse_stored import Count, Kept, StoredPreferences, Wanted
from ratchet.preferences.clickhouse_tries import Tries
from ratchet.preferences.derivation import MAX_PER_TASK
from ratchet.preferences.deriving import DerivationReport, Deriver
from ratchet.preferences.jsonl import append, read_lines
from ratchet.preferences.publishing import Known, Published, Sink, publish
from ratchet.preferences.records import preference_of, record_of
from ratchet.preferences.rules import RULES
from ratchet.preferences.rules.reward_margin import MARGIN
from ratchet.rules.chat import text_of
from ratchet.rules.redaction import Redactor, redact_message
from ratchet.stores.warehouse import Warehouse

Numbered = Iterator[tuple[int, object]]
"""Records with the numbers of their lines."""
PAGE = 500
"""Preferences that are read together for an export."""
SHOWN = 60
"""Characters of a text in a table."""


@dataclass(frozen=True, slots=True)
class DeriveOptions:
    """How to derive."""

    source: str = "derived"
    role: str | None = None
    margin: float = MARGIN
    max_per_task: int = MAX_PER_TASK
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BadLine:
    """A record that was left out."""

    line: int
    reason: str


@dataclass
class AddReport:
    """What became of the records that were given."""

    records: int = 0
    done: Published = field(default_factory=Published)
    bad: list[BadLine] = field(default_factory=list[BadLine])


@asynccontextmanager
async def warehouse_of(endpoints: Endpoints) -> AsyncGenerator[Warehouse]:
    """The warehouse of a command. Raises `NoStack` or `WarehouseUnavailable`."""
    warehouse = await Warehouse.connect(endpoints.shared)
    try:
        yield warehouse
    finally:
        await warehouse.close()


@asynccontextmanager
async def outlet(endpoints: Endpoints, dry_run: bool) -> AsyncGenerator[Sink]:
    """Where preferences go; in a dry run they are checked and go nowhere."""
    if dry_run:
        yield CheckOnly()
        return
    async with connected(endpoints.shared) as bus:
        yield bus


async def derive(endpoints: Endpoints, options: DeriveOptions, bar: Bar) -> DerivationReport:
    """Derive from the tries of one role, or of each role. Raises `NotFound` for a role without trajectories."""
    async with warehouse_of(endpoints) as warehouse, outlet(endpoints, options.dry_run) as sink:
        tries = Tries(warehouse)
        known = await tries.roles()
        if options.role is not None:
            require_known(options.role, known)
        roles = known if options.role is None else [options.role]
        rule = RULES[options.source](options.margin)
        deriver = Deriver(tries, StoredPreferences(warehouse), sink, rule, options.max_per_task)
        return await deriver.derive(roles, bar)


async def add(endpoints: Endpoints, records: Numbered, role: str | None, dry_run: bool) -> AddReport:
    """Publish the good ones among numbered records, redacted."""
    async with warehouse_of(endpoints) as warehouse, outlet(endpoints, dry_run) as sink:
        return await _add(sink, StoredPreferences(warehouse), records, role)


async def _add(sink: Sink, stored: Known, records: Numbered, role: str | None) -> AddReport:
    report, good = AddReport(), dict[str, Preference]()
    lines: dict[str, int] = {}
    for number, record in records:
        report.records += 1
        try:
            if isinstance(record, Rejected):
                raise record
            preference, _ = redact_message(Redactor(), preference_of(record, role))
        except Rejected as error:
            report.bad.append(BadLine(number, str(error)))
            continue
        lines.setdefault(preference.preference_id, number)
        good.setdefault(preference.preference_id, preference)
    await publish(sink, stored, list(good.values()), report.done)
    report.bad += [BadLine(lines[one.preference_id], one.reason) for one in report.done.refused]
    report.bad.sort(key=lambda bad: bad.line)
    return report


def given(record: str | None, file: Path | None, said: JsonObject, about: JsonObject) -> Numbered | None:
    """The records that somebody means: of a file, of standard input (`-`), or told by options; None if unclear."""
    told = any(value is not None for value in (*said.values(), *about.values()))
    if [record is not None, file is not None, told].count(True) != 1 or record not in (None, "-"):
        return None
    if file is not None:
        return records_of(file)
    return iter([(1, {**said, "metadata": about} if told else record_of_input())])


def records_of(file: Path) -> Numbered:
    """The records of a file with their line numbers; an unreadable one is the error that says so."""
    for line in read_lines(file):
        yield line.number, line.record if line.problem is None else Rejected(line.problem)


def record_of_input() -> object:
    """The one record on standard input. Raises `Rejected`."""
    return json_in(sys.stdin.buffer.read(), "standard input")


async def newest(endpoints: Endpoints, wanted: Wanted, limit: int) -> tuple[list[Kept], list[Count]]:
    """The newest preferences, and how many there are from whom."""
    async with warehouse_of(endpoints) as warehouse:
        stored = StoredPreferences(warehouse)
        return await stored.newest(wanted, limit), await stored.counts(wanted)


async def export(endpoints: Endpoints, wanted: Wanted, file: Path, bar: Bar) -> tuple[int, int]:
    """Append what the file does not hold yet; returns how many were added, and how many it held."""
    known = _ids_in(file)
    added = present = 0
    async with warehouse_of(endpoints) as warehouse:
        stored = StoredPreferences(warehouse)
        total = sum(count.number for count in await stored.counts(wanted))
        kept = await stored.newest(wanted, PAGE)
        while kept:
            page = [one.preference for one in kept]
            fresh = [preference for preference in page if preference.preference_id not in known]
            append(file, [record_of(preference) for preference in fresh])
            known.update(preference.preference_id for preference in fresh)
            added, present = added + len(fresh), present + len(page) - len(fresh)
            bar(added + present, total)
            kept = await stored.newest(wanted, PAGE, before=kept[-1])
    return added, present


def _ids_in(file: Path) -> set[str]:
    if not file.exists():
        return set()
    records: list[Any] = [line.record for line in read_lines(file)]
    metadata = [record.get("metadata") for record in records if isinstance(record, dict)]
    return {one["preference_id"] for one in metadata if isinstance(one, dict) and "preference_id" in one}


def show_derivation(report: DerivationReport, dry_run: bool) -> None:
    """The report for people."""
    said = f"{report.tries} tries of {len(report.roles)} roles, {report.tasks} tasks tried more than once"
    console.print(f"{said}, {report.comparisons} comparisons, {report.left_out} tries left out")
    rows = [("pair", rater, number) for rater, number in sorted(report.by_rater.items())]
    rows += [("no pair", reason, number) for reason, number in sorted(report.skipped.items())]
    print_table(("outcome", "because of", "comparisons"), rows, "nothing to compare")
    for one in report.done.refused:
        console.print(f"{one.preference_id}: {one.reason}", markup=False)
    verb = "would be published" if dry_run else "published"
    console.print(f"{report.pairs} pairs: {report.done.published} {verb}, {report.done.present} already present")


def show_added(report: AddReport, dry_run: bool) -> None:
    """What was left out, then one line of counts."""
    for bad in report.bad:
        console.print(f"line {bad.line}: {bad.reason}", markup=False)
    verb = "would be published" if dry_run else "published"
    console.print(
        f"{report.done.published} of {report.records} preferences {verb}, {report.done.present} already present, "
        f"{len(report.bad)} left out"
    )


def show_newest(kept: Sequence[Kept], counts: Sequence[Count]) -> None:
    """A table of the newest, and one of the counts."""
    rows = [
        (p.preference_id, p.role, p.source, p.rater, p.confidence, one.at, brief(p.chosen), brief(p.rejected))
        for one in kept
        for p in (one.preference,)
    ]
    columns = ("preference", "role", "source", "rater", "confidence", "stored", "chosen", "rejected")
    print_table(columns, rows, "no preferences yet")
    if counts:
        console.print()
        print_table(("role", "source", "rater", "preferences"), [_row(count) for count in counts], "")


def document(kept: Sequence[Kept], counts: Sequence[Count]) -> JsonObject:
    """The same for programs, with whole texts."""
    return {
        "preferences": [{**record_of(one.preference), "stored_at": one.at} for one in kept],
        "counts": list(counts),
    }


def brief(answer: str | list[JsonObject]) -> str:
    """The last thing that an answer says, on one line."""
    said = answer if isinstance(answer, str) else _last_words(answer)
    line = " ".join(said.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def _last_words(messages: Sequence[JsonObject]) -> str:
    texts = [text_of(message.get("content")) for message in messages if message.get("role") == "assistant"]
    return next((text for text in reversed(texts) if text.strip()), "(tool calls)")


def _row(count: Count) -> tuple[str, str, str | None, int]:
    return count.role, count.source, count.rater, count.number
