"""`ratchet deadletters`: messages that could not be handled, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, AsJson, Directory

app = typer.Typer(help="Messages that could not be handled.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Messages that could not be handled."""


@app.command("list")
def list_letters(
    last: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """List the newest dead letters."""
    import asyncio

    from ratchet.cli.deadletters import newest
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json, print_table

    letters = asyncio.run(newest(locate(directory).kernel, last))
    if as_json:
        print_json(letters)
        return
    columns = ("at", "stream", "sequence", "consumer", "subject", "reason", "detail")
    rows = [(x.at, x.stream, x.sequence, x.consumer, x.original_subject, x.reason, x.detail) for x in letters]
    print_table(columns, rows, "no dead letters")
