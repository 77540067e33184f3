"""`ratchet workers`: the registry of what does the sub-tasks of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer

from ratchet.cli.api import get, post, segment
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, json_file
from ratchet.cli.output import console, print_answer, print_dry_run, print_facts, print_table
from ratchet.core.contract.http.workflows import WorkerOut, WorkersOut
from ratchet.core.contract.workflows import Worker
from ratchet.core.errors import BadRequest, Rejected
from ratchet.core.rules.workers import check_worker

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A worker of `ratchet workers list`.")]


@app.command("list")
def list_workers(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the workers with their figures: those that were stated, and those that were measured."""
    answer = get(locate(directory), "workflows", "/v1/workers", WorkersOut)
    print_answer(answer, as_json, lambda: _draw(answer.workers))


@app.command("show")
def show_worker(name: Name, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show one worker, as it is registered and as its calls were."""
    answer = get(locate(directory), "workflows", f"/v1/workers/{segment(name)}", WorkerOut)
    print_answer(answer, as_json, lambda: print_facts(_facts(answer)))


@app.command("put")
def put_workers(
    file: Annotated[Path, typer.Argument(help="JSON: a worker, or a list of workers.", metavar="FILE")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Register workers, or replace those of the same names; what was measured of them stays.

    A worker has `name`, `model_type`, `capabilities`, `cost_per_token` (dollars; of a tool, for each call) and one of
    `model` (what the gateway is asked for) and `url` (a tool); `latency_ms` and `limits` may follow.
    """
    workers, endpoints = read_workers(file), locate(directory)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('workflows')}/v1/workers", {"workers": workers}, as_json)
        return
    answers = [post(endpoints, "workflows", "/v1/workers", WorkerOut, worker) for worker in workers]
    names = ", ".join(answer.worker.name for answer in answers)
    print_answer({"workers": answers}, as_json, f"registered: {names}")


@app.command("remove")
def remove_worker(name: Name, dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Take a worker out of the registry: sub-tasks that have it go on with it, no new one gets it."""
    endpoints, path = locate(directory), f"/v1/workers/{segment(name)}"
    if dry_run:
        shown = get(endpoints, "workflows", path, WorkerOut)
        print_dry_run(f"POST {endpoints.url('workflows')}{path}/remove", shown.worker, as_json)
        return
    removed = post(endpoints, "workflows", f"{path}/remove", WorkerOut)
    print_answer(removed, as_json, f"removed: {removed.worker.name}")


def read_workers(file: Path) -> list[Worker]:
    """The workers of a file. Raises `NotFound` or `Rejected`, also for a member that no worker has."""
    document = json_file(file)
    items = cast("list[object]", document if isinstance(document, list) else [document])
    if not items:
        raise Rejected(f"{file} has no worker")
    return [_worker_of(item, f"worker {place} of {file}") for place, item in enumerate(items, 1)]


def _worker_of(item: object, named: str) -> Worker:
    unknown = {*cast("dict[str, object]", item)} - {*Worker.__struct_fields__} if isinstance(item, dict) else ()
    if unknown:
        raise Rejected(f"{named} has {', '.join(sorted(unknown))}, which no worker has")
    try:
        worker = msgspec.convert(item, Worker)
        check_worker(worker)
    except (msgspec.ValidationError, BadRequest) as error:
        raise Rejected(f"{named}: {error}") from error
    return worker


def _draw(workers: Sequence[WorkerOut]) -> None:
    columns = ("worker", "type", "asks", "USD/1k tokens", "ms", "calls", "success", "USD/call", "does")
    rows = [
        (
            each.worker.name,
            each.worker.model_type,
            each.worker.model or each.worker.url,
            each.worker.cost_per_token * 1000,
            each.measured.latency_ms if each.measured else each.worker.latency_ms,
            each.measured.calls if each.measured else None,
            f"{each.measured.success:.0%}" if each.measured else None,
            each.measured.cost_usd if each.measured else None,
            ", ".join(each.worker.capabilities),
        )
        for each in workers
    ]
    print_table(columns, rows, "no workers yet: `ratchet workers put FILE` registers them")
    if any(each.measured for each in workers):
        console.print("\nms, success and USD/call are measured where there are calls", markup=False)


def _facts(answer: WorkerOut) -> dict[str, object]:
    measured: dict[str, object] | None = msgspec.to_builtins(answer.measured) if answer.measured else None
    stated: dict[str, object] = msgspec.to_builtins(answer.worker)
    limits: dict[str, object] = {
        name: getattr(answer.worker.limits, name) for name in answer.worker.limits.__struct_fields__
    }
    stated |= {
        "capabilities": ", ".join(answer.worker.capabilities),
        "cost_per_token": answer.worker.cost_per_token,
        "latency_ms": answer.worker.latency_ms,
        "limits": limits,
    }
    return {**stated, "measured": measured or "nothing yet"}
