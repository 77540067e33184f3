"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)
"""As wide as the terminal; a file or a pipe takes whole lines."""

STYLES = {
    "ready": "green",
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
    "rolled_back": "red",
    "stopped": "dim",
    "cancelled": "dim",
}
"""Colour of a state wherever it is shown."""


def print_json(value: object) -> None:
    """`value` as indented JSON."""
    console.out(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """A plain table; `empty` is said when there are no rows."""
    if not rows:
        console.print(empty)
        return
    console.print(table(columns, rows))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows as a table without a frame. The last column wraps, the others hold ids that one wants to copy."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns[:-1]:
        made.add_column(column, no_wrap=True)
    made.add_column(columns[-1], overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def when(text: str) -> datetime:
    """An instant of an answer."""
    return datetime.fromisoformat(text)


def cell(value: Any) -> Text:  # `Any`: whatever a table holds
    """One value as text, a known state in its colour."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    if isinstance(value, datetime):
        return Text(f"{value.astimezone():%Y-%m-%d %H:%M:%S}")
    return Text(str(value), style=STYLES.get(str(value), ""))
