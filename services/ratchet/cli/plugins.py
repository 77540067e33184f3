"""`ratchet plugins`: the variants of every kind that has a table, and the packages that bring them."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson
from ratchet.cli.output import print_answer, print_table
from ratchet.core.plugins import tables

app = typer.Typer(no_args_is_help=True)


@app.command("plugins")
def plugins(
    check: Annotated[
        bool, typer.Option(help="Import those of other packages, and report those that do not fit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all plug-ins: built-in variants and those of installed packages. Exit code 3: one is refused."""
    listed = [plugin for table in tables() for plugin in table.plugins(load=check)]
    rows = [(plugin.group, plugin.name, plugin.package, plugin.refused or "") for plugin in listed]
    columns = ("group", "name", "from", "refused because")
    print_answer({"plugins": listed}, as_json, lambda: print_table(columns, rows, "no plugins"))
    raise typer.Exit(ExitCode.PARTLY if any(plugin.refused for plugin in listed) else ExitCode.DONE)
