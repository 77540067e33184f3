"""`ratchet up --detach` and `ratchet down`: a stack that outlives the command that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ratchet.cli.output import console
from ratchet.embedded.orphans import end_orphans, is_running
from ratchet.embedded.process import log_tail
from ratchet.embedded.settings import StackSettings
from ratchet.embedded.state import StackRecord, read_record, remove_record
from ratchet.kernel.errors import RatchetError, Unavailable

POLL_S = 0.2
STOP_S = 60.0
"""Longer than every member's own deadline together can take, for they stop side by side."""


def start_background(settings: StackSettings) -> int:
    """Start a supervisor of its own; return when every member is ready, or when it has given up."""
    directory = settings.directory
    log = directory / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:  # a refused second start must not cut off the first one's log
        supervisor = subprocess.Popen(  # noqa: S603 - our own command
            _command(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while (record := _ready_record(directory, supervisor.pid)) is None:
        if supervisor.poll() is not None:
            raise Unavailable(_last_words(log))
        time.sleep(POLL_S)
    for name, member in record.services.items():
        console.print(f"{name:22} {member.state:10} {member.url}")
    console.print(
        f"running in the background (pid {record.pid}); `ratchet down` stops it, logs in {directory / 'logs'}"
    )
    return 0


def stop_stack(directory: Path) -> int:
    """Stop the stack of `directory`, also what a killed supervisor has left behind."""
    record = read_record(directory)
    if record is None:
        console.print(f"no stack is running in {directory}")
        return 0
    if not is_running(record.pid, record.started_at):
        ended = end_orphans(record)
        remove_record(directory)
        console.print(f"the supervisor was gone; ended {', '.join(ended) or 'nothing'}")
        return 0
    os.kill(record.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while is_running(record.pid, record.started_at):
        if time.monotonic() > until:
            raise RatchetError(f"the stack (pid {record.pid}) has not stopped after {STOP_S:g} s")
        time.sleep(POLL_S)
    console.print("stopped")
    return 0


def _command(settings: StackSettings) -> list[str]:
    command = [sys.executable, "-m", "ratchet.cli", "up", "--dir", str(settings.directory)]
    command += [part for name, port in settings.ports.items() for part in ("--port", f"{name}={port}")]
    command += ["--free-ports"] if settings.free_ports else []
    command += ["--only", ",".join(settings.only)] if settings.only else []
    return command


def _ready_record(directory: Path, pid: int) -> StackRecord | None:
    record = read_record(directory)
    return record if record is not None and record.pid == pid and record.ready else None


def _last_words(log: Path) -> str:
    """What the supervisor said last, without the command's name that it stands behind."""
    lines = log_tail(log, lines=30)
    first = next((place for place, line in enumerate(lines) if line.startswith("ratchet: ")), max(0, len(lines) - 1))
    return "\n".join(lines[first:]).removeprefix("ratchet: ") or f"the stack ended during start; see {log}"
