"""Opting out: from the queue into the bucket that clients and services look into, then what was recorded is erased."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, each, subscribe
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.core.contract import Message, OptOut
from ratchet.core.contract.erasure import AGENT, ASKED, USER, Erasure
from ratchet.core.contract.opt_out import EVERY_ROLE, NEWEST, OPT_OUTS, OptedOut
from ratchet.core.rules.opt_outs import key_of
from ratchet.core.service.audit import Act, By

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
Erase = Callable[[Erasure], Awaitable[object]]
"""Asks for an erasure; for one of the same id it does nothing."""


@dataclass(frozen=True)
class OptOuts:
    """Puts each opting out into the bucket before it has anything erased: what comes meanwhile is dropped by then."""

    bucket: Bucket[OptedOut]
    erase: Erase
    note: Callable[[Act], None]
    """Has it written to the audit log, which holds up no one's opting out."""

    async def take(self, received: Received[OptOut]) -> Sequence[Message]:
        """Out, or in again: by the broker's clock, the later one counts. Coming twice it changes nothing."""
        opt_out, key = received.message, key_of(received.message)
        role = None if opt_out.role == EVERY_ROLE else opt_out.role
        self.note(Act("opt_in" if opt_out.is_over else "opt_out", By(opt_out.source or "unknown"), role, [key]))
        if opt_out.is_over:
            entry = await self.bucket.get(key)
            if entry is not None and entry.value.at <= received.time:
                await self.bucket.delete(key, entry.revision)
                await self._cover(opt_out.role)
            return []
        await self.bucket.put(key, OptedOut(kind=opt_out.kind, at=received.time))
        await self._cover(opt_out.role)
        if opt_out.erases and opt_out.kind != AGENT:  # a program is no person: what it has recorded may be anyone's
            await self.erase(erasure_of(opt_out, received.time))
        return []

    async def _cover(self, role: str) -> None:
        """Have an agent that asks for any key of a role learn of no one."""
        await self.bucket.put(f"{role}.{NEWEST}", OptedOut(kind=USER, at=NEVER))


def erasure_of(opt_out: OptOut, at: datetime) -> Erasure:
    """What is to be erased of someone who opts out. It has the id of the opting out: asked for twice it is one."""
    return Erasure(
        erasure_id=opt_out.opt_out_id,
        kind=opt_out.kind,
        ref=opt_out.ref,
        role=None if opt_out.role == EVERY_ROLE else opt_out.role,
        asked_by=f"opting out ({opt_out.source or 'unknown'})",
        asked_at=at,
        phase=ASKED,
    )


def opt_outs(bus: Bus, erase: Erase, note: Callable[[Act], None]) -> Consumer:
    """The consumer of the queue."""
    handler = OptOuts(Bucket(bus, OPT_OUTS, OptedOut), erase, note)
    return subscribe(bus, "coordinator-opt-outs", {OptOut: each(handler.take)})
