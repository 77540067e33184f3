"""The data of planners: executions are exported, collected by templates, made into training sets, and compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import urlencode

import msgspec
import typer
import uuid_utils

from ratchet.bus.message import JsonObject, decode
from ratchet.cli.api import get, post, segment
from ratchet.cli.collecting import (
    SHARE,
    Collected,
    Collection,
    Run,
    Service,
    collect as go_on,
    read_collected,
    read_templates,
)
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleOption
from ratchet.cli.output import errors, print_answer, print_dry_run, print_table, progress
from ratchet.core.contract.http.workflows import ExecutionsOut, WorkflowIn, WorkflowOut
from ratchet.core.contract.workflows import PLANNER_ROLE, WorkflowExecution
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.planning.dataset import TrainingRow, augmented, prepared
from ratchet.core.planning.measures import Measures, measured
from ratchet.core.service.files import staged

PAGE = 50
"""Executions of a request."""

To = Annotated[Path, typer.Option("--to", help="The file; an existing one is replaced at the end.")]
Logs = Annotated[Path, typer.Argument(help="What `ratchet workflows export` wrote.", metavar="LOGS")]


def export(
    to: To,
    role: RoleOption = PLANNER_ROLE,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Write the executions of a role as JSONL, failures too, oldest first.

    A line has timestamp, instruction, success, cost, latency_ms, plan and result, then all else of the execution.
    """
    endpoints, count = locate(directory), 0
    with progress(f"exporting to {to.name}", quiet=as_json) as bar, staged(to) as path, path.open("wb") as file:
        for execution in executions_of(endpoints, role):
            file.write(msgspec.json.encode(log_line(execution)) + b"\n")
            count += 1
            bar(count)
    print_answer({"file": str(to), "executions": count}, as_json, f"{count} executions written to {to}")


def executions_of(endpoints: Endpoints, role: str) -> Iterator[JsonObject]:
    """Those that are stored, page by page."""
    after: str | None = None
    while True:
        query = urlencode({"role": role, "limit": PAGE} | ({"after": after} if after is not None else {}))
        page = get(endpoints, "coordinator", f"/v1/workflows/executions?{query}", ExecutionsOut)
        yield from page.executions
        after = page.next
        if after is None:
            return


def log_line(execution: JsonObject) -> dict[str, object]:
    """A line of the log: what every reader looks for first, then all of the execution."""
    first = {
        "timestamp": execution.get("timestamp"),
        "instruction": execution.get("instruction"),
        "success": execution.get("success"),
        "cost": execution.get("cost_usd"),
        "latency_ms": execution.get("latency_ms"),
        "plan": execution.get("plan"),
        "result": execution.get("result"),
    }
    return {**first, **execution}


def collect(
    templates: Annotated[
        Path,
        typer.Option(
            help='JSONL: {"instruction": "Summarise {topic}", "values": {"topic": ["tides", "bees"]}, "inputs": {}}.'
        ),
    ],
    budget: Annotated[
        float, typer.Option(min=0, help="US dollars for all workflows: none starts that could exceed it.")
    ],
    count: Annotated[int, typer.Option("--n", min=1, help="How many workflows.")] = 200,
    each: Annotated[
        float | None, typer.Option(min=0, help="Budget of a workflow; four times its share when absent.")
    ] = None,
    role: RoleOption = PLANNER_ROLE,
    name: Annotated[
        str | None,
        typer.Option(help="Of the run: the same name goes on where it stopped. By default that of the templates."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The run's file, a line for each workflow; NAME.jsonl when absent.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Run many instructions, made of templates, so that a planner has something to learn from.

    The same command goes on after Ctrl-C or a crash: no workflow is run twice. Exit code 3: the budget was too small
    for all of them.
    """
    if budget == 0 or each == 0:
        raise typer.BadParameter("--budget and --each must be above 0")
    read, own_name = read_templates(templates)
    each_usd = min(budget, each if each is not None else SHARE * budget / count)
    run = Run(name or own_name, count, role, budget, each_usd, read)
    endpoints, path = locate(directory), to or Path(f"{name or own_name}.jsonl")
    if dry_run:
        print_dry_run(f"POST {endpoints.url('workflows')}/v1/workflows", run.workflow(0), as_json)
        return
    collection = read_collected(path, run)
    _collect(collection, endpoints, path, quiet=as_json)
    done = {"run": run.name, "file": str(path), "workflows": len(collection.ended), "cost_usd": collection.spent_usd}
    capped = len(collection.ended) < count
    states = dict(Counter(workflow.state for workflow in collection.ended.values()))
    words = f"{collection.note}; {path} lists them{': the budget has no room for more' if capped else ''}"
    print_answer({**done, "states": states, "capped": capped}, as_json, words)
    if capped:
        raise typer.Exit(ExitCode.PARTLY)


def _collect(collection: Collection, endpoints: Endpoints, path: Path, *, quiet: bool) -> None:
    def start(workflow: WorkflowIn) -> WorkflowOut:
        return post(endpoints, "workflows", "/v1/workflows", WorkflowOut, workflow)

    def new_id() -> str:
        return str(uuid_utils.uuid7())

    def read(workflow_id: str) -> WorkflowOut:
        return get(endpoints, "workflows", f"/v1/workflows/{segment(workflow_id)}", WorkflowOut)

    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")  # by a crash in mid-line
    with path.open("ab") as file, progress("collecting", quiet=quiet) as bar:
        file.write(b"\n" if cut_off else b"")

        def keep(one: Collected) -> None:
            file.write(msgspec.json.encode(one) + b"\n")
            file.flush()

        def show(seen: Collection) -> None:
            bar(len(seen.ended), seen.run.count, seen.note)

        try:
            go_on(collection, Service(start, read, new_id), keep, show)
        except KeyboardInterrupt:
            errors.print(f"{collection.note}: the same command goes on from here", markup=False)
            raise


def prepare(logs: Logs, to: To, as_json: AsJson = False) -> None:
    """Make a training set of logged executions: types, dependencies, choices with their propensities, and rewards.

    Nothing is made up: an execution that lacks something is left out, and counted by its reason. Exit code 3: some are.
    """
    left_out, count = Counter[str](), 0
    with _lines(logs) as lines, staged(to) as path, path.open("wb") as file:
        for row in prepared(lines, left_out):
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
    reasons = "".join(f"\nleft out: {number}, {reason}" for reason, number in left_out.most_common())
    document = {"file": str(to), "rows": count, "left_out": dict(left_out)}
    print_answer(document, as_json, f"{count} rows written to {to}{reasons}")
    if left_out:
        raise typer.Exit(ExitCode.PARTLY)


def augment(
    rows: Annotated[Path, typer.Argument(help="A training set of `ratchet workflows prepare`.", metavar="FILE")],
    to: To,
    times: Annotated[int, typer.Option(min=1, max=100, help="Most variants of a row.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws the variants.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a training set and variants of its rows: other orders that respect dependencies, and other workers.

    A substitute is capable, and marked as one that was never asked: it has no propensity, cost or latency, and no
    learner that corrects by propensities may use it.
    """
    made = count = 0
    drawn = random.Random(seed)
    with _lines(rows) as lines, staged(to) as path, path.open("wb") as file:
        for place, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = _row(line, f"line {place} of {rows}")
            variants = [] if row.is_augmented else list(augmented(row, times, drawn))
            for each in (row, *variants):
                file.write(msgspec.json.encode(each) + b"\n")
            count, made = count + 1, made + len(variants)
    document = {"file": str(to), "rows": count, "variants": made}
    print_answer(document, as_json, f"{count} rows and {made} variants of them written to {to}")


def _row(line: bytes, named: str) -> TrainingRow:
    try:
        return decode(line, TrainingRow)
    except msgspec.DecodeError as error:
        raise Rejected(f"{named} is not a row of a training set: {error}") from error


def evaluate(
    logs: Annotated[
        Path | None, typer.Argument(help="What `ratchet workflows export` wrote.", metavar="LOGS", show_default=False)
    ] = None,
    simulator: Annotated[
        Path | None, typer.Option("--simulator", metavar="PLANNER", help="Instead of a log: a planner's file to play.")
    ] = None,
    count: Annotated[int, typer.Option("--n", min=1, max=100_000, help="With --simulator: workflows of each.")] = 500,
    seed: Annotated[int, typer.Option(help="With --simulator: draws its world.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare planners: success rate, cost, latency, cost of a success, and valid plans.

    Of a log there is one row for each policy; plans that the language model made in the model's place are a row of
    their own. The simulator of eight workers shows a planner beside fixed, random and cheapest choices and the best
    single worker on the same plans, and beside the benchmarks' true plans with random workers: it says nothing of your
    own workers.
    """
    if (logs is None) == (simulator is None):
        raise typer.BadParameter("name one of LOGS and --simulator")
    rows = measured(_executions(logs)) if logs is not None else _simulated(simulator or Path(), count, seed)
    print_answer({"planners": rows}, as_json, lambda: draw_measures(rows))


def _executions(logs: Path) -> list[WorkflowExecution]:
    with _lines(logs) as lines:
        return [_execution(line, f"line {place} of {logs}") for place, line in enumerate(lines, 1) if line.strip()]


def _simulated(file: Path, count: int, seed: int) -> list[Measures]:
    from ratchet.core.planning.baselines import compared  # noqa: PLC0415 - numpy takes a while
    from ratchet.core.planning.files import load_planner  # noqa: PLC0415 - as above

    with _lines(file) as opened:
        planner = load_planner(opened.read())
    return compared(planner, count, seed)


def draw_measures(rows: Sequence[Measures]) -> None:
    """A line for each planner."""
    columns = ("planner", "executions", "success", "USD", "ms", "USD/success", "valid")
    lines = [
        (
            row.policy,
            row.executions,
            f"{row.success_rate:.1%}",
            row.cost_usd,
            row.latency_ms,
            row.cost_per_success_usd,
            f"{row.validity:.1%}",
        )
        for row in rows
    ]
    print_table(columns, lines, "no executions")


def _execution(line: bytes, named: str) -> WorkflowExecution:
    try:
        return decode(line, WorkflowExecution)
    except msgspec.DecodeError as error:
        raise Rejected(f"{named} is not an execution: {error}") from error


@contextmanager
def _lines(path: Path) -> Generator[IO[bytes]]:
    """The lines of a file. Raises `NotFound`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file
