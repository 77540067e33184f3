"""`ratchet deadletters`: messages that could not be handled, why, and what to do with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.cli.options import AsJson, Directory, DryRun
from ratchet.service.discovery import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    from ratchet.cli.deadletters import Which

app = typer.Typer(help="Messages that could not be handled.", no_args_is_help=True)

_NUMBER = "The dead letter's number, as `deadletters list` shows it."
Number = Annotated[int, typer.Argument(min=1, help=_NUMBER)]
OptionalNumber = Annotated[int | None, typer.Argument(min=1, help=_NUMBER, show_default=False)]
Stream = Annotated[str | None, typer.Option(help="Those of messages of this stream.", show_default=False)]
Reason = Annotated[str | None, typer.Option(help="Those with this reason.", show_default=False)]
Since = Annotated[
    datetime | None, typer.Option(help="Those from this instant on; without a zone it is UTC.", show_default=False)
]


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

    found = asyncio.run(newest(locate(directory).shared, last))
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

    found = asyncio.run(read(locate(directory).shared, number))
    if as_json:
        print_json(found)
    else:
        show_letter(found, directory)


@app.command()
def replay(
    number: OptionalNumber = None,
    everything: Annotated[bool, typer.Option("--all", help="Replay all dead letters.")] = False,
    stream: Stream = None,
    reason: Reason = None,
    since: Since = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Send the message of a dead letter again, or of many, once their cause is fixed.

    Name one by its number, or choose many with --all, --stream, --reason and --since.
    """
    import asyncio

    from ratchet.cli import deadletters
    from ratchet.cli.deadletter_view import show_replayed
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_dry_run, print_json

    shared = locate(directory).shared
    if number is not None:
        _alone(everything, stream, reason, since)
        done = [asyncio.run(deadletters.replay(shared, number, dry_run=dry_run))]
    else:
        numbers = asyncio.run(deadletters.matching(shared, _which(everything, stream, reason, since)))
        done = asyncio.run(deadletters.replay_all(shared, numbers, dry_run=dry_run))
    shown = done[0] if number is not None else {"replayed": done}
    if dry_run:
        accepted = sum(one.refused is None for one in done)
        print_dry_run(f"publish on {done[0].subject}" if number is not None else f"publish {accepted}", shown, as_json)
    elif as_json:
        print_json(shown)
    else:
        show_replayed(done)


@app.command()
def drop(
    number: OptionalNumber = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all dead letters.")] = False,
    stream: Stream = None,
    reason: Reason = None,
    since: Since = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Delete a dead letter, or many, for good: the messages in them cannot be replayed any more."""
    import asyncio

    from ratchet.cli import deadletters
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_dry_run, print_json

    shared = locate(directory).shared
    if number is not None:
        _alone(everything, stream, reason, since)
        numbers = [asyncio.run(deadletters.read(shared, number)).number]
    else:
        numbers = asyncio.run(deadletters.matching(shared, _which(everything, stream, reason, since)))
    if dry_run:
        print_dry_run(f"delete {len(numbers)} dead letters", {"dropped": numbers}, as_json)
        return
    asyncio.run(deadletters.drop(shared, numbers))
    if as_json:
        print_json({"dropped": numbers})
    else:
        console.print(f"{len(numbers)} dead letters deleted", markup=False)


def _alone(everything: bool, stream: str | None, reason: str | None, since: datetime | None) -> None:
    if everything or stream or reason or since:
        raise typer.BadParameter("a number stands alone: --all, --stream, --reason and --since choose many")


def _which(everything: bool, stream: str | None, reason: str | None, since: datetime | None) -> Which:
    if everything == bool(stream or reason or since):
        raise typer.BadParameter("give a number, or --all, or at least one of --stream, --reason and --since")
    from ratchet.cli.deadletters import Which

    at = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
    return Which(stream=stream, reason=reason, since=at)
