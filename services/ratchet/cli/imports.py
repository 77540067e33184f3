"""`ratchet import`: logged trajectories of other systems, a sub-command for each format, one for own functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import msgspec
import typer

from ratchet.cli.connections import connected, settings_of, warehouse_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleOption, with_options
from ratchet.cli.output import console, errors, print_answer, progress
from ratchet.core.contract import Message
from ratchet.core.errors import WarehouseUnavailable
from ratchet.core.evaluation.task_files import parse_tasks
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.files import write_whole
from ratchet.core.stores.bundle_files import write_folder
from ratchet.core.stores.history import History
from ratchet.extras.importers import IMPORTERS
from ratchet.extras.importers.base import UNKNOWN_TIME, Importer, ImportOptions
from ratchet.extras.importers.importing import ImportReport, RolesOf, Sink, import_file
from ratchet.extras.importers.openai_evals import Converted, tasks_of
from ratchet.extras.importers.openai_prompts import bundles_of
from ratchet.extras.importers.own import importer_of
from ratchet.extras.importers.reading import Record, Records

app = typer.Typer(no_args_is_help=True)

Import = Callable[[Sink, RolesOf | None], Awaitable[ImportReport]]
"""One format's import."""


File = Annotated[
    Path,
    typer.Argument(help="A file, or a folder of them: JSON lines, JSON, Parquet or Arrow, JSON also as .gz."),
]
Model = Annotated[str, typer.Option(help="The model that played them, where the file does not say.")]
Domain = Annotated[str | None, typer.Option(help="Their domain; tau-bench's is read from the system prompt.")]
OutcomeOption = Annotated[
    str | None,
    typer.Option(help="The score, from 0 to 1, that is the verified outcome; without it scores stay labels."),
]
JudgedBy = Annotated[
    Literal["teacher", "human"],
    typer.Option(help="Who chose between the answers of pairs; the file does not say."),
]


def options_of(
    role: RoleOption = "default",
    model: Model = "unknown",
    domain: Domain = None,
    outcome: OutcomeOption = None,
    judged_by: JudgedBy = "teacher",
) -> ImportOptions:
    """What the file does not say."""
    return ImportOptions(role=role, model=model, domain=domain, outcome=outcome, judged_by=judged_by)


with_import_options = with_options("options", options_of)


def _add_command(name: str) -> None:
    """Add the command for one format; all of them have the same options."""

    def command(
        file: File,
        options: ImportOptions,
        dry_run: DryRun = False,
        as_json: AsJson = False,
        directory: Directory = HERE,
    ) -> None:
        _import(IMPORTERS[name], file, options, locate(directory), dry_run=dry_run, as_json=as_json)

    description = f"Import {IMPORTERS.describe(name)}. Exit code 3: some records were left out, each is named."
    app.command(name, help=description)(with_import_options(command))


for _name in IMPORTERS:
    _add_command(_name)


@app.command("python")
@with_import_options
def by_function(
    function: Annotated[str, typer.Argument(help="FILE.py:FUNCTION or package.module:FUNCTION.")],
    file: File,
    options: ImportOptions,
    group_by: Annotated[
        str | None,
        typer.Option(help="A member of the records: the function gets all records together that are equal in it."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="The system whose ids the records have; without it the names of file and function."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Import any format by a function of your own: record in, conversation out. Exit code 3: some were left out."""
    importer = importer_of(function, group_by, source)
    _import(importer, file, options, locate(directory), dry_run=dry_run, as_json=as_json)


Output = Annotated[Path, typer.Option("--output", "-o", help="The task file.")]
Files = Annotated[
    list[Path], typer.Argument(help="Exported files, or folders of them: JSON, JSON lines, each also as .gz.")
]


@app.command("openai-evals")
def openai_evals(
    files: Files,
    output: Output = Path("tasks.jsonl"),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make tasks with graders of an OpenAI eval and its runs, or of a grader and data for reinforcement fine-tuning.

    Only string checks have a counterpart. Exit code 3: something has none; each is listed with its count.
    """
    _convert_tasks(files, output, dry_run=dry_run, as_json=as_json)


@app.command("openai-fine-tuning")
@with_import_options
def openai_fine_tuning(
    file: File,
    options: ImportOptions,
    grader: Annotated[
        Path | None,
        typer.Option(help="Of data for reinforcement, which becomes tasks: the job's grader, or the job, as JSON."),
    ] = None,
    output: Output = Path("tasks.jsonl"),
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Import OpenAI's fine-tuning files: examples and preferences as `openai-chat` does; with --grader, tasks.

    Exit code 3: something was left out or has no counterpart, which is listed.
    """
    if grader is not None:
        _convert_tasks([grader, file], output, dry_run=dry_run, as_json=as_json)
    _import(IMPORTERS["openai-chat"], file, options, locate(directory), dry_run=dry_run, as_json=as_json)


def _convert_tasks(files: Sequence[Path], output: Path, *, dry_run: bool, as_json: bool) -> NoReturn:
    made = tasks_of(_records(files))
    content = b"".join(msgspec.json.encode(task) + b"\n" for task in made.tasks.values())
    if made.tasks:
        parse_tasks(content, "the export")  # raises where `ratchet eval` would not take it
        if not dry_run:
            write_whole(output, content)
    _end_conversion(made, len(made.tasks), f"tasks in {output}", dry_run=dry_run, as_json=as_json)


@app.command("openai-prompts")
def openai_prompts(
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder, of a folder for each prompt.")] = Path(
        "prompts"
    ),
    upstream: Annotated[str, typer.Option(help="The upstream that has the prompts' models.")] = "openai",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make bundles of stored prompts of OpenAI's, as folders that `ratchet bundles apply` takes.

    Exit code 3: something has no counterpart; each is listed with its count.
    """
    made = bundles_of(_records(files), upstream)
    for name, bundle in made.bundles.items() if not dry_run else ():
        write_folder(bundle, output / name)
    named = f" ({', '.join(made.bundles)})" if made.bundles else ""
    _end_conversion(made, len(made.bundles), f"bundles{named} in {output}", dry_run=dry_run, as_json=as_json)


def _records(files: Sequence[Path]) -> Iterator[Record]:
    return chain.from_iterable(map(Records, files))


def _end_conversion(made: Converted, count: int, what: str, *, dry_run: bool, as_json: bool) -> NoReturn:
    """Print what files became and what was left out, and end the command."""
    counts = {"left_out": dict(made.left_out), "redactions": dict(made.redactions)}

    def show() -> None:
        for reason, times in made.left_out.most_common():
            console.print(f"left out, {times}: {reason}", markup=False)
        for kind, times in sorted(made.redactions.items()):
            console.print(f"secrets or personal data redacted ({kind}): {times}", markup=False)
        console.print(f"{count} {what}{', of which nothing was written' if dry_run else ''}", markup=False)

    print_answer({"made": count, **counts, "dry_run": dry_run}, as_json, show)
    raise typer.Exit(ExitCode.PARTLY if made.left_out else ExitCode.DONE)


def _import(
    importer: Importer, file: Path, options: ImportOptions, endpoints: Endpoints, *, dry_run: bool, as_json: bool
) -> NoReturn:
    """Import, print the report, and end the command."""
    with progress(f"importing {file.name}", quiet=as_json) as bar:

        def work(sink: Sink, roles_of: RolesOf | None) -> Awaitable[ImportReport]:
            return import_file(importer, sink, file, options, roles_of, bar)

        done = asyncio.run(run_import(endpoints, work, dry_run))
    if done.unchecked is not None:
        errors.print(f"stored trajectories were not looked up: {done.unchecked}", markup=False)
    print_answer(done.document(), as_json, done.show)
    raise typer.Exit(ExitCode.PARTLY if done.left_out else ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class Imported:
    """A finished import."""

    report: ImportReport
    dry_run: bool
    unchecked: str | None
    """Why stored trajectories were not looked up; None when they were."""

    @property
    def left_out(self) -> bool:
        """Whether records of the file are missing in the role, and will stay so."""
        return bool(self.report.malformed or self.report.elsewhere)

    def document(self) -> dict[str, object]:
        """The report for programs."""
        report: dict[str, object] = msgspec.to_builtins(self.report)
        return {**report, "present": None if self.unchecked else self.report.present, "dry_run": self.dry_run}

    def show(self) -> None:
        """The report for people: the records left out, then one line of counts."""
        report = self.report
        places: dict[str, list[str]] = {}
        for record in report.malformed:
            places.setdefault(record.reason, []).append(record.where)
        for reason, (first, *others) in places.items():
            more = f" and {len(others)} more" if others else ""
            console.print(f"{first}{more}: {reason}", markup=False)
        if report.more_malformed:
            console.print(f"{report.more_malformed} more are malformed", markup=False)
        for role, count in sorted(report.elsewhere.items()):
            console.print(f"{count} records are stored under the role {role} and stay there", markup=False)
        numbers = {
            "malformed": len(report.malformed) + report.more_malformed,
            "already present": report.present,
            "repeated (equal conversations count once, by the first one's scores)": report.repeated,
            f"without a time (listed under {UNKNOWN_TIME:%Y-%m-%d})": report.undated,
            **{
                f"secrets or personal data redacted ({kind})": count
                for kind, count in sorted(report.redactions.items())
            },
        }
        counts = "".join(f", {count} {kind}" for kind, count in numbers.items() if count or kind == "malformed")
        verb = "would be published" if self.dry_run else "published"
        trajectories = report.published - report.preferences
        made = [f"{trajectories} trajectories"] if trajectories or not report.preferences else []
        made += [f"{report.preferences} preferences"] if report.preferences else []
        console.print(f"{' and '.join(made)} of {report.records} records {verb}{counts}")


class CheckOnly:
    """A sink for dry runs: refuses the messages that the bus would refuse, and publishes none."""

    def __init__(self) -> None:
        self._contracts = load_contracts()

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """Raise `InvalidMessage` for a message that breaks its contract."""
        for message in messages:
            self._contracts.check_strict(message)


async def run_import(endpoints: Endpoints, work: Import, dry_run: bool) -> Imported:
    """Import; a dry run publishes nothing. Raises `NoStack` and `BusUnavailable`, unless it is a dry run."""
    if dry_run and not endpoints.known:
        return Imported(await work(CheckOnly(), None), dry_run, endpoints.absence())
    settings = settings_of(endpoints)
    roles_of: RolesOf | None = None
    unchecked = None
    async with AsyncExitStack() as stack:
        try:
            roles_of = History(await stack.enter_async_context(warehouse_of(settings))).roles_of
        except WarehouseUnavailable as error:  # it need not be there: nothing is ever stored twice
            unchecked = str(error)
        sink = CheckOnly() if dry_run else await stack.enter_async_context(connected(settings))
        return Imported(await work(sink, roles_of), dry_run, unchecked)
