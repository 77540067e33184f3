"""`ratchet preferences`: pairs of a better and a worse answer, derived, given, listed and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRole
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Preference pairs: derive, add, list and export them.", no_args_is_help=True)

Source = Literal["human", "teacher", "heuristic", "derived", "rag"]


@app.callback()
def group() -> None:
    """Preference pairs: derive, add, list and export them."""


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
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Compare tries of the same task and publish the pairs. A second time changes nothing."""
    import asyncio

    from ratchet.cli import preferences
    from ratchet.cli.endpoints import locate
    from ratchet.cli.exit_codes import ExitCode
    from ratchet.cli.output import print_json, progress

    options = preferences.DeriveOptions(source, role, margin, max_per_task, dry_run)
    with progress("comparing tries", quiet=as_json) as bar:
        report = asyncio.run(preferences.derive(locate(directory), options, bar))
    if as_json:
        print_json({"report": report, "dry_run": dry_run})
    else:
        preferences.show_derivation(report, dry_run)
    raise typer.Exit(ExitCode.PARTLY if report.done.refused else ExitCode.DONE)


@app.command()
def add(
    record: Annotated[str | None, typer.Argument(help="`-` reads one JSON record from standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="JSON lines of {prompt, chosen, rejected, metadata}.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What both answer.")] = None,
    a: Annotated[str | None, typer.Option("--a", help="One answer.")] = None,
    b: Annotated[str | None, typer.Option("--b", help="The other answer.")] = None,
    choice: Annotated[Literal["a", "b"] | None, typer.Option(help="The better answer.")] = None,
    rater: Annotated[str | None, typer.Option(help="Who chose.")] = None,
    confidence: Annotated[float | None, typer.Option(min=0, max=1, help="0 is a guess, 1 is certain.")] = None,
    domain: Annotated[str | None, typer.Option(help="What kind of task it is.")] = None,
    role: OptionalRole = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Add a choice between two answers, or a file of pairs. Exit code 3: some lines were left out, each is named."""
    import asyncio

    from ratchet.cli import preferences
    from ratchet.cli.endpoints import locate
    from ratchet.cli.exit_codes import ExitCode
    from ratchet.cli.output import print_json
    from ratchet.errors import Rejected

    said = {"prompt": prompt, "a": a, "b": b, "choice": choice}
    about = {"rater": rater, "confidence": confidence, "domain": domain}
    records = preferences.given(record, file, said, about)
    if records is None:
        raise typer.BadParameter("give one of `-`, --file FILE, or --prompt with --a, --b and --choice")
    report = asyncio.run(preferences.add(locate(directory), records, role, dry_run))
    if file is None and report.bad:
        raise Rejected(report.bad[0].reason)
    if as_json:
        print_json({"report": report, "dry_run": dry_run})
    else:
        preferences.show_added(report, dry_run)
    raise typer.Exit(ExitCode.PARTLY if report.bad else ExitCode.DONE)


@app.command("list")
def list_(
    role: OptionalRole = None,
    source: Annotated[Source | None, typer.Option(help="Only this source.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=10000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """The newest preferences, and how many there are by source and rater."""
    import asyncio

    from ratchet.cli import preferences
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.roles import require_role

    endpoints = locate(directory)
    kept, counts = asyncio.run(preferences.newest(endpoints, preferences.Wanted(role, source), limit))
    if not counts and role is not None:
        require_role(endpoints, role)
    if as_json:
        print_json(preferences.document(kept, counts))
    else:
        preferences.show_newest(kept, counts)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="JSON lines; what it holds already stays and is not written again.")],
    role: OptionalRole = None,
    source: Annotated[Source | None, typer.Option(help="Only this source.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Append preferences to a file as {prompt, chosen, rejected, metadata}, which `add --file` reads back."""
    import asyncio

    from ratchet.cli import preferences
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_json, progress

    wanted = preferences.Wanted(role, source)
    with progress(f"exporting to {file.name}", quiet=as_json) as bar:
        added, present = asyncio.run(preferences.export(locate(directory), wanted, file, bar))
    if as_json:
        print_json({"file": str(file), "added": added, "present": present})
    else:
        console.print(f"{added} preferences added to {file}, {present} were there already", markup=False)
