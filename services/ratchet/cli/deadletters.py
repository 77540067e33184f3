"""Reads the dead-letter stream, publishes its messages again, and deletes them."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec
from nats.js.errors import BadRequestError, NotFoundError

from ratchet.bus.connection import Bus
from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import Headers, unseal
from ratchet.bus.reader import Replay
from ratchet.cli.broker import connected
from ratchet.contract import decode, named_id
from ratchet.contract.operations import DeadLetter
from ratchet.errors import ContractError, InvalidMessage, NotFound, Rejected
from ratchet.service.settings import SharedSettings

STREAM = "RL_DEADLETTERS"


AT_ONCE = 256
"""Numbers that are read before the next ones: for the newest dead letters, and for the parts of one."""


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, its own number, by which commands name it, and the numbers of all letters that hold its body."""

    number: int
    letter: DeadLetter
    numbers: tuple[int, ...]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was, or would be, sent once more; or why not."""

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
    """The last `count` dead letters, newest first; what was dropped between them is passed over.

    Raises `BusUnavailable`.
    """
    found: list[StoredLetter] = []
    async with connected(settings) as bus:
        extent = await bus.extent(STREAM)
        last = extent.last
        while last >= extent.first and len(found) < count:
            first = max(extent.first, last - AT_ONCE + 1)
            letters = [one async for one in _between(bus, first, last)]
            begun = [StoredLetter(number=n, letter=letter, numbers=(n,)) for n, letter in letters if _begins(letter)]
            found += reversed(begun)
            last = first - 1
    return found[:count]


async def read(settings: SharedSettings, number: int) -> StoredLetter:
    """One dead letter with its whole body. Raises `NotFound`, `Rejected` when a part is gone, or `BusUnavailable`."""
    async with connected(settings) as bus:
        return await _whole(bus, number, await _required(bus, number))


async def matching(settings: SharedSettings, which: Which) -> list[int]:
    """The numbers of the selected dead letters, oldest first. Raises `BusUnavailable`."""
    async with connected(settings) as bus:
        extent = await bus.extent(STREAM)
        letters = _between(bus, extent.first, extent.last)
        return [number async for number, letter in letters if _begins(letter) and which(letter)]


async def replay(settings: SharedSettings, number: int, *, dry_run: bool) -> Replayed:
    """Send the message again, to all consumers of its stream; they know its event id, so nothing counts twice.

    Raises `NotFound`, or `Rejected` for a message that still breaks its contract: it would only die again.
    """
    async with connected(settings) as bus:
        done = await _replay(bus, number, await _required(bus, number), dry_run=dry_run)
    if done.refused is not None:
        raise Rejected(f"dead letter {number} would die again: {done.refused}")
    return done


async def replay_all(settings: SharedSettings, numbers: Sequence[int], *, dry_run: bool) -> list[Replayed]:
    """Send all these messages again, oldest first; of one that would die again it says why, and the others go on.

    Raises `BusUnavailable`; beginning again is safe, consumers know what they have handled.
    """
    async with connected(settings) as bus:
        letters = _named(bus, numbers)
        return [await _replay(bus, number, letter, dry_run=dry_run) async for number, letter in letters]


async def drop(settings: SharedSettings, numbers: Sequence[int]) -> None:
    """Delete dead letters for good, all their parts. Raises `NotFound` or `BusUnavailable`."""
    async with connected(settings) as bus:
        async for number, letter in _named(bus, numbers):
            for part in await _numbers(bus, number, letter):
                await bus.nc.jetstream().delete_msg(STREAM, part)


def envelope(letter: DeadLetter, number: int) -> tuple[Headers, bytes]:
    """Headers and body to send: the same event under a message id of its own, or the broker would drop it as known."""
    headers: Headers = dict(letter.headers)
    known = headers.get("ce-id") or headers.get("Nats-Msg-Id")
    if known is not None:
        headers["ce-id"] = known
    headers["Nats-Msg-Id"] = named_id("replay", number, known or letter.sequence)
    return headers, base64.b64decode(letter.body)


def complaint(contracts: Contracts, subject: str, headers: Headers, body: bytes) -> str | None:
    """Why consumers could not read the message, None when they can."""
    try:
        contracts.read(subject, unseal(headers, body))
    except ContractError as error:
        return str(error)
    return None


async def _replay(bus: Bus, number: int, first: DeadLetter, *, dry_run: bool) -> Replayed:
    try:
        letter = (await _whole(bus, number, first)).letter
    except Rejected as error:
        return Replayed(number=number, subject="", event_id=None, refused=str(error))
    headers, body = envelope(letter, number)
    why = complaint(bus.contracts, letter.original_subject, headers, body)
    if why is None and not dry_run:
        await bus.publish_raw(letter.original_subject, headers, body)
    return Replayed(number=number, subject=letter.original_subject, event_id=headers.get("ce-id"), refused=why)


async def _whole(bus: Bus, number: int, first: DeadLetter) -> StoredLetter:
    """A letter with the body of all its parts."""
    numbers = await _numbers(bus, number, first)
    if len(numbers) != (first.parts or 1):
        raise Rejected(f"dead letter {number} is not whole: {len(numbers)} of {first.parts} parts are there")
    if len(numbers) == 1:
        return StoredLetter(number=number, letter=first, numbers=tuple(numbers))
    pieces = [base64.b64decode((await _required(bus, part)).body) for part in numbers]
    whole = msgspec.structs.replace(first, body=base64.b64encode(b"".join(pieces)).decode(), part=None, parts=None)
    return StoredLetter(number=number, letter=whole, numbers=tuple(numbers))


async def _numbers(bus: Bus, number: int, first: DeadLetter) -> list[int]:
    """The numbers of the letter and of its other parts, which follow it."""
    if first.parts is None:
        return [number]
    if not _begins(first):
        raise Rejected(f"dead letter {number} is part {first.part} of another one before it")
    last = min((await bus.extent(STREAM)).last, number + AT_ONCE)
    numbers = {1: number}
    async with aclosing(_between(bus, number + 1, last)) as following:
        async for found, letter in following:
            same = (letter.stream, letter.sequence, letter.consumer) == (first.stream, first.sequence, first.consumer)
            if same and letter.part is not None and letter.part > 1:
                numbers.setdefault(letter.part, found)
            if len(numbers) == first.parts:
                break
    return [numbers[part] for part in sorted(numbers)]


def _begins(letter: DeadLetter) -> bool:
    """Whether it is a letter of its own, or the first of several."""
    return letter.part in (None, 1)


async def _required(bus: Bus, number: int) -> DeadLetter:
    found = await _stored(bus, number)
    if found is None:
        raise _missing(number)
    return found


def _missing(number: int) -> NotFound:
    return NotFound(f"there is no dead letter {number}")


async def _named(bus: Bus, numbers: Sequence[int]) -> AsyncGenerator[tuple[int, DeadLetter]]:
    """The letters of these numbers, oldest first, many read at a time. Raises `NotFound` for one that is not there."""
    for some in near(numbers):
        letters = {number: letter async for number, letter in _between(bus, some[0], some[-1])}
        for number in some:
            if number not in letters:
                raise _missing(number)
            yield number, letters[number]


def near(numbers: Iterable[int]) -> Iterator[list[int]]:
    """The numbers in order, in lists that span `AT_ONCE` at most: what lies between two of a list is read as well."""
    some: list[int] = []
    for number in sorted(numbers):
        if some and number >= some[0] + AT_ONCE:
            yield some
            some = []
        some.append(number)
    if some:
        yield some


async def _between(bus: Bus, first: int, last: int) -> AsyncGenerator[tuple[int, DeadLetter]]:
    """The letters there are with numbers from `first` to `last`, read in batches. Raises `BusUnavailable`."""
    if last < first:
        return
    async with aclosing(Replay(bus, STREAM, (), max(first, 1), last).batches()) as batches:
        async for batch in batches:
            for message in batch:
                letter = _letter(message.headers, message.data)
                if letter is not None:
                    yield message.metadata.sequence.stream, letter


async def _stored(bus: Bus, number: int) -> DeadLetter | None:
    """The dead letter of that number; None where there is none, or something else, also for numbers below 1."""
    jetstream: Any = bus.nc.jetstream()  # nats-py types its answers only in parts
    try:
        stored = await jetstream.get_msg(STREAM, number)
    except (BadRequestError, NotFoundError):
        return None
    return _letter(stored.headers, stored.data)


def _letter(headers: Headers | None, data: bytes | None) -> DeadLetter | None:
    """The dead letter that a message holds; None for a message that is none."""
    try:
        return decode(unseal(dict(headers or {}), data or b""), DeadLetter)
    except (InvalidMessage, msgspec.DecodeError):
        return None
