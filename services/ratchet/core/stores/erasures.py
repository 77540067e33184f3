"""Erasures: a key each in the bucket `erasures`, which the collector and then the coordinator work on."""

from __future__ import annotations

from uuid import UUID

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.erasure import AWAITS_APPROVAL, DONE, ERASURES, KINDS, LONGEST_REF, Erasure
from ratchet.core.errors import BadRequest, Conflict
from ratchet.core.rules.erasing import CLOCKS


class KnownErasures:
    """All erasures of the bucket: they stay for ever, and are read anew only where one has changed."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, ERASURES, Erasure)
        self._read: tuple[tuple[str, int], list[Erasure]] | None = None

    async def oldest_first(self) -> list[Erasure]:
        """All of them. Raises `BusUnavailable`."""
        newest = await self._bucket.newest_change()  # before they are read: what comes meanwhile is read again
        if self._read is None or self._read[0] != newest:
            entries = await self._bucket.items()
            self._read = (newest, [entries[key].value for key in sorted(entries)])
        return self._read[1]


async def ask_erasure(bus: Bus, erasure: Erasure) -> tuple[Erasure, bool]:
    """Ask for an erasure; returns it, or the one that is under way for the same, and whether it is new.

    Any program that writes the bucket may. One of a receipt keeps its own id and time: a restored backup may have
    brought its data back. Raises `BadRequest` for what cannot be one, and `BusUnavailable`.
    """
    require_valid(erasure)
    bucket = Bucket(bus, ERASURES, Erasure)
    for entry in (await bucket.items()).values():
        if _includes(entry.value, erasure):
            return entry.value, False
    try:
        await bucket.create(erasure.erasure_id, erasure)
    except Conflict:
        entry = await bucket.get(erasure.erasure_id)
        return entry.value if entry else erasure, False
    return erasure, True


def _includes(known: Erasure, asked: Erasure) -> bool:
    """Whether a known erasure does all that another one asks for: one that waits for long has an older past."""
    if known.erasure_id == asked.erasure_id:
        return True
    is_same = (known.kind, known.ref, known.role) == (asked.kind, asked.ref, asked.role)
    if not is_same or known.retrain < asked.retrain:
        return False
    if known.phase == AWAITS_APPROVAL:  # the second request is what it waits for
        return asked.phase == AWAITS_APPROVAL
    return known.phase != DONE and asked.asked_at <= known.asked_at + CLOCKS


def require_valid(erasure: Erasure) -> None:
    """Raise `BadRequest` for what cannot be an erasure."""
    if erasure.kind not in KINDS:
        raise BadRequest(f"an erasure is of one of {', '.join(KINDS)}, not {erasure.kind[:40]!r}", param="kind")
    if not 0 < len(erasure.ref) <= LONGEST_REF:
        raise BadRequest(f"a ref has 1 to {LONGEST_REF} characters", param="ref")
    try:
        is_plain = str(UUID(erasure.erasure_id)) == erasure.erasure_id
    except ValueError:
        is_plain = False
    if not is_plain:
        raise BadRequest("the id of an erasure is a UUID", param="erasure_id")
