"""`ratchet logs`: what a process of the local stack has logged, and what it logs from now on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, follow_up, print_answer
from ratchet.core.errors import NotFound
from ratchet.local.local_stack.catalog import ALL_SERVICES

app = typer.Typer()

POLL_S = 0.3
"""Between two looks at a log that is followed."""


class Follower:
    """The lines of a log, from its last ones on: also after its process has started again, or the log was cut."""

    def __init__(self, log: Path, last: int) -> None:
        self._log = log
        self._last: int | None = last
        self._inode = 0
        self._place = 0
        self._partial = b""

    def read(self, *, partial: bool = False) -> list[str]:
        """The lines since the last call; at first the last ones of the log. `partial`: also a last one without an end,
        which a process may have left that broke off.
        """
        begun: list[bytes] = []
        try:
            with self._log.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._place:
                    begun = [self._partial] if self._partial else []
                    self._inode, self._place, self._partial = status.st_ino, 0, b""
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:  # between two starts
            return []
        self._place += len(new)
        *lines, self._partial = begun + (self._partial + new).split(b"\n")
        if partial and self._partial:
            lines, self._partial = [*lines, self._partial], b""
        if self._last is not None:
            lines, self._last = lines[len(lines) - min(self._last, len(lines)) :], None
        return [line.decode(errors="replace") for line in lines]


@app.command("logs")
def logs(
    service: Annotated[
        str, typer.Argument(help="A server or service, by its name in `ratchet status`; without one, the list of logs.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Print the last lines of a service's log; `-f` follows it, over restarts too."""
    if follow and as_json:
        raise typer.BadParameter("--json prints one document, and --follow has no end: choose one")
    if not service:
        names = logs_in(directory)
        print_answer({"logs": names}, as_json, lambda: show([*names, "`ratchet logs SERVICE` prints one"]))
        return
    log = log_of(directory, service)
    follower = Follower(log, lines)
    new = follower.read(partial=not follow)
    document = {"service": log.stem, "log": str(log), "lines": new}
    print_answer(document, as_json, lambda: show(new))
    while follow:
        time.sleep(POLL_S)
        show(follower.read())


def log_of(directory: Path, service: str) -> Path:
    """The log of a server or service, by its full or its short name. Raises `NotFound`."""
    full = next((spec.name for spec in ALL_SERVICES if spec.short == service), service)
    log, known = directory / "logs" / f"{full}.log", logs_in(directory)
    if full in known:
        return log
    raise NotFound(f"there is no log of {service} in {log.parent}; there are those of {', '.join(known)}")


def logs_in(directory: Path) -> list[str]:
    """The names of those that have logs. Raises `NotFound` where there is none."""
    folder = directory / "logs"
    known = sorted(path.stem for path in folder.glob("*.log"))
    if not known:
        start = follow_up("up", directory=directory)
        raise NotFound(f"there are no logs in {folder}: no stack was started there yet; `{start}` starts one")
    return known


def show(new: list[str]) -> None:
    """Lines as they are, without what a terminal would obey."""
    for line in new:
        console.print(line, markup=False)
