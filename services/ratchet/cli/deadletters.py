"""Reads the newest messages of the dead-letter stream."""

from __future__ import annotations

from typing import Any

from nats.js.errors import NotFoundError

from ratchet.cli.broker import connected
from ratchet.kernel.envelope import unseal
from ratchet.kernel.settings import KernelSettings
from ratchet.messages import decode
from ratchet.messages.operations import DeadLetter

STREAM = "RL_DEADLETTERS"


async def newest(settings: KernelSettings, count: int) -> list[DeadLetter]:
    """The last `count` dead letters, newest first. Raises `BusUnavailable`."""
    letters: list[DeadLetter] = []
    async with connected(settings) as bus:
        jetstream: Any = bus.nc.jetstream()  # nats-py types its answers only in parts
        sequence = await bus.last_sequence(STREAM)
        while sequence > 0 and len(letters) < count:
            try:
                stored = await jetstream.get_msg(STREAM, sequence)
            except NotFoundError:
                break
            letters.append(decode(unseal(dict(stored.headers or {}), stored.data), DeadLetter))
            sequence -= 1
    return letters
