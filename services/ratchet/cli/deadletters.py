"""Reads the dead-letter stream, and sends what lies in it once more."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from nats.js.errors import NotFoundError

from ratchet.cli.broker import connected
from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.envelope import Headers, unseal
from ratchet.kernel.errors import ContractError, NotFound, Rejected
from ratchet.kernel.settings import KernelSettings
from ratchet.messages import decode, named_id
from ratchet.messages.operations import DeadLetter

STREAM = "RL_DEADLETTERS"


class StoredLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter and its own number, by which commands name it."""

    number: int
    letter: DeadLetter


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was, or would be, sent once more."""

    number: int
    subject: str
    event_id: str | None


async def newest(settings: KernelSettings, count: int) -> list[StoredLetter]:
    """The last `count` dead letters, newest first. Raises `BusUnavailable`."""
    letters: list[StoredLetter] = []
    async with connected(settings) as bus:
        number = await bus.last_sequence(STREAM)
        while number > 0 and len(letters) < count:
            found = await _stored(bus, number)
            if found is None:
                break
            letters.append(found)
            number -= 1
    return letters


async def read(settings: KernelSettings, number: int) -> StoredLetter:
    """One dead letter. Raises `NotFound` or `BusUnavailable`."""
    async with connected(settings) as bus:
        return await _required(bus, number)


async def replay(settings: KernelSettings, number: int, *, dry_run: bool) -> Replayed:
    """Send the message again, to all consumers of its stream; they know its event id, so nothing counts twice.

    Raises `NotFound`, or `Rejected` for a message that still breaks its contract: it would only die again.
    """
    async with connected(settings) as bus:
        letter = (await _required(bus, number)).letter
        headers, body = envelope(letter, number)
        why = complaint(bus.contracts, letter.original_subject, headers, body)
        if why is not None:
            raise Rejected(f"dead letter {number} would die again: {why}")
        if not dry_run:
            await bus.publish_raw(letter.original_subject, headers, body)
    return Replayed(number=number, subject=letter.original_subject, event_id=headers.get("ce-id"))


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


async def _required(bus: Bus, number: int) -> StoredLetter:
    found = await _stored(bus, number)
    if found is None:
        raise NotFound(f"there is no dead letter {number}")
    return found


async def _stored(bus: Bus, number: int) -> StoredLetter | None:
    jetstream: Any = bus.nc.jetstream()  # nats-py types its answers only in parts
    try:
        stored = await jetstream.get_msg(STREAM, number)
    except NotFoundError:
        return None
    return StoredLetter(number=number, letter=decode(unseal(dict(stored.headers or {}), stored.data), DeadLetter))
