"""`ratchet trajectories`: what agents did, and what it was worth."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ratchet.cli.options import AsJson, Directory, OptionalRole, TrajectoryArgument
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Trajectories: list them, or show one with its rewards.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Trajectories: list them, or show one with its rewards."""


@app.command("list")
def list_(
    role: OptionalRole = None,
    outcome: Annotated[
        Literal["success", "partial", "failure", "none"] | None, typer.Option(help="Only with this outcome.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """The newest trajectories, each with its newest reward."""
    import asyncio

    from ratchet.cli import trajectories
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.roles import require_role

    endpoints = locate(directory)
    found = asyncio.run(trajectories.newest(endpoints, role, outcome, limit))
    if not found and role is not None:
        require_role(endpoints, role)
    if as_json:
        print_json({"trajectories": found})
    else:
        trajectories.show_list(found, "no such trajectories" if role or outcome else "no trajectories yet")


@app.command()
def show(
    trajectory_id: TrajectoryArgument,
    full: Annotated[bool, typer.Option("--full", help="Show long turns whole.")] = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """One trajectory: what was said, how it ended, every revision of its reward, and what people said."""
    import asyncio

    from ratchet.cli import trajectories
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json

    whole = asyncio.run(trajectories.read(locate(directory), trajectory_id))
    if as_json:
        print_json(whole)
    else:
        trajectories.show_one(whole, full=full)
