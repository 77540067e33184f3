"""A broker in memory that can go away and come back: the part of a bus that an outbox uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.errors import BusUnavailable


@dataclass
class _Connection:
    is_connected: bool = True
    max_payload: int = 1_000_000


@dataclass
class FakeBroker:
    """Stores what is published while it is there; an event id that it knows is stored once."""

    stored: list[Record] = field(default_factory=list)
    nc: _Connection = field(default_factory=_Connection)
    refusing: bool = False
    """Connected, but publishing fails."""
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while it hangs: connected, but nothing is answered."""
    asked: int = 0
    """Messages that were sent, whatever became of them."""

    def __post_init__(self) -> None:
        self._known: set[str] = set()
        self.answering.set()

    def go_away(self) -> None:
        self.nc.is_connected = False

    def come_back(self) -> None:
        self.nc.is_connected = True
        self.refusing = False

    async def publish_record(self, record: Record) -> None:
        self.asked += 1
        await self.answering.wait()
        if self.refusing or not self.nc.is_connected:
            raise BusUnavailable("the broker is away")
        if record.headers["Nats-Msg-Id"] not in self._known:
            self._known.add(record.headers["Nats-Msg-Id"])
            self.stored.append(record)

    async def connect(self) -> Bus:
        """As a bus, for whatever connects to one."""
        return cast("Bus", self)

    @property
    def ids(self) -> list[str]:
        """Event ids in the order they were stored."""
        return [record.headers["ce-id"] for record in self.stored]
