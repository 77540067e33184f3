"""`ratchet up`, `ratchet down` and `ratchet env`: the local stack, and its addresses for other programs."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.endpoints import locate
from ratchet.cli.exit_codes import ExitCode, NoStack
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import console, errors, follow_up, print_json, print_table, progress
from ratchet.cli.started import how_far, started_document, where_to_go
from ratchet.core.errors import ConfigError, RatchetError, Unavailable
from ratchet.core.service.settings_file import find_file
from ratchet.local.local_stack.log_files import log_tail
from ratchet.local.local_stack.member import WELL
from ratchet.local.local_stack.orphans import end_orphans, is_running
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.providers import UPSTREAMS, where_the_key_goes
from ratchet.local.local_stack.settings import StackSettings, ports_of_environment, ports_of_options
from ratchet.local.local_stack.state import StackRecord, already_running, read_record, remove_record, stack_lock

app = typer.Typer()

POLL_S = 0.2
SLACK_S = 10.0
"""How much longer than the members' own deadlines a stop may take."""


@app.command()
def up(
    directory: Directory = HERE,
    port: Annotated[
        list[str] | None,
        typer.Option("--port", help="NAME=PORT, NAME as in `ratchet status`; repeatable; also RATCHET_PORT_NAME=PORT."),
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Use free ports in the place of the usual ones.")
    ] = False,
    only: Annotated[str, typer.Option("--only", help="Start only these, separated by commas.")] = "",
    upstream: Annotated[
        str,
        typer.Option(
            metavar="PROVIDER",
            help="Answer by `openai`, by `anthropic`, or by the server at a URL, while a role has no policy.",
        ),
    ] = "",
    mlflow: Annotated[
        Path | None,
        typer.Option(help="Run this program as an MLflow server, and the experiment tracker: .mlflow/bin/mlflow."),
    ] = None,
    workflows: Annotated[bool, typer.Option("--workflows", help="Plan and run workflows, too.")] = False,
    analyst: Annotated[
        bool, typer.Option("--analyst", help="Look for what goes wrong, and plan changes, too.")
    ] = False,
    gateways: Annotated[
        int | None, typer.Option(min=1, max=16, help="Gateways on one port, for one core each (Linux); else 1.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start in the background and return when ready.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start the servers and services on this machine; Ctrl-C stops them in order.

    The engine and the workers start when a job or a policy first needs them, or at once with `--only`. The ports stay
    those of the last start. Exit code 3 with `--detach`: something is not ready.
    """
    from ratchet.local.local_stack.configuration import StackTable, stack_table  # noqa: PLC0415 - `down` and `env` read no settings

    file = find_file(os.environ)
    try:
        table = stack_table(file)
    except ConfigError:  # reported with all else that keeps the stack from starting
        table = StackTable()
    ports = {**table.ports, **ports_of_environment(os.environ)}
    settings = StackSettings(
        directory,
        ports,
        free_ports or table.free_ports,
        table.only,
        mlflow or table.mlflow,
        upstream=upstream or table.upstream,
        workflows=workflows or table.workflows,
        analyst=analyst or table.analyst,
        file=file,
        gateways=gateways or table.gateways,
    )
    members = tuple(name.strip() for name in only.split(",") if name.strip())
    try:
        settings = replace(settings, ports={**ports, **ports_of_options(port or [])}, only=members or settings.only)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    for line in _notices(settings):
        errors.print(line, markup=False)
    if dry_run:
        show_plan(settings, as_json)
    elif detach:
        start_background(settings, as_json)
    else:
        from ratchet.cli.foreground import Foreground  # noqa: PLC0415 - only what supervises needs the servers' libraries

        raise typer.Exit(asyncio.run(Foreground(settings, as_json).run()))


@app.command()
def down(directory: Directory = HERE, as_json: AsJson = False) -> None:
    """Stop a stack, wherever it was started, and the rest of one that was killed. Exit code 4: no stack runs."""
    stop_stack(directory, as_json)


@app.command()
def env(directory: Directory = HERE, as_json: AsJson = False) -> None:
    """Print the variables that lead to the running stack, passwords included: `eval "$(ratchet env)"` sets them."""
    endpoints = locate(directory)
    if endpoints.record is None:
        raise NoStack(endpoints.absence())
    # The upstreams are the gateway's alone: a next `ratchet up --upstream` in this shell would find them given twice.
    addresses = {name: value for name, value in endpoints.record.env.items() if name != UPSTREAMS}
    if as_json:
        print_json(addresses)
        return
    for name, value in addresses.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def show_plan(settings: StackSettings, as_json: bool) -> None:
    """Show the members that `up` would start. Raises the errors of `up`."""
    programs = _checked(settings)
    if as_json:
        members = {program.name: {"url": program.url, "command": program.command} for program in programs}
        print_json({"dry_run": True, "action": "start", "directory": str(settings.directory), "services": members})
        return
    console.print(f"would start in {settings.directory}", markup=False)
    print_table(("", "url"), [(program.name, program.url) for program in programs], "nothing")


def start_background(settings: StackSettings, as_json: bool) -> None:
    """Start a supervisor in the background; return when every member is ready. Raises `Unavailable` when it ends."""
    directory, members = settings.directory, _checked(settings)
    log = directory / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ratchet.cli", "up", "--dir", str(directory)]
    command += [part for name, port in settings.ports.items() for part in ("--port", f"{name}={port}")]
    command += ["--free-ports"] if settings.free_ports else []
    command += ["--only", ",".join(settings.only)] if settings.only else []
    command += ["--upstream", settings.upstream] if settings.upstream else []
    command += ["--gateways", str(settings.gateways)] if settings.gateways > 1 else []
    command += ["--mlflow", str(settings.mlflow)] if settings.mlflow else []
    command += ["--workflows"] if settings.workflows else []
    command += ["--analyst"] if settings.analyst else []
    with log.open("ab") as output:  # a refused second start must not cut off the first one's log
        begin = output.seek(0, os.SEEK_END)
        supervisor = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with progress("starting", quiet=as_json) as bar:
        while (record := read_record(directory)) is None or record.pid != supervisor.pid or not record.ready:
            if supervisor.poll() is not None:
                raise Unavailable(_last_error(log, begin))
            is_ours = record is not None and record.pid == supervisor.pid
            services = record.services if record is not None and is_ours else {}
            states = [member.state for member in services.values()]
            bar(
                sum(state in WELL for state in states),
                len(members),
                how_far([member.name for member in members], services, directory),
            )
            time.sleep(POLL_S)
    amiss = [name for name, member in record.services.items() if member.state not in WELL]
    if as_json:
        print_json(started_document(directory, record))
    else:
        _show_started(directory, record, amiss)
    if amiss:
        raise typer.Exit(ExitCode.PARTLY)


def _show_started(directory: Path, record: StackRecord, amiss: Sequence[str]) -> None:
    for name, member in record.services.items():
        reason = f"  {member.reason}" if member.reason else ""
        console.print(f"{name:22} {member.state:10} {member.url}{reason}", markup=False)
    running = f"running in the background (pid {record.pid})"
    if amiss:
        status = follow_up("status", directory=directory)
        running += f", but {', '.join(amiss)} {'is' if len(amiss) == 1 else 'are'} not ready: see `{status}`"
    down = follow_up("down", directory=directory)
    console.print(f"{running}; `{down}` stops it, logs in {directory / 'logs'}", markup=False)
    for line in where_to_go(record):
        console.print(line, markup=False)


def stop_stack(directory: Path, as_json: bool) -> None:
    """Stop the stack of `directory`, also the processes that a killed supervisor has left. Raises `NoStack`."""
    record = read_record(directory)
    if record is None:
        raise NoStack(f"no stack runs in {directory}: there is nothing to stop")
    orphans: list[str] | None = None
    if is_running(record):
        os.kill(record.pid, signal.SIGTERM)
        stop_s = record.stop_s + SLACK_S
        until = time.monotonic() + stop_s
        while is_running(record):
            if time.monotonic() > until:
                raise RatchetError(f"the stack (pid {record.pid}) has not stopped after {stop_s:g} s")
            time.sleep(POLL_S)
    else:
        with stack_lock(directory):  # a supervisor that lives has it, whatever its record shows
            orphans = end_orphans(record)
            remove_record(directory)
    if as_json:
        print_json({"directory": str(directory), "stopped": True, "orphans": orphans or []})
    elif orphans is None:
        console.print("stopped")
    else:
        console.print(f"the supervisor was gone; ended {', '.join(orphans) or 'nothing'}")


def _notices(settings: StackSettings) -> Iterator[str]:
    """What the user of a start should know of it beforehand: where a key goes, and which variables nothing reads."""
    from ratchet.local.local_stack.configuration import warnings_of  # noqa: PLC0415 - `down` and `env` read no settings

    if settings.upstream:
        with suppress(ConfigError):  # reported with all else that keeps the stack from starting
            yield from filter(None, [where_the_key_goes(settings.upstream, os.environ)])
    yield from warnings_of(settings.file, {**os.environ, **settings.env})


def _checked(settings: StackSettings) -> tuple[Program, ...]:
    """The members to start. Raises the errors of the supervisor, before anything is made."""
    from ratchet.local.local_stack.preflight import planned  # noqa: PLC0415 - `down` and `env` plan nothing

    record = read_record(settings.directory)
    if record is not None and is_running(record):
        raise already_running(settings.directory, record)
    return planned(settings).programs


def _last_error(log: Path, begin: int) -> str:
    """The last error in the log of the supervisor that writes from `begin`, without the command's name before it."""
    lines = log_tail(log, lines=30, begin=begin)
    first = next((place for place, line in enumerate(lines) if line.startswith("ratchet: ")), max(0, len(lines) - 1))
    return "\n".join(lines[first:]).removeprefix("ratchet: ") or f"the stack ended during start; see {log}"
