"""`ratchet preferences`: derive, add, list and export pairs of a better and a worse answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ratchet.bus.kv import Bucket
from ratchet.bus.message import JsonObject
from ratchet.cli.api import post, require_known, require_role
from ratchet.cli.audited import record_read
from ratchet.cli.connections import ask_warehouse, connected, settings_of, warehouse_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.imports import CheckOnly
from ratchet.cli.judges import configured_judge, judge_on, named_judge
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, OptionalRole, RoleOption, json_in, options_beside
from ratchet.cli.output import Bar, console, follow_up, print_answer, print_table, progress
from ratchet.core.contract.http.jobs import RaterIn, RatersOut
from ratchet.core.contract.state import RATERS, RaterDecisions
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.errors import Rejected
from ratchet.core.preferences.adding import AddReport, add_lines
from ratchet.core.preferences.agreement import agreement
from ratchet.core.preferences.clickhouse_stored import Count, Kept, Selection, StoredPreferences
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.deriving import DerivationReport, Deriver
from ratchet.core.preferences.publishing import Sink
from ratchet.core.preferences.quarantine import QUARANTINED, Decisions, Quarantine, standing
from ratchet.core.preferences.records import Line, append, read_lines, record_of
from ratchet.core.preferences.rules import RULES
from ratchet.core.preferences.rules.base import Rule
from ratchet.core.preferences.teacher import TRIES, Teacher
from ratchet.core.rules.chat import text_of

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

app = typer.Typer(no_args_is_help=True)

Source = Literal["human", "teacher", "heuristic", "derived", "rag"]

RANKING, RANKING_CALLS = "RANKING", 10_000
"""Whose budget the questions to a `--model` count against: no role has this name. And how many there are in a day."""
PAGE = 500
"""Preferences that are read together for an export."""
NEWEST = 200_000
"""Preferences that the agreement of raters is computed over."""
SHOWN = 60
"""Characters of a text in a table."""


@app.command()
def derive(
    role: OptionalRole = None,
    source: Annotated[
        Literal["derived", "heuristic", "rag"],
        typer.Option(help="By outcome and reward, by the length of the answer, or retrieval against none."),
    ] = "derived",
    margin: Annotated[float, typer.Option(min=0, max=1, help="Smallest difference of rewards that counts.")] = 0.2,
    max_per_task: Annotated[int, typer.Option(min=1, help="Pairs of one task at most.")] = 4,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Compare tries of the same task and publish the pairs. A second time changes nothing."""
    endpoints, rule = locate(directory), RULES[source](margin)
    with progress("comparing tries", quiet=as_json) as bar:
        report = asyncio.run(derived(endpoints, rule, role, max_per_task, dry_run, bar))
    print_answer({"report": report, "dry_run": dry_run}, as_json, lambda: show_derivation(report, dry_run))
    raise typer.Exit(ExitCode.PARTLY if report.done.refused else ExitCode.DONE)


@app.command()
def rank(
    model: Annotated[
        str | None, typer.Option(help="The judge: a model of the gateway, or of --url; else the one set for --role.")
    ] = None,
    role: OptionalRole = None,
    url: Annotated[
        str | None, typer.Option(help="Another server of OpenAI's API, /v1 included; else the gateway.")
    ] = None,
    key_variable: Annotated[
        str | None,
        typer.Option(help="The environment variable with the key of --model, where it is not the gateway's."),
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Most questions to --model in a day.")] = RANKING_CALLS,
    tries: Annotated[int, typer.Option(min=2, max=32, help="Newest tries of a task that are compared.")] = TRIES,
    max_per_task: Annotated[int, typer.Option(min=1, help="Pairs of one task at most.")] = 4,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Have a judge compare tries of the same task, in both orders, and publish the pairs of which it is sure.

    No question is paid twice. A dry run asks the judge too, and publishes nothing.
    """
    endpoints = locate(directory)
    if model is not None:
        name, settings = RANKING, named_judge(model=model, url=url, api_key_env=key_variable, calls_per_day=calls)
    elif role is not None and url is None:
        name, settings = configured_judge(role)
    else:
        raise typer.BadParameter("name the judge with --model, or a --role that has one")
    with progress("asking the judge", quiet=as_json) as bar:

        async def ranked() -> DerivationReport:
            async with (
                connected(settings_of(endpoints, role)) as bus,
                judge_on(bus, endpoints, name, settings) as judge,
            ):
                return await derived(endpoints, Teacher(judge, tries), role, max_per_task, dry_run, bar)

        report = asyncio.run(ranked())
    print_answer({"report": report, "dry_run": dry_run}, as_json, lambda: show_derivation(report, dry_run))
    raise typer.Exit(ExitCode.PARTLY if report.done.refused else ExitCode.DONE)


@app.command()
def add(
    context: typer.Context,
    record: Annotated[str | None, typer.Argument(help="`-` reads one JSON record from standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="JSON lines of {prompt, chosen, rejected, metadata}.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt of both answers.")] = None,
    a: Annotated[str | None, typer.Option("--a", help="One answer.")] = None,
    b: Annotated[str | None, typer.Option("--b", help="The other answer.")] = None,
    choice: Annotated[Literal["a", "b"] | None, typer.Option(help="The better answer.")] = None,
    rater: Annotated[str | None, typer.Option(help="Who chose.")] = None,
    confidence: Annotated[float | None, typer.Option(min=0, max=1, help="0 is a guess, 1 is certain.")] = None,
    domain: Annotated[str | None, typer.Option(help="The kind of task.")] = None,
    role: OptionalRole = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Add a choice between two answers, or a file of pairs. Exit code 3: some lines were left out, each is named."""
    if record is not None or file is not None:
        beside = options_beside(context, "record", "file", "role", "dry_run")
        if beside:
            raise typer.BadParameter(f"{', '.join(beside)}: a record says that itself, what is about it in `metadata`")
    choice_made = {"prompt": prompt, "a": a, "b": b, "choice": choice}
    missing = [f"--{name}" for name, value in choice_made.items() if value is None]
    if missing and options_beside(context, "record", "file", "role", "dry_run"):
        raise typer.BadParameter(f"a choice between two answers needs {', '.join(missing)} too")
    about = {"rater": rater, "confidence": confidence, "domain": domain}
    records = given(record, file, choice_made, about)
    if records is None:
        raise typer.BadParameter("give one of `-`, --file FILE, or --prompt with --a, --b and --choice")
    report = asyncio.run(add_records(locate(directory), records, role, dry_run))
    if file is None and report.bad:
        raise Rejected(report.bad[0].reason)
    if report.bad and len(report.bad) == report.records:
        first = report.bad[0]
        raise Rejected(f"{file} has no preference in its {report.records} lines; line {first.line}: {first.reason}")
    print_answer({"report": report, "dry_run": dry_run}, as_json, lambda: show_added(report, dry_run))
    raise typer.Exit(ExitCode.PARTLY if report.bad else ExitCode.DONE)


@app.command("list")
def list_(
    role: OptionalRole = None,
    source: Annotated[Source | None, typer.Option(help="Only this source.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=10000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """The newest preferences, and how many there are by source and rater."""
    endpoints = locate(directory)
    selection = Selection(role, source)

    async def newest(warehouse: Warehouse) -> tuple[list[Kept], list[Count]]:
        stored = StoredPreferences(warehouse)
        return await stored.newest(selection, limit), await stored.counts(selection)

    record_read(endpoints, "list_preferences", role)
    kept, counts = ask_warehouse(endpoints, newest, role)
    if not counts and role is not None:
        require_role(endpoints, role)
    listed = [{**record_of(preference.preference), "stored_at": preference.at} for preference in kept]
    print_answer({"preferences": listed, "counts": counts}, as_json, lambda: show_newest(kept, counts))


@app.command()
def raters(role: RoleOption, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """How far the raters of a role agree, and whose opinions no training learns from.

    In quarantine are those who disagree with the others more than chance makes; `release` and `ban` decide otherwise.
    """
    endpoints = locate(directory)
    report = agreement(ask_warehouse(endpoints, lambda warehouse: Preferences(warehouse, NEWEST).opinions(role), role))
    if not report.questions:
        require_role(endpoints, role)
    decisions = asyncio.run(decisions_of(endpoints, role))
    standings = {judge.rater: standing(judge, decisions) for judge in report.raters}

    def show() -> None:
        known = "unknown" if report.alpha is None else f"{report.alpha:.2f} (1: perfect, 0: chance)"
        console.print(f"{report.questions} questions were judged by several raters; Krippendorff's alpha: {known}")
        rows = [
            (
                judge.rater,
                f"{judge.disagreed} of {judge.shared}",
                f"{judge.low:.2f} to {judge.high:.2f}",
                judge.is_outlier or None,
                standings[judge.rater],
            )
            for judge in report.raters
        ]
        columns = ("rater", "disagrees", "95 % interval", "outlier", "in trainings")
        print_table(columns, rows, "no question has two raters")
        for rater, decided in sorted(decisions.items()):
            console.print(f"{rater}: {decided.decision} by {decided.by} on {decided.at:%Y-%m-%d}", markup=False)
        for rater, stands in standings.items():
            if stands == QUARANTINED:
                release = follow_up("preferences", "release", rater, "--role", role, directory=directory)
                console.print(f"`{release}` lets trainings learn from {rater}", markup=False)

    document = {**asdict(report), "standings": standings, "decisions": decisions}
    print_answer(document, as_json, show)


Rater = Annotated[str, typer.Argument(help="A name, which stands for every source, or SOURCE/NAME.")]


@app.command()
def release(rater: Rater, role: RoleOption, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Let trainings learn from a rater's opinions, although it is in quarantine or was banned."""
    decide(rater, role, "released", as_json, directory)


@app.command()
def ban(rater: Rater, role: RoleOption, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Have no training learn from a rater's opinions."""
    decide(rater, role, "banned", as_json, directory)


def decide(rater: str, role: str, decision: str, as_json: bool, directory: Path) -> None:
    """Have the coordinator note a decision about a rater."""
    endpoints = locate(directory)
    require_role(endpoints, role)
    answer = post(endpoints, "coordinator", "/v1/raters", RatersOut, RaterIn(role=role, rater=rater, decision=decision))
    print_answer(answer, as_json, f"{rater} is {decision} for trainings of {role}")


async def decisions_of(endpoints: Endpoints, role: str) -> Decisions:
    """What people decided about the raters of a role."""
    async with connected(settings_of(endpoints, role)) as bus:
        return await Quarantine(Bucket(bus, RATERS, RaterDecisions)).decisions(role)


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(help="JSON lines; preferences that it holds stay, and are not written again.")
    ],
    role: OptionalRole = None,
    source: Annotated[Source | None, typer.Option(help="Only this source.")] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Append preferences to a file as {prompt, chosen, rejected, metadata}, which `add --file` reads back."""
    selection = Selection(role, source)
    with progress(f"exporting to {file.name}", quiet=as_json) as bar:
        endpoints = locate(directory)
        record_read(endpoints, "export_preferences", role)
        added, present = asyncio.run(append_new(endpoints, selection, file, bar))
    if not added + present and role is not None:
        require_role(endpoints, role)
    sentence = f"{added} preferences added to {file}, {present} were there already"
    print_answer({"file": str(file), "added": added, "present": present}, as_json, sentence)


@asynccontextmanager
async def outlet(endpoints: Endpoints, dry_run: bool, role: str | None) -> AsyncGenerator[Sink]:
    """The sink of preferences; that of a dry run checks them only."""
    if dry_run:
        yield CheckOnly()
        return
    async with connected(settings_of(endpoints, role)) as bus:
        yield bus


async def derived(
    endpoints: Endpoints, rule: Rule | Teacher, role: str | None, max_per_task: int, dry_run: bool, bar: Bar
) -> DerivationReport:
    """Derive from the tries of one role, or of each role. Raises `NotFound` for a role without trajectories."""
    async with warehouse_of(settings_of(endpoints, role)) as warehouse, outlet(endpoints, dry_run, role) as sink:
        tries = Tries(warehouse)
        known = await tries.roles()
        if role is not None:
            require_known(role, known)
        deriver = Deriver(tries, StoredPreferences(warehouse).known, sink, rule, max_per_task)
        return await deriver.derive(known if role is None else [role], bar)


async def add_records(endpoints: Endpoints, records: Iterable[Line], role: str | None, dry_run: bool) -> AddReport:
    """Publish the good ones among the records."""
    async with warehouse_of(settings_of(endpoints, role)) as warehouse, outlet(endpoints, dry_run, role) as sink:
        return await add_lines(sink, StoredPreferences(warehouse).known, records, role)


def given(
    record: str | None, file: Path | None, choice: Mapping[str, object], about: Mapping[str, object]
) -> Iterable[Line] | None:
    """The records: of a file, of standard input (`-`), or one choice by options; None unless it is one of the three."""
    chosen = any(value is not None for value in (*choice.values(), *about.values()))
    if [record is not None, file is not None, chosen].count(True) != 1 or record not in (None, "-"):
        return None
    if file is not None:
        return read_lines(file)
    if chosen:
        return [Line(1, {**choice, "metadata": about})]
    return [Line(1, json_in(sys.stdin.buffer.read(), "standard input"))]


async def append_new(endpoints: Endpoints, selection: Selection, file: Path, bar: Bar) -> tuple[int, int]:
    """Append preferences that the file lacks; returns how many were added, and how many it held."""
    known = ids_in(file)
    added = present = 0
    async with warehouse_of(settings_of(endpoints, selection.role)) as warehouse:
        stored = StoredPreferences(warehouse)
        total = sum(count.number for count in await stored.counts(selection))
        kept = await stored.newest(selection, PAGE)
        while kept:
            page = [entry.preference for entry in kept]
            fresh = [preference for preference in page if preference.preference_id not in known]
            append(file, [record_of(preference) for preference in fresh])
            known.update(preference.preference_id for preference in fresh)
            added, present = added + len(fresh), present + len(page) - len(fresh)
            bar(added + present, total)
            kept = await stored.newest(selection, PAGE, before=kept[-1])
    return added, present


def ids_in(file: Path) -> set[str]:
    """The ids of the preferences that a file holds; none if it does not exist."""
    if not file.exists():
        return set()
    records: list[Any] = [line.record for line in read_lines(file)]
    metadata = [record.get("metadata") for record in records if isinstance(record, dict)]
    return {member["preference_id"] for member in metadata if isinstance(member, dict) and "preference_id" in member}


def show_derivation(report: DerivationReport, dry_run: bool) -> None:
    """The report for people."""
    tried = f"{report.tries} tries of {len(report.roles)} roles, {report.tasks} tasks tried more than once"
    console.print(f"{tried}, {report.comparisons} comparisons, {report.left_out} tries left out")
    rows = [("pair", rater, number) for rater, number in sorted(report.by_rater.items())]
    rows += [("no pair", reason, number) for reason, number in sorted(report.skipped.items())]
    print_table(("outcome", "because of", "comparisons"), rows, "nothing to compare")
    for refused in report.done.refused:
        console.print(f"{refused.preference_id}: {refused.reason}", markup=False)
    verb = "would be published" if dry_run else "published"
    console.print(f"{report.pairs} pairs: {report.done.published} {verb}, {report.done.present} already present")


def show_added(report: AddReport, dry_run: bool) -> None:
    """The lines that were left out, then one line of counts."""
    for bad in report.bad:
        console.print(f"line {bad.line}: {bad.reason}", markup=False)
    verb = "would be published" if dry_run else "published"
    console.print(
        f"{report.done.published} of {report.records} preferences {verb}, {report.done.present} already present, "
        f"{len(report.bad)} left out"
    )


def show_newest(kept: Sequence[Kept], counts: Sequence[Count]) -> None:
    """A table of the newest, and one of the counts."""
    pairs = [(stored.preference, stored.at) for stored in kept]
    rows = [
        (p.preference_id, p.role, p.source, p.rater, p.confidence, at, brief(p.chosen), brief(p.rejected))
        for p, at in pairs
    ]
    columns = ("preference", "role", "source", "rater", "confidence", "stored", "chosen", "rejected")
    if rows or not counts:
        print_table(columns, rows, "no preferences yet")
    if counts:
        if rows:
            console.print()
        shown = [(count.role, count.source, count.rater, count.number) for count in counts]
        print_table(("role", "source", "rater", "preferences"), shown, "")


def brief(answer: str | list[JsonObject]) -> str:
    """The last text of an answer, on one line."""
    if isinstance(answer, str):
        text = answer
    else:
        texts = [text_of(message.get("content")) for message in answer if message.get("role") == "assistant"]
        text = next((text for text in reversed(texts) if text.strip()), "(tool calls)")
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
