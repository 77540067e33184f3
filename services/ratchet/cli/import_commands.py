"""`ratchet import`: logged trajectories of other systems, one sub-command for each format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, AsJson, Directory

app = typer.Typer(help="Import logged trajectories. Importing twice changes nothing.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Import logged trajectories. Importing twice changes nothing."""


@app.command("tau-bench")
def tau_bench(
    file: Annotated[Path, typer.Argument(help="A JSON list, or JSON lines, of tau-bench results.")],
    role: Annotated[str, typer.Option(help="Role of the trajectories.")] = "default",
    model: Annotated[str, typer.Option(help="The model that played them; the format does not say.")] = "unknown",
    domain: Annotated[str | None, typer.Option(help="Domain; by default read from the system prompt.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Import tau-bench results. Exit code 3: some records were malformed and left out, each is named."""
    import asyncio

    from ratchet.cli.broker import connected
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_json
    from ratchet.importers.report import ImportReport
    from ratchet.importers.tau_bench import ImportOptions, import_tau_bench

    async def work() -> ImportReport:
        async with connected(locate(directory).kernel) as bus:
            return await import_tau_bench(bus, file, ImportOptions(role=role, model=model, domain=domain))

    report = asyncio.run(work())
    if as_json:
        print_json(report)
    else:
        for one in report.malformed:
            console.print(f"record {one.index}: {one.reason}", markup=False)
        redacted = "".join(f", {count} {kind} redacted" for kind, count in sorted(report.redactions.items()))
        repeated = f", {report.repeated} repeated" if report.repeated else ""
        console.print(
            f"{report.published} of {report.records} records published, "
            f"{len(report.malformed)} malformed{repeated}{redacted}"
        )
    raise typer.Exit(3 if report.malformed else 0)
