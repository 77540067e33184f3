"""`ratchet import`: logged trajectories of other systems, one sub-command for each format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import AsJson, Directory, DryRun, RoleOption
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Import logged trajectories. Importing twice changes nothing.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Import logged trajectories. Importing twice changes nothing."""


@app.command("tau-bench")
def tau_bench(
    file: Annotated[Path, typer.Argument(help="A JSON list, or JSON lines, of tau-bench results.")],
    role: RoleOption = "default",
    model: Annotated[str, typer.Option(help="The model that played them; the format does not say.")] = "unknown",
    domain: Annotated[str | None, typer.Option(help="Domain; by default read from the system prompt.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Import tau-bench results. Exit code 3: some records were left out, each is named."""
    import asyncio

    from ratchet.cli.endpoints import locate
    from ratchet.cli.exit_codes import ExitCode
    from ratchet.cli.imports import run_import
    from ratchet.cli.output import errors, print_json, progress
    from ratchet.importers.base import ImportOptions
    from ratchet.importers.importing import import_file
    from ratchet.importers.tau_bench import TAU_BENCH

    options = ImportOptions(role=role, model=model, domain=domain)
    with progress(f"importing {file.name}", quiet=as_json) as bar:
        done = asyncio.run(
            run_import(
                locate(directory), lambda to, stored: import_file(TAU_BENCH, to, file, options, stored, bar), dry_run
            )
        )
    if done.unchecked is not None:
        errors.print(f"what is stored already was not looked up: {done.unchecked}", markup=False)
    if as_json:
        print_json(done.document())
    else:
        done.show()
    raise typer.Exit(ExitCode.PARTLY if done.left_out else ExitCode.DONE)
