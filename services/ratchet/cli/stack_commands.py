"""`ratchet up`, `ratchet down` and `ratchet env`: the local stack, and the way to it for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.options import AsJson, Directory, DryRun
from ratchet.service.discovery import DEFAULT_DIRECTORY


def up(
    directory: Directory = DEFAULT_DIRECTORY,
    port: Annotated[
        list[str] | None, typer.Option("--port", help="NAME=PORT, repeatable; also RATCHET_PORT_NAME=PORT.")
    ] = None,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Use any free ports instead of the usual.")] = False,
    only: Annotated[str, typer.Option("--only", help="Start only these, separated by commas.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Start in the background and return when ready.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start the servers and all services on this machine; Ctrl-C stops them in order."""
    import os
    from dataclasses import replace

    from ratchet.errors import ConfigError
    from ratchet.local_stack.settings import StackSettings, ports_of_environment, ports_of_options

    settings = StackSettings(directory, ports_of_environment(os.environ), free_ports)
    members = tuple(name.strip() for name in only.split(",") if name.strip())
    try:
        settings = replace(settings, ports={**settings.ports, **ports_of_options(port or [])}, only=members)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if dry_run or detach:
        from ratchet.cli.background import show_plan, start_background

        (show_plan if dry_run else start_background)(settings, as_json)
        return
    from ratchet.cli.foreground import run_foreground

    raise typer.Exit(run_foreground(settings, as_json=as_json))


def down(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Stop a stack, wherever it was started, and what a killed supervisor has left. Exit code 4: there is none."""
    from ratchet.cli.background import stop_stack

    stop_stack(directory, as_json)


def env(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Print the variables that lead to the running stack, passwords included: `eval "$(ratchet env)"` sets them."""
    import shlex
    import sys

    from ratchet.cli.endpoints import locate
    from ratchet.cli.exit_codes import NoStack
    from ratchet.cli.output import print_json

    endpoints = locate(directory)
    if endpoints.record is None:
        raise NoStack(endpoints.absence())
    if as_json:
        print_json(endpoints.record.env)
        return
    for name, value in endpoints.record.env.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(env)
