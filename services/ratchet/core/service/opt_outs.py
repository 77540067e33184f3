"""Who is not to be recorded, as a service knows it: the bucket `opt_outs`, which it follows.

    known = KnownOptOuts(connect)                        # a component of the service
    known.covers("support", refs_of(message))

An opting out counts here as soon as the broker has said so, and one that this process itself has sent at once. While
the broker is away the last known ones count. Of each key 16 bytes are kept: there may be millions.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing

import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.kv import POLL_S, entry_of, is_marker
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.stream_configs import BUCKET
from ratchet.bus.tasks import Lasting
from ratchet.core.contract.opt_out import EVERY_ROLE, NEWEST, OPT_OUTS, OptedOut, OptOut
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.access import ALL_ROLES, RoleSet
from ratchet.core.rules.opt_outs import Ref, key_of, keys_of

log = structlog.get_logger()

STREAM = f"{BUCKET}{OPT_OUTS}"
_KEY = f"$KV.{OPT_OUTS}."
PAUSE_S = 0.5


class KnownOptOuts(Lasting):
    """Follows the bucket while it runs."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        super().__init__()
        self._connect = connect
        self._bus: Bus | None = None
        self._stored: set[bytes] = set()
        self._own: dict[bytes, bool] = {}
        """What this process has sent, and the bucket does not say yet."""
        self.is_read = asyncio.Event()
        """Set once the bucket was read."""

    @property
    def is_empty(self) -> bool:
        """Whether no one has opted out."""
        return not self._stored and not self._own

    def covers(self, role: str, refs: Iterable[Ref]) -> bool:
        """Whether any one of these is not to be recorded in a role."""
        if self.is_empty:
            return False
        return any(self._own.get(known, known in self._stored) for known in map(_short, keys_of(role, refs)))

    def note(self, opt_out: OptOut) -> None:
        """Heed here, and now, what this process sends. Of one who is recorded anyway the bucket has nothing to say that
        would end this."""
        known = _short(key_of(opt_out))
        if not opt_out.is_over or known in self._stored or known in self._own:
            self._own[known] = not opt_out.is_over

    async def kept(self, most: int, roles: RoleSet = ALL_ROLES) -> tuple[int, list[tuple[str, OptedOut]]]:
        """How many entries concern these roles, and the newest of them, oldest first, by key. Raises
        `BusUnavailable`."""
        if self._bus is None:
            raise BusUnavailable("the broker was not reached yet: who has opted out is not known")
        newest, total = deque[tuple[str, OptedOut]](maxlen=most), 0
        async with aclosing(OrderedReader(self._bus, STREAM, start=None).to_end()) as batches:
            async for batch in batches:
                for message in batch:
                    key = message.subject.removeprefix(_KEY)
                    role = key.partition(".")[0]
                    if is_marker(message) or key.endswith(NEWEST) or not (role == EVERY_ROLE or role in roles):
                        continue
                    total += 1
                    newest.append((key, entry_of(f"{OPT_OUTS}/{key}", message.data, 0, OptedOut).value))
        return total, [*newest]

    async def ready(self) -> str | None:
        """Readiness: why someone would be recorded who has opted out, None when they would not.

        While the broker is away no process can know: what is recorded then waits in a spool; the collector drops it.
        """
        is_reading = self._bus is not None and self._bus.is_connected and not self.is_read.is_set()
        return "reads who has opted out" if is_reading else None

    async def _work(self) -> None:
        self._bus = await self._connect()
        self._bus.used.add(STREAM)
        while True:
            try:
                await self._follow(self._bus)
            except BusUnavailable as error:
                log.debug("opt-outs are read again", reason=str(error))
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, bus: Bus) -> None:
        """Read what there is, then what changes; returns, or raises `BusUnavailable`, when it must be read again."""
        reader = OrderedReader(bus, STREAM, start=None, headers_only=True, linger_s=0.0)
        before = await bus.extent(STREAM)
        await reader.open()
        try:
            whole = set[bytes]()
            while not reader.is_at_end(await reader.state()):
                batch = await reader.next(POLL_S)
                self._take(batch, whole)
                if not batch and not reader.is_at_end(await reader.state()):
                    return
            self._stored = whole
            self.is_read.set()
            seen = before.last if reader.newest is None else reader.newest.metadata.sequence.stream
            while True:
                batch = await reader.next(POLL_S)
                self._take(batch, self._stored)
                if batch:
                    seen = batch[-1].metadata.sequence.stream
                    continue
                now = await bus.extent(STREAM)  # a broker that was killed says nothing for 15-20 s
                if not reader.has_waiting and (now.made != before.made or now.last > seen):
                    return
        finally:
            await reader.close()
            await reader.delete()

    def _take(self, batch: Iterable[Msg], stored: set[bytes]) -> None:
        for message in batch:
            known, is_out = _short(message.subject.removeprefix(_KEY)), not is_marker(message)
            if self._own.get(known) == is_out:
                del self._own[known]
            if is_out:
                stored.add(known)
            else:
                stored.discard(known)


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
