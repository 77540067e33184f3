"""`ratchet status`: what runs, what is stored, what trains and what serves, with the reason of everything amiss."""

from __future__ import annotations

import typer

from ratchet.cli.options import AsJson, Directory
from ratchet.service.discovery import DEFAULT_DIRECTORY


def status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Show the state of the system. Exit code 3: something is not ready; 4: no stack runs."""
    import asyncio

    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.status import collect
    from ratchet.cli.status_view import show

    endpoints = locate(directory)
    endpoints.require()
    report = asyncio.run(collect(endpoints))
    if as_json:
        print_json(report)
    else:
        show(report)
    raise typer.Exit(report.exit_code)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)
