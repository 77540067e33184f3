"""Draws `ratchet --help` as typer does, but without the Markdown, syntax and traceback modules that typer imports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.highlighter import RegexHighlighter
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from ratchet.cli.commands import HEADINGS

Command = Any
"""A command of typer's parser; typer keeps the types of its parts to itself."""

THEME = Theme({"option": "bold cyan", "switch": "bold green", "types": "bold yellow", "usage": "yellow"})
FORCES_COLOUR = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")
"""Any of these in the environment stands for a terminal."""
FLAG = Text.assemble(("<", "dim"), "bool", (">", "dim"), style="bold yellow")
"""The type of an option that takes no value."""


class Highlighter(RegexHighlighter):
    """Finds options, types and the word `Usage`."""

    highlights = [  # noqa: RUF012 - rich's own attribute
        r"(^|\W)(?P<switch>\-\w+)(?![a-zA-Z0-9])",
        r"(^|\W)(?P<option>\-\-[\w\-]+)(?![a-zA-Z0-9])",
        r"(?P<types>\<[^\>]+\>)",
        r"(?P<usage>Usage: )",
    ]


def draw_help(group: Command, context: Any) -> None:
    """Print the help of a group whose options are flags."""
    forced = True if any(os.getenv(name) for name in FORCES_COLOUR) else None
    highlight = Highlighter()
    console = Console(theme=THEME, highlighter=highlight, force_terminal=forced)
    console.print(Padding(highlight(group.get_usage(context)), 1), style="bold")
    console.print(Padding(highlight(Text(group.help)), (0, 1, 1, 1)))
    options = [
        (highlight(",".join(one.opts)), "", "", "", FLAG, Columns([highlight(Text(one.help))]))
        for one in group.get_params(context)
    ]
    console.print(_panel("Options", Table(box=None, show_header=False, expand=True, pad_edge=False), options))
    grouped = {name for names in HEADINGS.values() for name in names}
    others = tuple(name for name in group.commands if name not in grouped)
    for heading, names in (*HEADINGS.items(), *([("Commands", others)] if others else [])):
        commands = Table(box=None, show_header=False, expand=True, pad_edge=False)
        commands.add_column(style="bold cyan", no_wrap=True, width=max(map(len, group.commands)))
        commands.add_column(ratio=10)
        rows = [(name, highlight(Text(group.commands[name].help))) for name in names]
        console.print(_panel(heading, commands, rows))
    console.print(Padding(highlight(Text(group.epilog)), 1))


def _panel(title: str, table: Table, rows: Sequence[Sequence[RenderableType]]) -> Panel:
    for row in rows:
        table.add_row(*row)
    return Panel(table, border_style="dim", title=title, title_align="left")
