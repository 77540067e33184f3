"""Messages as they are sent, for those who listen: at most once, and in the order of each sender.

What was sent while the connection was away is missed. Who needs that too reads the stream of the messages
(`OrderedReader`) after `breaks` has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ratchet.bus.nats_client import Connection, Refused
from ratchet.core.errors import BusUnavailable


class Listener:
    """Hands on what is sent on one subject."""

    def __init__(self, nc: Connection, subject: str, take: Callable[[bytes], None]) -> None:
        self._nc = nc
        self._subject = subject
        self._take = take
        self._subscription: Subscription | None = None
        self._emptied = asyncio.Event()
        self._refused: tuple[Refused, int] | None = None
        """The broker's user of this program may not listen here, and on which connection it said so."""

    async def open(self) -> None:
        """Listen from now on. Raises `BusUnavailable`; that it may not, `round_trip` says."""
        self._nc.when_refused(self._subject, self._on_refusal)
        try:
            self._subscription = await self._nc.subscribe(self._subject, cb=self._hand_on)
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot listen on {self._subject}: {error!r}") from error

    @property
    def breaks(self) -> int:
        """How often the connection was made anew: messages may have been missed each time."""
        return self._nc.stats["reconnects"]

    async def round_trip(self) -> None:
        """Return once everything that the broker had for this listener when it was asked has been handed on.

        Raises `BusUnavailable`.
        """
        breaks = self.breaks
        try:
            await self._nc.flush()
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"the broker does not answer: {error!r}") from error
        if not self._nc.is_connected or self.breaks != breaks:  # then nats-py has asked nothing, and says nothing
            raise BusUnavailable("the connection to the broker broke")
        if self._refused is not None and self._refused[1] == breaks:
            raise self._refused[0]
        while self._has_waiting:
            self._emptied.clear()
            await self._emptied.wait()

    @property
    def _has_waiting(self) -> bool:
        return self._subscription is not None and self._subscription.pending_msgs > 0

    def _on_refusal(self, refused: Refused) -> None:
        self._refused = refused, self.breaks

    async def _hand_on(self, message: Msg) -> None:
        self._take(message.data)
        if not self._has_waiting:
            self._emptied.set()
