"""A watch knows which messages are settled, from the collector's announcements and the broker's ack floor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from ratchet.bus.consumer import each, subscribe
from ratchet.bus.received import Received
from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.core.contract import Message, Stored, Trajectory
from ratchet.core.contract.operations import SequenceRange
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import Component
from ratchet.core.stores.stored_watch import StoredWatch, stored_check
from tests.support.messages import trajectory

STREAM = "RL_TRAJECTORIES"
CONTRACTS = load_contracts()
C = TypeVar("C", bound=Component)


@asynccontextmanager
async def running(component: C) -> AsyncIterator[C]:
    """Runs the component for the length of the block."""
    task = asyncio.create_task(component.run())
    try:
        yield component
    finally:
        await component.stop()
        await task


def announced(*ranges: tuple[int, int], generation: str = "first/0") -> Stored:
    parts = [SequenceRange(first=first, last=last) for first, last in ranges]
    return Stored(stream=STREAM, generation=generation, sequences=parts)


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus(FakeBroker(CONTRACTS))


async def test_an_announced_message_is_settled(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        assert not watch.is_settled(STREAM, 4)
        await bus.publish(announced((3, 5), (9, 9)))

        await watch.wait_for(STREAM, {3, 4, 5, 9}, 40)
        assert [sequence for sequence in range(1, 11) if watch.is_settled(STREAM, sequence)] == [3, 4, 5, 9]


async def test_waiting_for_any_ends_with_the_first_that_is_settled(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        await watch.wait_for_any(STREAM, (), 40)
        await bus.publish(announced((3, 3)))

        await watch.wait_for_any(STREAM, {2, 3, 4}, 40)
        assert [sequence for sequence in (2, 3, 4) if watch.is_settled(STREAM, sequence)] == [3]


async def test_an_announcement_from_before_the_watch_counts(bus: FakeBus) -> None:
    await bus.publish(announced((1, 2)))

    async with running(StoredWatch(bus, (STREAM,))) as watch:
        await watch.wait_for(STREAM, {1, 2}, 40)
        assert watch.is_settled(STREAM, 2)


async def test_waiting_ends_at_the_deadline(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        await watch.wait_for(STREAM, {1}, 0.05)
        assert not watch.is_settled(STREAM, 1)


async def test_a_stream_that_was_made_anew_begins_again(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        await bus.publish(announced((1, 5)))
        await watch.wait_for(STREAM, {5}, 40)
        await bus.publish(announced((1, 2), generation="second/0"))

        async def begun_again() -> bool:
            return not watch.is_settled(STREAM, 5)

        await eventually(begun_again)
        assert watch.is_settled(STREAM, 2)


async def test_message_settled_without_announcement_is_known_from_the_floor(bus: FakeBus) -> None:
    """A dead letter is not announced, and an announcement may be lost with the collector."""

    async def silent(_: Received[Trajectory]) -> Sequence[Message]:
        return ()

    await bus.publish_all([trajectory("one"), trajectory("two")])
    collector = subscribe(bus, "collector-trajectories", {Trajectory: each(silent)})
    async with running(collector), running(StoredWatch(bus, (STREAM,))) as watch:
        await watch.wait_for(STREAM, {1, 2}, 40)
        assert watch.is_settled(STREAM, 2)
        assert not watch.is_settled(STREAM, 3)


async def test_a_broker_that_was_away_is_followed_again(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        bus.broker.go_away()
        await watch.wait_for(STREAM, {1}, 0.05)
        bus.broker.come_back()
        await bus.publish(announced((1, 1)))

        await watch.wait_for(STREAM, {1}, 40)
        assert watch.is_settled(STREAM, 1)


class Ledger:
    """The history's ledger, with the entries of the stream's present life."""

    def __init__(self, entries: Collection[int]) -> None:
        self._entries = entries
        self.asked = 0

    async def outcomes(self, stream: str, sequences: Collection[int]) -> dict[int, str]:
        """Those of the sequences that have an entry."""
        assert stream == STREAM
        self.asked += 1
        return {sequence: "stored" for sequence in sequences if sequence in self._entries}


async def test_the_ledger_is_asked_only_about_settled_messages_and_decides(bus: FakeBus) -> None:
    """What is settled may be of an earlier life of the stream, whose sequences began again."""
    ledger = Ledger({2})
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        is_stored = stored_check(watch, ledger.outcomes)
        assert not await is_stored(STREAM, 2)
        assert ledger.asked == 0

        await bus.publish(announced((1, 2)))
        await watch.wait_for(STREAM, {1, 2}, 40)
        assert await is_stored(STREAM, 2)
        assert not await is_stored(STREAM, 1)


async def test_the_watch_remembers_a_bounded_number_of_announced_sequences(bus: FakeBus) -> None:
    async with running(StoredWatch(bus, (STREAM,))) as watch:
        await bus.publish(announced((1, 10**12)))
        await watch.wait_for(STREAM, {10**12}, 40)

        assert watch.is_settled(STREAM, 10**12)
        assert not watch.is_settled(STREAM, 1)
