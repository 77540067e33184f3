"""`ratchet deadletters`: messages that could not be handled, the reasons, and what to do with them."""

from __future__ import annotations

import asyncio
import base64
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ratchet.bus.contracts import Contracts
from ratchet.bus.deadletter import IN_STREAM, WHOLE
from ratchet.bus.envelope import Headers, Record, unseal
from ratchet.cli.audited import record_act, record_read
from ratchet.cli.connections import connected, message_of, reader, settings_of
from ratchet.cli.endpoints import locate
from ratchet.cli.ids import LATEST
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import console, follow_up, print_answer, print_dry_run, print_facts, print_table
from ratchet.core.contract import decode, named_id
from ratchet.core.contract.operations import DeadLetter
from ratchet.core.errors import ContractError, InvalidMessage, NotFound, Rejected

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus
    from ratchet.core.service.settings import SharedSettings

app = typer.Typer(no_args_is_help=True)


def checked_number(context: typer.Context, number: str | None) -> str | None:
    """The number as it is. Raises `typer.BadParameter` for a text that is neither a number nor `latest`."""
    if number is None or context.resilient_parsing or number == LATEST or re.fullmatch(r"[1-9]\d{0,18}", number):
        return number
    raise typer.BadParameter(f"{number!r} is no dead letter's number: from 1 on, or `latest`")


_NUMBER = "The dead letter's number, as `deadletters list` shows it, or `latest`."
Number = Annotated[str, typer.Argument(help=_NUMBER, callback=checked_number)]
OptionalNumber = Annotated[str | None, typer.Argument(help=_NUMBER, callback=checked_number, show_default=False)]
Stream = Annotated[str | None, typer.Option(help="Those of messages of this stream.", show_default=False)]
Reason = Annotated[str | None, typer.Option(help="Those with this reason.", show_default=False)]
Since = Annotated[
    datetime | None, typer.Option(help="Those from this instant on; without a zone it is UTC.", show_default=False)
]

STREAM = "RL_DEADLETTERS"
AT_ONCE = 256
"""Numbers that are read at a time."""


@app.command("list")
def list_letters(
    last: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """List the newest dead letters."""
    letters = asyncio.run(newest(settings_of(locate(directory)), last))
    columns = ("number", "at", "stream", "sequence", "consumer", "subject", "reason", "detail")
    rows = [
        (dead.number, x.at, x.stream, x.sequence, x.consumer, x.original_subject, x.reason, x.detail)
        for dead in letters
        for x in (dead.letter,)
    ]
    print_answer({"deadletters": letters}, as_json, lambda: print_table(columns, rows, "no dead letters"))


@app.command()
def show(number: Number, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show one dead letter: reason, headers, and the body unless it is large. Secrets are taken out."""
    endpoints = locate(directory)
    shared = settings_of(endpoints)
    chosen = numbered(shared, number)
    record_read(endpoints, "get_deadletter", objects=[str(chosen)])
    letter = asyncio.run(read(shared, chosen))
    print_answer(letter, as_json, lambda: show_letter(letter, directory))


def _on_chosen(act: Callable[[SharedSettings, int | Which, bool, bool], None]) -> None:
    """Make `act` a command on the dead letter of a number, or on those that filters choose."""

    def command(
        number: OptionalNumber = None,
        everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
        stream: Stream = None,
        reason: Reason = None,
        since: Since = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
        directory: Directory = HERE,
    ) -> None:
        filtered = bool(stream or reason or since)
        if number is not None and (everything or filtered):
            raise typer.BadParameter("a number stands alone: --all, --stream, --reason and --since choose many")
        if everything and filtered:
            raise typer.BadParameter("--all stands alone: --stream, --reason and --since choose some")
        if number is None and not everything and not filtered:
            raise typer.BadParameter("give a number, or --all, or at least one of --stream, --reason and --since")
        at = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
        endpoints = locate(directory)
        shared = settings_of(endpoints)
        chosen = Which(stream=stream, reason=reason, since=at) if number is None else numbered(shared, number)
        if not dry_run:
            record_act(endpoints, f"{act.__name__}_deadletters", _named_by(chosen))
        act(shared, chosen, dry_run, as_json)

    app.command(act.__name__, help=inspect.cleandoc(act.__doc__ or ""))(command)


def _named_by(chosen: int | Which) -> list[str]:
    """What the audit log says of the choice."""
    if isinstance(chosen, int):
        return [str(chosen)]
    given = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value is not None}
    return [f"{name} {value}" for name, value in given.items()] or ["all"]


@_on_chosen
def replay(shared: SharedSettings, chosen: int | Which, dry_run: bool, as_json: bool) -> None:
    """Send the message of a dead letter again, or of many, once their cause is fixed.

    What a dead letter does not keep, of a large message or of one with secrets, is read in its stream. Name one by its
    number, or choose many with --all, --stream, --reason and --since.
    """
    if isinstance(chosen, int):
        done = [asyncio.run(replay_letter(shared, chosen, dry_run=dry_run))]
        document, action = done[0], f"publish on {done[0].subject}"
    else:
        done = asyncio.run(replay_letters(shared, asyncio.run(matching(shared, chosen)), dry_run=dry_run))
        document, action = {"replayed": done}, f"publish {sum(message.refused is None for message in done)}"
    if dry_run:
        print_dry_run(action, document, as_json)
    else:
        print_answer(document, as_json, lambda: show_replayed(done))


@_on_chosen
def drop(shared: SharedSettings, chosen: int | Which, dry_run: bool, as_json: bool) -> None:
    """Delete a dead letter, or many, for good: the messages in them cannot be replayed any more."""
    if isinstance(chosen, int):
        numbers = [asyncio.run(read(shared, chosen)).number]
    else:
        numbers = asyncio.run(matching(shared, chosen))
    if dry_run:
        print_dry_run(f"delete {len(numbers)} dead letters", {"dropped": numbers}, as_json)
        return
    asyncio.run(drop_letters(shared, numbers))
    print_answer({"dropped": numbers}, as_json, f"{len(numbers)} dead letters deleted")


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter and its number in commands."""

    number: int
    letter: DeadLetter
    refused: str | None = None
    """Why its message cannot be replayed as it is, where that was looked up."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was, or would be, sent again; or the reason why not."""

    number: int
    subject: str
    event_id: str | None
    refused: str | None = None


class Which(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters: those that match every member that is set."""

    stream: str | None = None
    reason: str | None = None
    since: datetime | None = None

    def __call__(self, letter: DeadLetter) -> bool:
        """Whether it selects `letter`."""
        return (
            self.stream in (None, letter.stream)
            and self.reason in (None, letter.reason)
            and (self.since is None or letter.at >= self.since)
        )


async def newest(settings: SharedSettings, count: int) -> list[StoredLetter]:
    """The last `count` dead letters, newest first; dropped ones do not count.

    Raises `BusUnavailable`.
    """
    newest_first: list[StoredLetter] = []
    async with connected(settings) as bus:
        extent = await bus.extent(STREAM)
        last = extent.last
        while last >= extent.first and len(newest_first) < count:
            first = max(extent.first, last - AT_ONCE + 1)
            letters = [StoredLetter(number=n, letter=letter) async for n, letter in _between(bus, first, last)]
            newest_first += reversed(letters)
            last = first - 1
    return newest_first[:count]


def numbered(settings: SharedSettings, number: str) -> int:
    """The number that a command line names. Raises `NotFound` without a newest one, or `BusUnavailable`."""
    if number != LATEST:
        return int(number)
    letters = asyncio.run(newest(settings, 1))
    if not letters:
        raise NotFound("there are no dead letters")
    return letters[0].number


async def read(settings: SharedSettings, number: int) -> StoredLetter:
    """One dead letter, and whether its message can be replayed. Raises `NotFound` or `BusUnavailable`."""
    async with connected(settings) as bus:
        letter = await _required(bus, number)
        planned = await _replay(bus, number, letter, dry_run=True)
        return StoredLetter(number=number, letter=letter, refused=planned.refused)


async def matching(settings: SharedSettings, which: Which) -> list[int]:
    """The numbers of the selected dead letters, oldest first. Raises `BusUnavailable`."""
    async with connected(settings) as bus:
        extent = await bus.extent(STREAM)
        letters = _between(bus, extent.first, extent.last)
        return [number async for number, letter in letters if which(letter)]


async def replay_letter(settings: SharedSettings, number: int, *, dry_run: bool) -> Replayed:
    """Send the message again, to all consumers of its stream; they recognise its event id, so nothing counts twice.

    Raises `NotFound`, or `Rejected` for a message that still breaks its contract: it would only die again.
    """
    async with connected(settings) as bus:
        done = await _replay(bus, number, await _required(bus, number), dry_run=dry_run)
    if done.refused is not None:
        raise Rejected(f"dead letter {number} would die again: {done.refused}")
    return done


async def replay_letters(settings: SharedSettings, numbers: Sequence[int], *, dry_run: bool) -> list[Replayed]:
    """Send all these messages again, oldest first, except those that would die again: their results have the reason.

    Raises `BusUnavailable`; a second call is safe, consumers recognise events that they have handled.
    """
    async with connected(settings) as bus:
        letters = _named(bus, numbers)
        return [await _replay(bus, number, letter, dry_run=dry_run) async for number, letter in letters]


async def drop_letters(settings: SharedSettings, numbers: Sequence[int]) -> None:
    """Delete dead letters for good. Raises `NotFound` or `BusUnavailable`."""
    async with connected(settings) as bus:
        async for number, _ in _named(bus, numbers):
            await bus.nc.jetstream().delete_msg(STREAM, number)


def sent_again(headers: Headers, letter: DeadLetter, number: int) -> Headers:
    """The same event under a new message id, or the broker would drop it as a duplicate."""
    known = headers.get("ce-id") or headers.get("Nats-Msg-Id")
    again = headers if known is None else {**headers, "ce-id": known}
    return {**again, "Nats-Msg-Id": named_id("replay", number, known or letter.sequence)}


def complaint(contracts: Contracts, subject: str, headers: Headers, body: bytes) -> str | None:
    """Why consumers could not read the message; None when they can."""
    try:
        contracts.read(subject, unseal(headers, body))
    except ContractError as error:
        return str(error)
    return None


async def _replay(bus: Bus, number: int, letter: DeadLetter, *, dry_run: bool) -> Replayed:
    try:
        headers, body = await _original(bus, letter)
    except Rejected as error:
        return Replayed(number=number, subject=letter.original_subject, event_id=None, refused=str(error))
    headers = sent_again(headers, letter, number)
    why = complaint(bus.contracts, letter.original_subject, headers, body)
    if why is None and not dry_run:
        await bus.publish_record(Record(letter.original_subject, headers, body))
    return Replayed(number=number, subject=letter.original_subject, event_id=headers.get("ce-id"), refused=why)


async def _original(bus: Bus, letter: DeadLetter) -> tuple[Headers, bytes]:
    """The message as it was sent. Raises `Rejected` where neither the dead letter nor the stream has it."""
    if letter.kept == WHOLE:
        return dict(letter.headers), base64.b64decode(letter.body)
    async with aclosing(reader(bus, letter.stream, start=max(letter.sequence, 1)).to_end(letter.sequence)) as batches:
        async for batch in batches:
            for message in batch:
                if message.metadata.timestamp == letter.stored_at:
                    return dict(message.headers or {}), message.data
    raise Rejected(
        f"{letter.stream} no longer holds message {letter.sequence}, and the dead letter keeps only a part of it:"
        " have its sender send it again"
    )


async def _required(bus: Bus, number: int) -> DeadLetter:
    """The dead letter of that number. Raises `NotFound`."""
    message = await message_of(bus, STREAM, number)
    letter = _letter(message.headers, message.data) if message is not None else None
    if letter is None:
        raise NotFound(f"there is no dead letter {number}")
    return letter


async def _named(bus: Bus, numbers: Sequence[int]) -> AsyncGenerator[tuple[int, DeadLetter]]:
    """The letters of these numbers, oldest first, many read at a time. Raises `NotFound` for a missing one."""
    for some in near(numbers):
        letters = {number: letter async for number, letter in _between(bus, some[0], some[-1])}
        for number in some:
            if number not in letters:
                raise NotFound(f"there is no dead letter {number}")
            yield number, letters[number]


def near(numbers: Iterable[int]) -> Iterator[list[int]]:
    """The numbers in order, in lists that span `AT_ONCE` at most: letters between two of a list are read as well."""
    some: list[int] = []
    for number in sorted(numbers):
        if some and number >= some[0] + AT_ONCE:
            yield some
            some = []
        some.append(number)
    if some:
        yield some


async def _between(bus: Bus, first: int, last: int) -> AsyncGenerator[tuple[int, DeadLetter]]:
    """The letters with numbers from `first` to `last`, read in batches. Raises `BusUnavailable`."""
    if last < first:
        return
    async with aclosing(reader(bus, STREAM, start=max(first, 1)).to_end(last)) as batches:
        async for batch in batches:
            for message in batch:
                letter = _letter(message.headers, message.data)
                if letter is not None:
                    yield message.metadata.sequence.stream, letter


def _letter(headers: Headers | None, data: bytes | None) -> DeadLetter | None:
    """The dead letter in a message; None for another message."""
    try:
        return decode(unseal(dict(headers or {}), data or b""), DeadLetter)
    except (InvalidMessage, msgspec.DecodeError):
        return None


def show_letter(stored: StoredLetter, directory: Path) -> None:
    """The message, why it died, and its body as far as it can be read."""
    letter = stored.letter
    print_facts(
        {
            "number": stored.number,
            "at": letter.at,
            "stream": letter.stream,
            "sequence": letter.sequence,
            "consumer": letter.consumer,
            "subject": letter.original_subject,
            "reason": letter.reason,
            "detail": letter.detail,
            "header": letter.headers,
        }
    )
    if letter.kept == IN_STREAM:
        place = f"message {letter.sequence} of {letter.stream}"
        console.print(f"\nIts body stands in {place} alone\n", markup=False)
    else:
        console.print(f"\n{readable(letter.headers, base64.b64decode(letter.body))}\n", markup=False)
    again = follow_up("deadletters", "replay", str(stored.number), directory=directory)
    if stored.refused is None:
        console.print(f"`{again}` sends it again", markup=False)
    else:
        gone = follow_up("deadletters", "drop", str(stored.number), directory=directory)
        console.print(f"It cannot be replayed as it is ({stored.refused}); `{gone}` deletes it", markup=False)


def show_replayed(done: Sequence[Replayed]) -> None:
    """The number of messages that were sent again, and why others were not."""
    for message in done:
        if message.refused is not None:
            console.print(f"dead letter {message.number} was not sent: {message.refused}", markup=False)
    sent = [message for message in done if message.refused is None]
    if len(done) == 1 and sent:
        console.print(f"dead letter {sent[0].number} was sent again on {sent[0].subject}", markup=False)
    else:
        console.print(f"{len(sent)} of {len(done)} dead letters were sent again", markup=False)


def readable(headers: dict[str, str], wire: bytes) -> str:
    """The body as indented JSON, else as text."""
    try:
        return msgspec.json.format(unseal(headers, wire), indent=2).decode()
    except (InvalidMessage, msgspec.DecodeError, UnicodeDecodeError):
        return wire.decode(errors="replace")
