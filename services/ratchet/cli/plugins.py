"""`ratchet plugins`: reward components, algorithms, gates, engines, importers and exporters, and who brings them."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson
from ratchet.cli.output import print_answer, print_table
from ratchet.plugins import Plugin, tables

app = typer.Typer(no_args_is_help=True)


@app.command("plugins")
def plugins(
    check: Annotated[bool, typer.Option(help="Import those of other packages, and say which do not fit.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what can be plugged in: built-in variants and those of installed packages. Exit code 3: one is refused."""
    listed = [plugin for table in tables() for plugin in table.plugins(load=check)]
    print_answer({"plugins": listed}, as_json, lambda: _show(listed))
    raise typer.Exit(ExitCode.PARTLY if any(plugin.refused for plugin in listed) else ExitCode.DONE)


def _show(listed: list[Plugin]) -> None:
    rows = [(one.group, one.name, one.package, one.refused or "") for one in listed]
    print_table(("group", "name", "from", "refused because"), rows, "no plugins")
