"""Appending to a log whose every message follows the one before it of its subject, also beside other writers.

The broker stores a message only while the newest one of its subject is the one that the writer names: of two writers
one is refused, looks again, and follows the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import nats.errors

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record, unseal
from ratchet.bus.publisher import ACK_DEADLINE_S
from ratchet.bus.pull_consumer import handed_out
from ratchet.core.errors import BusUnavailable, Conflict

_OTHER_IS_NEWEST = {10071, 10164}
"""Codes of the broker's refusal of a message that does not follow the newest one of its subject."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest message of a subject."""

    sequence: int
    body: bytes


async def newest(bus: Bus, subject: str) -> Newest | None:
    """The newest message of a subject; None where its stream has none. Raises `BusUnavailable`."""
    stream = bus.contracts.topic_of(subject).stream
    bus.used.add(stream)
    answer = await handed_out(bus.nc, f"{stream}.{subject}")
    if answer is None:
        return None
    headers = answer.headers or {}
    return Newest(int(headers["Nats-Sequence"]), unseal(headers, answer.data))


async def append(bus: Bus, record: Record, after: int) -> int:
    """Store a message whose subject's newest one has the sequence `after` (0: there is none); its own sequence.

    Raises `Conflict` where another one is the newest, and `BusUnavailable` where the stream is full or does not answer:
    then it may have been stored all the same.
    """
    headers = {**record.headers, "Nats-Expected-Last-Subject-Sequence": str(after)}
    stream = bus.contracts.topic_of(record.subject).stream
    try:
        reply = await bus.nc.request(record.subject, record.body, timeout=ACK_DEADLINE_S, headers=headers)
        answer: dict[str, Any] = json.loads(reply.data)
    except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
        raise BusUnavailable(f"{stream} does not answer: {error or type(error).__name__}") from error
    if "error" not in answer:
        return int(answer["seq"])
    refusal = answer["error"]
    if refusal.get("err_code") in _OTHER_IS_NEWEST:
        raise Conflict(f"{record.subject} has a newer message")
    raise BusUnavailable(f"{stream}: {refusal.get('description', 'refused')}")
