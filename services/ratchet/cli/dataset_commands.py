"""`ratchet dataset`: snapshots that jobs learned from, and what a job would learn from now."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import AsJson, Directory, RoleOption
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Snapshots of training data: show, preview, export.", no_args_is_help=True)

JobOrUri = Annotated[str, typer.Argument(help="A job's id, or the s3:// uri of a snapshot's manifest.")]


def _with_ending(output: Path) -> Path:
    if output.suffix not in (".parquet", ".jsonl"):
        raise typer.BadParameter(f"{output} must end in .parquet or .jsonl")
    return output


@app.callback()
def group() -> None:
    """Snapshots of training data: show, preview, export."""


@app.command()
def show(job_or_uri: JobOrUri, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Show what a snapshot holds: filters, counts, digests, raters and sources."""
    from ratchet.cli import dataset
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json

    found = dataset.find(locate(directory), job_or_uri)
    if as_json:
        print_json({"uri": found.ref.uri, "digest": found.ref.digest, "manifest": found.manifest})
    else:
        dataset.show(found)


@app.command()
def preview(
    role: RoleOption = "default",
    algorithm: Annotated[str, typer.Option(help="sft, rloo, ppo, dpo, kto, ...: it decides on the format.")] = "sft",
    samples: Annotated[int, typer.Option(min=1, help="Most rows.")] = 1000,
    min_reward: Annotated[float | None, typer.Option(help="Only trajectories with at least this reward.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Only trajectories with at most so many turns.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Only this source, repeatable.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain, repeatable.")] = None,
    exclude_profile: Annotated[list[str] | None, typer.Option(help="Without this profile, repeatable.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this instant on.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this instant.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show what a job that starts now would take, and what it would leave out; nothing is created."""
    from ratchet.cli import dataset
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json, progress
    from ratchet.cli.training_request import dataset as asked

    wanted = asked(
        samples,
        min_reward=min_reward,
        max_trajectory_length=max_length,
        sources=source or None,
        task_domains=domain or None,
        exclude_subordinate_profiles=exclude_profile or None,
        date_range=dataset.between(since, until),
    )
    with progress("choosing rows", quiet=as_json):
        found = dataset.preview(locate(directory), role, algorithm, wanted)
    if as_json:
        print_json({"role": role, "algorithm": algorithm, "preview": found})
    else:
        dataset.show_preview(role, found)


@app.command()
def export(
    job_or_uri: JobOrUri,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Ends in .parquet or .jsonl, which decides.", callback=_with_ending)
    ],
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Write a snapshot's rows to a file, verified by digest."""
    from ratchet.cli import dataset
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_json

    endpoints = locate(directory)
    found = dataset.find(endpoints, job_or_uri)
    rows = dataset.write(endpoints, found, output)
    if as_json:
        print_json({"file": str(output), "rows": rows, "digest": found.ref.digest})
    else:
        console.print(f"{rows} rows ({found.manifest.format}) written to {output}", markup=False)
