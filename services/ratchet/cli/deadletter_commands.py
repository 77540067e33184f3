"""`ratchet deadletters`: messages that could not be handled, why, and what to do with them."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.options import AsJson, Directory, DryRun
from ratchet.kernel.whereabouts import DEFAULT_DIRECTORY

app = typer.Typer(help="Messages that could not be handled.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(min=1, help="The dead letter's number, as `deadletters list` shows it.")]


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

    found = asyncio.run(newest(locate(directory).kernel, last))
    if as_json:
        print_json({"deadletters": found})
        return
    columns = ("number", "at", "stream", "sequence", "consumer", "subject", "reason", "detail")
    letters = [(one.number, one.letter) for one in found]
    rows = [
        (number, x.at, x.stream, x.sequence, x.consumer, x.original_subject, x.reason, x.detail)
        for number, x in letters
    ]
    print_table(columns, rows, "no dead letters")


@app.command()
def show(number: Number, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Show one dead letter whole: reason, headers and body."""
    import asyncio

    from ratchet.cli.deadletter_view import show_letter
    from ratchet.cli.deadletters import read
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json

    found = asyncio.run(read(locate(directory).kernel, number))
    if as_json:
        print_json(found)
    else:
        show_letter(found, directory)


@app.command()
def replay(
    number: Number, dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Send the message of a dead letter again, once what it died of is mended."""
    import asyncio

    from ratchet.cli import deadletters
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_dry_run, print_json

    done = asyncio.run(deadletters.replay(locate(directory).kernel, number, dry_run=dry_run))
    if dry_run:
        print_dry_run(f"publish on {done.subject}", done, as_json)
    elif as_json:
        print_json(done)
    else:
        console.print(f"dead letter {number} was sent again on {done.subject}", markup=False)
