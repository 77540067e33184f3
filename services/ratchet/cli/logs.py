"""`ratchet logs`: what processes of the local stack have logged, of 30 days, and what one logs from now on."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ratchet.cli.options import HERE, AsJson, Directory, since_of
from ratchet.cli.output import console, errors, follow_up, print_answer
from ratchet.core.errors import NotFound
from ratchet.local.local_stack.catalog import ALL_SERVICES
from ratchet.local.local_stack.log_files import parts_of

app = typer.Typer()

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_HEAD = 80
"""Characters of a foreign line in which its time stands."""
_STAMP = r"(\d{4}[-/.]\d\d[-/.]\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\d*(Z|[+-]\d\d:?\d\d)?"
_OF_SERVICE, _TIME = re.compile(rf'"timestamp": ?"{_STAMP}"'), re.compile(_STAMP)
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
        if not self._log.is_file():  # between two starts
            return []
        try:
            with self._log.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._place:
                    begun = [self._partial] if self._partial else []
                    self._inode, self._place, self._partial = status.st_ino, 0, b""
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:
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
    since: Annotated[
        str | None,
        typer.Option(
            help="All lines since then, of one service or all, in the order of time: so long ago (30m, 12h, 30d), or an"
            " instant.",
            metavar="TIME",
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(help="Only lines with this text, of 30 days or since --since; in any case of letters."),
    ] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Print the last lines of a service's log, `-f` follows it; `--since` and `--grep` search the logs of 30 days.

    200 MiB are kept of each process. `-f` goes on over restarts.
    """
    if follow and as_json:
        raise typer.BadParameter("--json prints one document, and --follow has no end: choose one")
    if since is not None or grep is not None:
        if follow:
            raise typer.BadParameter("--since and --grep search what is there, and --follow has no end: choose one")
        begin = since_of(since) if since is not None else BEGINNING
        if not search(directory, service, begin, grep or "", as_json):
            asked = f" with {grep!r}" * bool(grep) + f" since {since}" * (since is not None)
            where = f"the log of {log_of(directory, service).stem}" if service else "any log"
            errors.print(f"no line{asked} in {where}", markup=False)
        return
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


class LogLine(NamedTuple):
    """A line of a log."""

    at: datetime
    """When it was written: one that names no time, as those of a traceback, has that of the line before it."""
    service: str
    line: str


def search(directory: Path, service: str, since: datetime, text: str, as_json: bool) -> bool:
    """Print the lines of one service, or of all, in the order of time; whether there is one, or a document says so.

    Raises `NotFound` where there are no logs.
    """
    names = [log_of(directory, service).stem] if service else logs_in(directory)
    merged = heapq.merge(*(lines_of(directory / "logs" / f"{name}.log", since) for name in names))
    chosen = (line for line in merged if text.casefold() in line.line.casefold())
    if as_json:
        print_answer({"lines": [line._asdict() for line in chosen]}, as_json, "")
        return True
    is_any = False
    for line in chosen:
        is_any = True
        show([line.line if service else f"{line.service:{max(map(len, names))}} {line.line}"])
    return is_any


def lines_of(log: Path, since: datetime) -> Iterator[LogLine]:
    """The lines of a log since then, the oldest part first. Of one that is cut meanwhile the new part has the rest."""
    done, place = set[Path](), 0
    while (part := next((part for part in parts_of(log) if part not in done), log)) not in done:
        done.add(part)
        try:
            written = datetime.fromtimestamp(part.stat().st_mtime, UTC)
            if written < since:
                continue
            with part.open("rb") as file:
                file.seek(place)
                at, place = None, 0
                for raw in file:
                    place += len(raw) if part == log else 0
                    line = raw.decode(errors="replace").rstrip("\r\n")
                    at = _time_in(line) or at
                    if (at or written) >= since:
                        yield LogLine(at or written, log.stem, line)
        except FileNotFoundError:  # cut or removed meanwhile
            continue


def _time_in(line: str) -> datetime | None:
    """The time that a line names, of this machine's zone where it names none; None without one."""
    stamp = _OF_SERVICE.search(line) if line.startswith("{") else _TIME.search(line[:LONGEST_HEAD])
    if stamp is None:
        return None
    day, clock, zone = stamp.groups()
    try:
        named = f"{re.sub('[/.]', '-', day)}T{clock.replace(',', '.')}{zone or ''}"
        return datetime.fromisoformat(named).astimezone(UTC)
    except (ValueError, OverflowError):  # no instant, or none of the calendar in UTC
        return None


def log_of(directory: Path, service: str) -> Path:
    """The log of a server or service, by its full or its short name. Raises `NotFound`."""
    full = next((spec.name for spec in ALL_SERVICES if spec.short == service), service)
    folder, known = directory / "logs", logs_in(directory)
    if full in known:
        return folder / f"{full}.log"
    raise NotFound(f"there is no log of {service} in {folder}; there are those of {', '.join(known)}")


def logs_in(directory: Path) -> list[str]:
    """The names of those that have logs. Raises `NotFound` where there is none."""
    folder = directory / "logs"
    known = sorted(path.stem for path in folder.glob("*.log") if path.is_file())
    if not known:
        start = follow_up("up", directory=directory)
        raise NotFound(f"there are no logs in {folder}: no stack was started there yet; `{start}` starts one")
    return known


def show(new: list[str]) -> None:
    """Lines as they are, without what a terminal would obey."""
    for line in new:
        console.print(line, markup=False)
