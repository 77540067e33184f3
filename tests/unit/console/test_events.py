"""Live news: read while a page listens, bounded for those who are slow, ended at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ratchet.bus.message import Message
from ratchet.bus.testing import FakeClock, eventually
from ratchet.console.domain.hints import MOST, Hints, hint_of
from ratchet.console.events import BEGIN, HEARTBEAT, LIFETIME_S, MOST_LISTENERS, PER_KEY, WAITING, Events, Listener
from ratchet.core.contract import (
    Alert,
    Feedback,
    ModelDeployed,
    ModelRollout,
    Preference,
    Reward,
    TrainingRequest,
    TrainingStatus,
)
from ratchet.core.contract.http.console import HintOut, LoopOut
from ratchet.core.errors import Unavailable
from tests.support.contract_files import ROOT
from tests.support.running import running

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
LOOP = LoopOut(
    at=AT,
    minutes=[],
    open_trajectories=0,
    streams=[],
    ledger=[],
    services=[],
    roles=[],
    jobs={},
    attention=[],
    unread={},
)


def hint(subject: str | None, kind: str = "job", text: str = "running") -> HintOut:
    return HintOut(kind=kind, role="support", subject=subject, at=AT, text=text, count=1)


class World:
    """A loop that counts how often it is read, and a stream of hints that a test writes."""

    def __init__(self) -> None:
        self.reads = 0
        self.following = 0
        self.take: Callable[[HintOut], None] = lambda _: None
        self.clock = FakeClock()
        self.events = Events(self.read, self.follow, monotonic=self.clock.monotonic, loop_s=0.01, hints_s=0.01)

    async def read(self) -> LoopOut:
        self.reads += 1
        return LOOP

    async def follow(self, take: Callable[[HintOut], None]) -> None:
        self.take, self.following = take, self.following + 1
        try:
            await asyncio.Event().wait()
        finally:
            self.following -= 1


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    async with aclosing(world.events.listen()) as stream:
        assert await anext(stream) == BEGIN
        yield stream


async def until(stream: AsyncGenerator[bytes, None], part: bytes) -> bytes:
    """All that comes, up to the piece that holds `part`."""
    pieces = b""
    async with asyncio.timeout(30):
        async for piece in stream:
            pieces += piece
            if part in piece:
                return pieces
    raise AssertionError(pieces)


async def some_rounds() -> None:
    """Until a loop of the same pace, to which a page listens, has been read three times."""
    other = World()

    async def read_often() -> bool:
        return other.reads >= 3

    async with running(other.events), listening(other):
        await eventually(read_often)


async def test_nothing_is_read_unless_a_page_listens() -> None:
    world = World()

    async def idle() -> bool:
        return world.following == 0

    async with running(world.events):
        await some_rounds()
        assert (world.reads, world.following) == (0, 0)
        async with listening(world) as stream:
            event = await until(stream, b"event: loop")
            assert msgspec.json.decode(event.partition(b"data: ")[2].partition(b"\n")[0], type=LoopOut) == LOOP
            assert world.following == 1
        await eventually(idle)
        reads = world.reads
        await some_rounds()
        assert world.reads == reads


async def test_every_page_gets_every_hint_and_a_newcomer_the_picture_at_once() -> None:
    world = World()
    async with running(world.events), listening(world) as first:
        await until(first, b"event: loop")
        async with listening(world) as second:
            assert b"event: loop" in await anext(second)
            world.take(hint("j1"))
            assert b'"subject":"j1"' in await until(first, b"event: hint")
            assert b'"subject":"j1"' in await until(second, b"event: hint")


async def test_the_streams_end_with_the_service_and_no_other_begins() -> None:
    world = World()
    async with running(world.events), listening(world) as stream:
        await until(stream, b"event: loop")
        await world.events.stop()
        assert [piece async for piece in stream] == []
    with pytest.raises(Unavailable, match="stops"):
        world.events.listen()


async def test_stream_ends_after_its_lifetime_so_that_its_key_is_asked_for_again() -> None:
    world = World()
    async with running(world.events), listening(world) as stream:
        await until(stream, b"event: loop")
        world.clock.advance(LIFETIME_S)
        async with asyncio.timeout(30):
            assert len([piece async for piece in stream]) <= 1


async def test_a_slow_page_gets_the_newest_picture_and_the_newest_hints() -> None:
    listener = Listener()
    listener.show(b"old")
    listener.show(b"new;")
    for number in range(WAITING + 5):
        listener.hint(f"{number};".encode())
    assert await listener.next(1) == b"new;" + b"".join(f"{k};".encode() for k in range(5, WAITING + 5))
    assert await listener.next(0.001) == b""
    listener.end()
    assert await listener.next(1) is None


async def test_only_so_many_pages_may_listen() -> None:
    world = World()
    async with running(world.events):
        streams = [world.events.listen() for _ in range(MOST_LISTENERS)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(Unavailable, match="too many"):
            world.events.listen()
        for stream in streams:
            await stream.aclose()
        async with listening(world):
            pass


async def test_page_of_a_key_with_too_many_gives_way_and_no_other_does() -> None:
    world = World()
    async with running(world.events), aclosing(world.events.listen("theirs")) as other:
        assert await anext(other) == BEGIN
        streams = [world.events.listen("ours") for _ in range(PER_KEY + 1)]
        for stream in streams:
            assert await anext(stream) == BEGIN
        assert [piece async for piece in streams[0]] == []
        for stream in (other, *streams[1:]):
            assert await anext(stream)
            await stream.aclose()


async def test_page_of_a_key_takes_its_own_place_where_too_many_listen() -> None:
    world = World()
    async with running(world.events):
        streams = [world.events.listen("ours") for _ in range(PER_KEY)]
        streams += [world.events.listen() for _ in range(MOST_LISTENERS - PER_KEY)]
        for stream in streams:
            await anext(stream)
        async with aclosing(world.events.listen("ours")) as another:
            assert await anext(another) == BEGIN
        for stream in streams:
            await stream.aclose()


def test_a_heartbeat_is_a_comment() -> None:
    assert HEARTBEAT.startswith(b":")
    assert HEARTBEAT.endswith(b"\n\n")


def test_of_several_hints_about_one_thing_the_newest_counts() -> None:
    hints = Hints()
    for percent in (10, 20):
        hints.add(hint("j1", text=f"running, {percent} %"))
    for _ in range(3):
        hints.add(hint(None, kind="trajectory", text="a trajectory of support ended"))
    taken = hints.take()
    assert [one.text for one in taken] == ["running, 20 %", "3 trajectories"]
    assert taken[1].count == 3
    assert hints.take() == []


def test_more_changes_than_a_page_can_use_are_one_hint() -> None:
    hints = Hints()
    for number in range(MOST + 30):
        hints.add(hint(f"t{number}", kind="reward"))
    taken = hints.take()
    assert (len(taken), taken[0].subject, taken[-1].subject, taken[-1].text) == (MOST, "t0", None, "31 more rewards")
    assert sum(one.count for one in taken) == MOST + 30


def message(kind: type[Message]) -> Message:
    folder = ROOT / "examples" / kind.TOPIC.removeprefix("agent.rl.") / "valid"
    return msgspec.json.decode((folder / "full.json").read_bytes(), type=kind)


@pytest.mark.parametrize(
    ("kind", "of", "subject"),
    [
        (TrainingStatus, "job", "training_job_id"),
        (ModelRollout, "rollout", "rollout_id"),
        (ModelDeployed, "rollout", None),
        (Alert, "alert", "key"),
        (Reward, "reward", "trajectory_id"),
        (Feedback, "feedback", "trajectory_id"),
        (Preference, "feedback", None),
    ],
)
def test_a_message_gives_a_hint_of_what_changed(kind: type[Message], of: str, subject: str | None) -> None:
    given: Any = message(kind)
    made = hint_of(given, AT)
    assert made is not None
    assert (made.kind, made.role, made.at) == (of, given.role, AT)
    assert made.subject == (getattr(given, subject) if subject else None)
    assert made.text
    assert "\n" not in made.text


def test_other_messages_give_none() -> None:
    assert hint_of(message(TrainingRequest), AT) is None
