"""`ratchet deadletters` on a real broker: letters have numbers, and readable ones are sent once more."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import each
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.cli.deadletters import (
    StoredLetter,
    Which,
    drop_letters,
    matching,
    newest,
    read,
    replay_letter,
    replay_letters,
)
from ratchet.core.contract import Message, Trajectory
from ratchet.core.contract.operations import DeadLetter
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.message_bodies import StoredBodies
from tests.support.consuming import consuming
from tests.support.messages import AT, trajectory
from tests.support.running import connected, running


@pytest.fixture(autouse=True)
def loud_again() -> Iterator[None]:
    """Commands silence the log of their process."""
    yield
    structlog.reset_defaults()


def letter(subject: str, headers: dict[str, str], body: bytes, sequence: int) -> DeadLetter:
    return DeadLetter(
        stream="RL_TRAJECTORIES",
        sequence=sequence,
        consumer="collector-trajectories",
        original_subject=subject,
        reason="rejected",
        detail="it was a bad day",
        at=AT,
        headers=headers,
        body=base64.b64encode(body).decode(),
    )


async def publish_dead_letters(bus: Bus) -> None:
    """A readable trajectory that was published and died, and an unreadable one."""
    await bus.publish(trajectory())
    record = bus.seal(trajectory())
    await bus.publish(letter(record.subject, record.headers, record.body, 1))
    await bus.publish(letter(record.subject, record.headers, b'{"no": "trajectory"}', 2))


async def test_letters_are_listed_newest_first_and_read_by_number(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        await publish_dead_letters(bus)
        newest_first = [one.number for one in await newest(shared_settings, 10)]
        last = (await bus.extent("RL_DEADLETTERS")).last
        assert newest_first[:2] == [last, last - 1]
        assert (await read(shared_settings, last)).letter.sequence == 2
        with pytest.raises(NotFound, match=f"no dead letter {last + 1}"):
            await read(shared_settings, last + 1)


async def test_a_replay_is_a_new_message_of_the_same_event_and_counts_once(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        await publish_dead_letters(bus)
        number = (await bus.extent("RL_DEADLETTERS")).last - 1
        before = (await bus.extent("RL_TRAJECTORIES")).last
        planned = await replay_letter(shared_settings, number, dry_run=True)
        assert (await bus.extent("RL_TRAJECTORIES")).last == before
        for _ in range(2):
            assert await replay_letter(shared_settings, number, dry_run=False) == planned
        stored = await bus.nc.jetstream().get_msg("RL_TRAJECTORIES", before + 1)
        assert (stored.headers or {})["ce-id"] == planned.event_id == trajectory().event_id
        assert (await bus.extent("RL_TRAJECTORIES")).last == before + 1


async def test_many_letters_are_read_with_few_requests(shared_settings: SharedSettings) -> None:
    many, requests = 80, list[str]()

    async def note(request: Msg) -> None:
        requests.append(request.subject)

    async with connected(shared_settings) as bus:
        record = bus.seal(trajectory())
        await bus.publish_all(
            [letter(record.subject, record.headers, record.body, number) for number in range(1, many + 1)]
        )
        await drop_letters(shared_settings, [7])  # a hole costs nothing either
        await bus.nc.subscribe("$JS.API.>", cb=note)
        everything = Which(stream="RL_TRAJECTORIES")
        for read_all in (lambda: newest(shared_settings, many), lambda: matching(shared_settings, everything)):
            requests.clear()
            assert len(await read_all()) == many - 1
            await bus.nc.flush()
            assert 0 < len(requests) <= many / 8, requests
        requests.clear()
        numbers = await matching(shared_settings, everything)
        await replay_letters(shared_settings, numbers, dry_run=True)
        await drop_letters(shared_settings, numbers)
        await bus.nc.flush()
        others = [one for one in requests if "MSG.DELETE" not in one]
        assert (len(requests) - len(others), len(others) <= many / 4) == (many - 1, True), others


async def test_a_letter_that_still_breaks_its_contract_is_not_replayed(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        await publish_dead_letters(bus)
        before = (await bus.extent("RL_TRAJECTORIES")).last
        with pytest.raises(Rejected, match="would die again"):
            await replay_letter(shared_settings, (await bus.extent("RL_DEADLETTERS")).last, dry_run=False)
        assert (await bus.extent("RL_TRAJECTORIES")).last == before


async def test_many_are_sent_again_and_those_that_would_die_again_are_named(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        for number in range(1, 6):
            record = bus.seal(trajectory(str(number)))
            await bus.publish(letter(record.subject, record.headers, b"{}" if number == 3 else record.body, number))
        assert await matching(shared_settings, Which(stream="RL_TURNS")) == []
        assert await matching(shared_settings, Which(reason="invalid")) == []
        assert await matching(shared_settings, Which(since=AT.replace(year=2030))) == []
        numbers = await matching(shared_settings, Which(stream="RL_TRAJECTORIES", reason="rejected", since=AT))
        assert len(numbers) == 5
        done = await replay_letters(shared_settings, numbers, dry_run=False)
        assert [one.refused is None for one in done] == [True, True, False, True, True]
        assert (await bus.extent("RL_TRAJECTORIES")).last == 4


async def test_dropped_letters_are_gone_and_leave_no_hole_in_the_list(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        for number in range(1, 6):
            record = bus.seal(trajectory(str(number)))
            await bus.publish(letter(record.subject, record.headers, record.body, number))
        await drop_letters(shared_settings, [3, 4])
        assert [one.number for one in await newest(shared_settings, 10)] == [5, 2, 1]
        assert [one.number for one in await newest(shared_settings, 2)] == [5, 2]
        with pytest.raises(NotFound):
            await drop_letters(shared_settings, [3])


SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
"""Of a form that is taken out of texts."""
LARGE = random.Random(1).randbytes(7_700_000).hex()
"""As much as the broker takes of one message: packed it is half as long."""


@asynccontextmanager
async def dying_once(bus: Bus) -> AsyncIterator[list[Trajectory]]:
    """A consumer that gives every message up at first, and takes those that come again."""
    taken: list[Trajectory] = []

    async def handle(received: Received[Trajectory]) -> list[Message]:
        if received.sequence > 1:
            taken.append(received.message)
            return []
        raise Rejected("not today")

    async with running(consuming(bus, {Trajectory: each(handle)})):
        yield taken


def instructed(words: str) -> Trajectory:
    return trajectory(task_context=TaskContext(task_id="t", instructions=words))


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (instructed(random.Random(1).randbytes(3_500_000).hex()), "in_stream"),
        (instructed(f"Use {SECRET}."), "redacted"),
    ],
    ids=["large", "with a secret"],
)
async def test_a_replay_sends_the_original_that_the_stream_holds(
    shared_settings: SharedSettings, message: Trajectory, kept: str
) -> None:
    async with connected(shared_settings) as bus, dying_once(bus) as taken:
        await bus.publish(message)

        async def dead() -> list[StoredLetter]:
            return await newest(shared_settings, 10)

        (one,) = await eventually(dead)
        bus.bodies = StoredBodies(shared_settings)  # the command keeps a large one there
        shown = await read(shared_settings, one.number)
        assert (shown.letter.kept, shown.refused, SECRET in decoded(shown)) == (kept, None, False)
        await replay_letter(shared_settings, one.number, dry_run=False)

        async def handled() -> bool:
            return bool(taken)

        await eventually(handled)
    assert taken == [message]


def decoded(stored: StoredLetter) -> str:
    return base64.b64decode(stored.letter.body).decode()


async def test_a_letter_whose_original_is_gone_is_refused_with_words(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        await bus.publish(trajectory())
        record = bus.seal(trajectory())
        part = letter(record.subject, record.headers, b"", 1)
        await bus.publish(msgspec.structs.replace(part, kept="in_stream", stored_at=AT))  # of a stream before this one
        (one,) = await newest(shared_settings, 10)
        with pytest.raises(Rejected, match=r"RL_TRAJECTORIES no longer holds message 1.*have its sender send it again"):
            await replay_letter(shared_settings, one.number, dry_run=False)
