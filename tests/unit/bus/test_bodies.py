"""Large bodies: kept beside the broker and referred to, and read as if they had been in their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.consumer import Done, Outcome, subscribe
from ratchet.bus.envelope import REFERENCE, Record
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.outbox import Outbox
from ratchet.bus.received import Received
from ratchet.bus.spool import Spool
from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.core.contract import DeadLetter, Trajectory
from ratchet.core.errors import BusUnavailable, InvalidMessage, ObjectsUnavailable
from tests.support.bodies import MemoryBodies, text_of
from tests.support.fake_bus import fake_broker
from tests.support.messages import trajectory
from tests.support.running import running

LARGE, LARGER = 1_600_000, 4_000_000
"""Characters of a text: more than is kept in a message, and more than this broker takes (1 MB), packed."""
STREAM = "RL_TRAJECTORIES"


def large(name: str = "large", size: int = LARGE, role: str = "support") -> Trajectory:
    task = trajectory(name).task_context
    return trajectory(name, role=role, task_context=task.__class__(task_id="t", instructions=text_of(size)))


def bus_with(bodies: MemoryBodies | None, broker: FakeBroker | None = None) -> FakeBus:
    bus = FakeBus(broker or fake_broker())
    bus.bodies = bodies
    return bus


def stored(bus: FakeBus) -> list[Record]:
    return bus.broker.stored


@asynccontextmanager
async def collecting(bus: FakeBus) -> AsyncIterator[list[Trajectory]]:
    seen: list[Trajectory] = []

    async def take(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        seen.extend(received.message for received in batch)
        return [Done() for _ in batch]

    async with running(subscribe(bus, "collector-trajectories", {Trajectory: take})):
        yield seen


async def seen_in(messages: list[Any], number: int) -> None:
    async def there() -> bool:
        return len(messages) >= number

    await eventually(there)


async def test_a_large_body_is_referred_to_and_read_whole() -> None:
    bus = bus_with(bodies := MemoryBodies())
    await bus.publish_all([large(), trajectory("small")])
    (record, small) = stored(bus)
    assert (record.body, REFERENCE in record.headers, REFERENCE in small.headers) == (b"", True, False)
    assert [place for place, _ in bodies.held] == ["support"]
    async with collecting(bus) as seen:
        await seen_in(seen, 2)
    assert seen == [large(), trajectory("small")]


async def test_ordered_reader_reads_a_large_body_whole_and_waits_for_the_store() -> None:
    bus = bus_with(bodies := MemoryBodies())
    await bus.publish(large())
    bodies.away = True
    reader = OrderedReader(bus, STREAM)
    await reader.open()
    with pytest.raises(BusUnavailable, match="the object store is away"):
        await reader.next(1.0)
    bodies.away = False
    again = OrderedReader(bus, STREAM)
    await again.open()
    (message,) = await again.next(1.0)
    assert bus.read(message)[0].message == large()


async def test_what_the_broker_takes_is_published_while_the_store_is_away() -> None:
    bus = bus_with(MemoryBodies(away=True), broker=fake_broker())
    bus.nc.max_payload = 8_000_000  # pyright: ignore[reportAttributeAccessIssue] - of the fake
    await bus.publish(large())
    (record,) = stored(bus)
    assert REFERENCE not in record.headers
    with pytest.raises(ObjectsUnavailable):
        await bus.publish(large(size=2 * 8_000_000))


async def test_without_a_store_a_message_beyond_the_brokers_bound_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="larger than the broker takes"):
        await bus_with(None).publish(large(size=LARGER))


async def test_body_for_which_the_store_is_away_waits_in_the_spool_in_order(tmp_path: Path) -> None:
    broker, bodies = fake_broker(), MemoryBodies(away=True)
    spool = Spool(tmp_path, 50_000_000)
    outbox = Outbox(broker.contracts, "test", spool)

    async def connect() -> FakeBus:
        return bus_with(bodies, broker)

    task = asyncio.create_task(outbox.run(connect))
    messages = [trajectory("before"), large(size=LARGER), trajectory("after")]
    for message in messages:
        outbox.put(message)

    async def spooled() -> bool:
        return spool.pending >= 2

    await eventually(spooled)
    bodies.away = False
    assert await outbox.flush(60)
    await outbox.stop()
    await task
    spool.close()
    assert broker.ids == [message.event_id for message in messages]
    assert (outbox.stats.published, outbox.stats.refused, outbox.stats.overflowed) == (3, 0, 0)


@pytest.mark.parametrize("fault", ["missing", "another", "of another role", "of no form"])
async def test_a_body_that_does_not_fit_makes_a_dead_letter_and_holds_up_nothing(fault: str) -> None:
    bus = bus_with(bodies := MemoryBodies())
    await bus.publish(large())
    ((key, body),) = bodies.held.items()
    if fault == "of another role":
        bodies.held = {("billing", key[1]): body}
    elif fault == "of no form":
        record = stored(bus)[0]
        reference = {**record.headers, REFERENCE: "../secret", "Nats-Msg-Id": "odd"}
        bodies.held.clear()
        bus.broker.store(Record(record.subject, reference, b""))
    else:
        bodies.held = {key: b"another"} if fault == "another" else {}
    await bus.publish(trajectory("small"))
    async with collecting(bus) as seen:
        await seen_in(seen, 1)
        await eventually(partial(published_letters, bus))
    assert seen == [trajectory("small")]
    letter = (await published_letters(bus))[0]
    assert (letter.reason, letter.kept) == ("invalid", "in_stream")
    assert "no body was kept that fits" in letter.detail


async def published_letters(bus: FakeBus) -> list[DeadLetter]:
    return [received.message for received in bus.stored("RL_DEADLETTERS")]


async def test_a_message_whose_body_cannot_be_read_now_waits_and_others_pass() -> None:
    bus = bus_with(bodies := MemoryBodies())
    await bus.publish(large())
    bodies.away = True
    await bus.publish(trajectory("small"))
    async with collecting(bus) as seen:
        await seen_in(seen, 1)
        assert seen == [trajectory("small")]
        bodies.away = False
        await seen_in(seen, 2)
    assert seen[1] == large()
    assert not await published_letters(bus)


async def test_a_reader_without_a_store_leaves_a_message_for_later() -> None:
    writer = bus_with(MemoryBodies())
    await writer.publish(large())
    reader = OrderedReader(bus_with(None, writer.broker), STREAM)
    await reader.open()
    with pytest.raises(BusUnavailable, match="reads no store of bodies"):
        await reader.next(1.0)
