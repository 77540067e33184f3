"""Prints the answers of commands: tables for people, JSON for programs; progress on standard error."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ratchet.core.rules.texts import MARKS, shown
from ratchet.core.service.discovery import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

LINE = 4000
"""Columns for a file or a pipe, which take whole lines."""

LINE_S = 15.0
"""Between two lines on the progress of work, for a file or a pipe."""

LONG = 4096
"""Characters of one text that are shown without `--full`."""

_UNSAFE_IN_JSON = re.compile(rf"[\x7f-\x9f{MARKS}]")
"""Control characters and marks that JSON does not escape."""
_REASON = re.compile(r"; (?=(?:not|planned) [\w.-]+: )")
"""Between two reasons of a plan."""
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def cut(text: str, most: int = LONG) -> str:
    """`text`, or its beginning and the number of further characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


class _Terminal(Console):
    """A console that prints no control character but its own styles."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Like rich's; the control characters in texts are escaped."""
        super().print(*(shown(thing) if isinstance(thing, str) else thing for thing in objects), **how)


console = _Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else LINE)
"""As wide as the terminal."""

errors = _Terminal(stderr=True, highlight=False, soft_wrap=True)
"""For progress and warnings, so that standard output holds the answer alone."""

GAP = 2
"""Columns between two columns of a table."""
LAST_COLUMN = 24
"""A last column that is narrower than this cannot be read."""

STYLES = {
    "ready": "green",
    "ok": "green",
    "warning": "yellow",
    "failure": "red",
    "completed": "green",
    "stable": "green",
    "promoted": "green",
    "starting": "yellow",
    "waiting": "dim",
    "queued": "dim",
    "dispatched": "yellow",
    "running": "cyan",
    "canary": "cyan",
    "not ready": "yellow",
    "held": "yellow",
    "crashed": "red",
    "failed": "red",
    "refused": "red",
    "usable": "green",
    "expired": "dim",
    "revoked": "red",
    "rolled_back": "red",
    "suspended": "red",
    "withdrawn": "red",
    "reverted": "red",
    "superseded": "dim",
    "awaiting_approval": "yellow",
    "stopped": "dim",
    "cancelled": "dim",
}
"""Colour of a state wherever it is shown."""


def print_json(value: object) -> None:
    """`value` as the one, indented JSON document of a command."""
    _print_json(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_json_line(value: object) -> None:
    """`value` as one line, of a command that goes on."""
    _print_json(msgspec.json.encode(value))
    console.file.flush()


def _print_json(text: bytes) -> None:
    escaped = _UNSAFE_IN_JSON if console.encoding.lower().startswith("utf") else _NOT_ASCII
    console.out(escaped.sub(lambda match: json.dumps(match[0]).strip('"'), text.decode()), highlight=False)


def print_answer(document: object, as_json: bool, words: str | Callable[[], object]) -> None:
    """The answer of a command: a document for programs; for people a sentence, or the output of `words`."""
    if as_json:
        print_json(document)
    elif isinstance(words, str):
        console.print(words, markup=False)
    else:
        words()


def print_dry_run(action: str, body: object, as_json: bool, planned: str | None = None) -> None:
    """The action that would be taken, such as `POST http://.../v1/jobs`, and its document. `planned`: what `auto` in
    it stands for.
    """
    if as_json:
        plan = {} if planned is None else {"planned": planned}
        print_json({"dry_run": True, "action": action, "body": body, **plan})
        return
    for sentence in plan_lines(planned or ""):
        console.print(sentence, markup=False)
    console.print(f"would {action}", markup=False)
    print_json(body)


def plan_lines(notes: str) -> tuple[str, ...]:
    """The notes of a job, which may hold the planner's reasons, with a line for every algorithm."""
    return tuple(line for line in _REASON.split(notes) if line)


def follow_up(*words: str, directory: Path) -> str:
    """A `ratchet` command to paste: it leads to the same stack from the same shell."""
    where = () if directory == DEFAULT_DIRECTORY and DIRECTORY_VARIABLE not in os.environ else ("--dir", str(directory))
    return shlex.join(("ratchet", *words, *where))


class Bar(Protocol):
    """Shows the progress of work."""

    def __call__(self, done: float, total: float | None = None, note: str = "") -> None: ...


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Generator[Bar]:
    """A bar on standard error while work goes on, or a line now and then if that is no terminal; none if `quiet`
    (`--json`).
    """
    if not quiet and not errors.is_terminal:
        yield progress_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=quiet) as shown:
        task: TaskID = shown.add_task(title, total=None, note="")

        def advance(done: float, total: float | None = None, note: str = "") -> None:
            shown.update(task, completed=done, total=total, note=note)

        yield advance


def progress_lines(title: str, clock: Callable[[], float] = time.monotonic) -> Bar:
    """Prints how far the work is on standard error, for logs: what is new, at most once in `LINE_S`."""
    printed_at, before = clock(), ""

    def advance(done: float, total: float | None = None, note: str = "") -> None:
        nonlocal printed_at, before
        text = note or (f"{done:.0f} of {total:.0f}" if total else f"{done:.0f}")
        if text != before and clock() - printed_at >= LINE_S:
            errors.print(f"{title}: {text}", markup=False)
            printed_at, before = clock(), text

    return advance


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """A plain table; `empty` stands for no rows. In a table that is too wide each row becomes a list of facts."""
    if not rows:
        console.print(empty)
    elif least_width(columns, rows) <= console.width:
        console.print(table(columns, rows))
    else:
        for place, row in enumerate(rows):
            if place > 0:
                console.print()
            print_facts(dict(zip(columns, row, strict=True)))


def print_section(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table behind an empty line; nothing without rows."""
    if rows:
        console.print()
        print_table(columns, rows, "")


def least_width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """The width at which only the last column of a table has to wrap."""
    widths = [max(cell(value).cell_len for value in column) for column in zip(columns, *rows, strict=True)]
    return sum(widths[:-1]) + GAP * (len(widths) - 1) + min(widths[-1], LAST_COLUMN)


def print_facts(facts: Mapping[str, object], indent: int = 0) -> None:
    """One line for each fact that is not None; nested ones as `outer.inner`, those of a tuple below each other."""
    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, indent))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in flat(facts):
        made.add_row(name, cell(value))
    console.print(made)


def flat(facts: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Names and values, one for each line of `print_facts`."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from flat(cast("dict[str, object]", value), f"{prefix}{name}.")
        elif isinstance(value, tuple):
            lines = cast("tuple[object, ...]", value)
            yield from ((f"{prefix}{name}" if place == 0 else "", line) for place, line in enumerate(lines))
        elif value is not None:
            yield f"{prefix}{name}", value


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows as a table without a frame. The last column wraps; the others hold ids to copy, which must not."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in columns[:-1]:
        made.add_column(column, no_wrap=True)
    made.add_column(columns[-1], overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: object) -> Text:
    """One value as text, a known state in its colour."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    if isinstance(value, datetime):
        try:
            return Text(f"{value.astimezone():%Y-%m-%d %H:%M:%S}")
        except (OverflowError, ValueError):  # the first and the last days of the calendar may have no local time
            return Text(value.isoformat(" ", "seconds"))
    text = shown(cut(str(value)).replace("\n", "\\n").replace("\t", "\\t"))
    return Text(text, style=STYLES.get(text, ""))
