"""The console's own API on real stores: facts as the collector stores them, and a client of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.received import Received
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.console.app import subjects_of
from ratchet.console.http_api import console_api
from ratchet.core.contract import Message, Turn
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.contracts import load_contracts
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.rows import TABLES, call_of, row_of
from tests.support.callers import called_by
from tests.support.messages import AT, stored_at

LIFE = "1"


async def store(warehouse: Warehouse, *messages: Message, first: int = 1, at: datetime = AT) -> None:
    """Rows as the collector makes them, in the order of the messages.

    `first`: the sequence of the first one. `at`: when they are stored.
    """
    by_topic: dict[str, list[tuple[int, Message]]] = defaultdict(list)
    for sequence, message in enumerate(messages, first):
        by_topic[message.TOPIC].append((sequence, message))
    for topic, numbered in by_topic.items():
        table = TABLES[topic]
        rows = [
            row_of(
                table,
                Received(one, topic, "", sequence, 1, one.event_id, stored_at(one), "", body=msgspec.json.encode(one)),
                LIFE,
                at + timedelta(milliseconds=sequence),
            )
            for sequence, one in numbered
        ]
        await warehouse.insert(table.name, rows, token=None)
        if topic == Turn.TOPIC:
            await warehouse.insert("calls", [call_of(row) for row in rows], token=None)


UNUSED: Any = None


@asynccontextmanager
async def console(
    warehouse: Warehouse, caller: Caller = ANYONE, now: datetime = AT, bus: Bus | None = None, objects: Any = UNUSED
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the console's own API, for `caller`. Without a bus nothing is asked or published there."""
    subjects = subjects_of(UNUSED, UNUSED, bus or NoBus(), warehouse, objects, lambda: now)
    app = called_by(console_api(subjects), caller)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8084") as http:
        yield http


class NoBus(FakeBus):
    """A bus on which nothing is stored, and which keeps what is published."""

    def __init__(self) -> None:
        super().__init__(FakeBroker(load_contracts()))
        self.published: list[Message] = []

    async def publish_all(self, messages: Sequence[Message], *_: Any, **__: Any) -> Any:
        """Keep them."""
        self.published += messages
