"""The bus, the consumer loop and projections on a real broker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import msgspec
import pytest
import structlog
from nats.js.api import AckPolicy, ConsumerConfig
from structlog.testing import capture_logs

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Done, Outcome, Retry, each
from ratchet.bus.kv import Bucket
from ratchet.bus.nats_client import Connection
from ratchet.bus.publisher import LOST
from ratchet.bus.pull_consumer import consumer_state
from ratchet.bus.received import Received
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.contract import DeadLetter, Message, Trajectory
from ratchet.core.errors import BusUnavailable, Conflict, Rejected, Unreadable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from tests.support.consuming import consuming, messages_of, projecting
from tests.support.messages import trajectory
from tests.support.running import connected, running
from tests.support.servers import Broker, RunningServer

TOPIC = Trajectory.TOPIC
STREAM = "RL_TRAJECTORIES"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


async def count(bus: Bus, stream: str) -> int:
    return (await bus.nc.jetstream().stream_info(stream)).state.messages


async def test_making_streams_takes_one_request_for_each_also_again(settings: SharedSettings) -> None:
    bus = await Bus.connect(settings.bus, name="test", contracts=load_contracts())
    try:
        for asked in (1, 2):
            await bus.make_streams()
            assert bus.nc.stats["out_msgs"] == asked * len(bus.stream_names)
    finally:
        await bus.close()


async def test_a_large_batch_with_known_messages_in_it_is_stored_whole(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(0, 300, 7)])
        await bus.publish_all([trajectory(str(n)) for n in range(300)])
        assert await count(bus, STREAM) == 300


async def test_invalid_message_becomes_a_dead_letter_and_others_are_handled(
    settings: SharedSettings,
) -> None:
    handled: list[str] = []

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.append(received.message.trajectory_id)
        return []

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: each(handle)})):
        await bus.publish(trajectory("before"))
        causes = {"ce-id": "the-bad-one", "ce-correlationid": "the-root"}
        await bus.nc.jetstream().publish(f"{TOPIC}.support", b'{"trajectory_id": "nonsense"}', headers=causes)
        await bus.publish(trajectory("after"))
        await eventually(lambda: _has(handled, 2))
        letters = await eventually(lambda: messages_of(bus, DeadLetter))
        assert [(letter.stream, letter.sequence, letter.reason) for letter in letters] == [(STREAM, 2, "invalid")]
        headers = (await bus.nc.jetstream().get_msg("RL_DEADLETTERS", 1)).headers or {}
        assert (headers["ce-causationid"], headers["ce-correlationid"]) == ("the-bad-one", "the-root")
        assert set(handled) == {trajectory("before").trajectory_id, trajectory("after").trajectory_id}


@pytest.mark.parametrize("readers", [1, 2])
async def test_readers_of_a_stream_share_its_messages(settings: SharedSettings, readers: int) -> None:
    seen: list[Received[Trajectory]] = []

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        seen.append(received)
        return []

    async with connected(settings) as bus:
        consumers = [consuming(bus, {Trajectory: each(handle)}, f"worker-{n}") for n in range(readers)]
        await bus.publish_all([trajectory("one"), trajectory("two")])
        async with running(*consumers):
            await eventually(lambda: _has(seen, 2 * readers))
    assert {received.sequence for received in seen} == {1, 2}
    assert len({id(received.message) for received in seen}) == 2
    assert all(received.message.event_id == received.event_id for received in seen)


async def test_a_batch_that_must_wait_is_one_line_in_the_log(settings: SharedSettings) -> None:
    fresh: list[int] = []

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        fresh.append(sum(received.delivered == 1 for received in batch))
        return [Retry("too early", 0.05) if received.delivered == 1 else Done() for received in batch]

    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(30)])
        structlog.reset_defaults()  # a client or a command of an earlier test may have raised the level
        with capture_logs() as lines:
            async with running(consuming(bus, {Trajectory: handle})):
                await eventually(lambda: _true(sum(fresh) == 30))
        retried = [line["messages"] for line in lines if line["event"] == "will retry"]
        assert retried == [number for number in fresh if number]


async def test_messages_of_a_stopped_consumer_go_on_before_the_ack_deadline(
    settings: SharedSettings,
) -> None:
    handled: set[str] = set()

    async def note(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        handled.update(received.message.trajectory_id for received in batch)
        return [Done()] * len(batch)

    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(2000)])

        async def note_and_stop(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
            await leaving.stop()
            return await note(batch)

        leaving = consuming(bus, {Trajectory: note_and_stop}, batch=1000)
        await leaving.run()
        assert len(handled) < 1500, "nothing was left on its way"
        async with running(consuming(bus, {Trajectory: note}, batch=1000)):
            await eventually(lambda: _has(handled, 2000), deadline_s=20)  # ack_wait is 30 s


@pytest.mark.own_broker
async def test_a_broker_that_is_killed_loses_nothing_and_the_consumer_goes_on(
    settings: SharedSettings, nats: RunningServer
) -> None:
    handled: set[str] = set()

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.add(received.message.trajectory_id)
        return []

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: each(handle)})):
        await bus.publish_all([trajectory(str(n)) for n in range(20)])
        await asyncio.to_thread(nats.kill)
        await asyncio.to_thread(nats.start)
        await eventually(lambda: _true(bus.nc.is_connected))
        await bus.publish_all([trajectory(str(n)) for n in range(20, 40)])
        await eventually(lambda: _has(handled, 40))
        assert await count(bus, STREAM) == 40


@pytest.mark.own_broker
async def test_publishing_to_a_broker_that_dies_fails_with_the_connection(
    settings: SharedSettings, nats: RunningServer
) -> None:
    """Not only at the deadline for answers: until then it would be in memory alone."""
    async with connected(settings) as bus:
        await bus.publish(trajectory())
        os.kill(nats.pid, signal.SIGSTOP)
        unanswered = asyncio.create_task(bus.publish(trajectory("two")))
        await asyncio.to_thread(nats.kill)
        with pytest.raises(BusUnavailable, match=LOST):
            await unanswered


async def test_a_late_answer_to_a_cancelled_ping_keeps_the_connection_working(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        given_up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        given_up.cancel()
        await bus.nc._send_ping(given_up)
        await bus.nc.flush()
        await bus.publish(trajectory())
        assert bus.nc.stats["reconnects"] == 0


async def test_a_connection_whose_reader_ended_reconnects(settings: SharedSettings) -> None:
    bus = Bus(Connection(), name="deaf", contracts=load_contracts(), replicas=1)
    await bus.reach(settings.bus, settings.nats_url, ping_s=0.1, reconnect_time_wait=0.1)
    try:
        await bus.ensure_streams()
        reading: asyncio.Task[None] = bus.nc._reading_task  # type: ignore[assignment]
        await end(reading)

        async def heard() -> bool:
            return bus.nc.stats["reconnects"] == 1 and bus.nc.is_connected

        await eventually(heard)
        await bus.publish(trajectory())
        assert await count(bus, STREAM) == 1
    finally:
        await bus.close()


@pytest.mark.own_broker
async def test_a_bus_closes_while_the_broker_is_dead(settings: SharedSettings, nats: RunningServer) -> None:
    async with connected(settings) as bus:
        await asyncio.to_thread(nats.kill)
        await eventually(lambda: _true(not bus.nc.is_connected))
        await bus.nc.publish("agent.rl.anything", b"waits in the connection")
    assert bus.nc.is_closed


@pytest.mark.own_broker
async def test_a_projection_follows_through_the_death_of_the_broker(
    settings: SharedSettings, nats: RunningServer
) -> None:
    async with connected(settings) as bus:
        projection = projecting(bus, "count", Trajectory, kind=int, step=lambda state, _: (state or 0) + 1)
        async with running(projection):
            await bus.publish_all([trajectory(str(n)) for n in range(10)])
            await projection.wait_for(10, deadline_s=120)
            await asyncio.to_thread(nats.kill)
            await asyncio.to_thread(nats.start)
            await eventually(lambda: _true(bus.nc.is_connected))
            await bus.publish_all([trajectory(str(n)) for n in range(10, 25)])
            await projection.wait_for(25, deadline_s=120)
            assert projection.state("all") == 25


async def test_compare_and_set_lets_exactly_one_writer_win(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        bucket = Bucket(bus, "baselines", int)
        revision = await bucket.create("n", 1)
        with pytest.raises(Conflict):
            await bucket.create("n", 7)
        await bucket.update("n", 2, revision)
        with pytest.raises(Conflict):
            await bucket.update("n", 3, revision)
        await asyncio.gather(*(bucket.change("n", lambda n: (n or 0) + 1) for _ in range(10)))
        entry = await bucket.get("n")
        assert entry is not None
        assert entry.value == 12


@pytest.mark.own_broker
async def test_a_watch_reports_changes_also_after_the_broker_was_killed(
    settings: SharedSettings, nats: RunningServer
) -> None:
    seen: dict[str, int | None] = {}

    async def follow(bus: Bus) -> None:
        async for changes in Bucket(bus, "baselines", int).watch():
            seen.update({key: entry.value if entry else None for key, entry in changes})

    async with connected(settings) as bus:
        task = asyncio.create_task(follow(bus))
        bucket = Bucket(bus, "baselines", int)
        await bucket.put("a", 1)
        await eventually(lambda: _true(seen == {"a": 1}))
        await asyncio.to_thread(nats.kill)
        await asyncio.to_thread(nats.start)
        await eventually(lambda: _true(bus.nc.is_connected))
        await bucket.put("a", 2)
        await eventually(lambda: _true(seen == {"a": 2}))
        await bucket.delete("a")
        await eventually(lambda: _true(seen == {"a": None}))
        assert not task.done()  # the same watch, not one that began again
        await end(task)


async def test_watch_reads_changed_keys_alone_and_asks_for_one_number(
    settings: SharedSettings,
) -> None:
    looks: list[list[tuple[str, int | None]]] = []

    async def follow(bus: Bus) -> None:
        nonlocal looks
        async for changes in Bucket(bus, "baselines", int).watch(lambda key: key.startswith("k")):
            looks += [[(key, entry.value if entry else None) for key, entry in changes]]

    async with connected(settings) as writer, connected(settings) as bus:
        bucket = Bucket(writer, "baselines", int)
        await asyncio.gather(*(bucket.put(f"k{n}", n) for n in range(300)), bucket.put("other", 1), bucket.put("k0", 0))
        await bucket.delete("k299")
        task = asyncio.create_task(follow(bus))
        await eventually(lambda: _true(len(looks) == 1))
        assert sorted(looks[0]) == sorted((f"k{n}", n) for n in range(299))
        sent, received = bus.nc.stats["out_msgs"], bus.nc.stats["in_msgs"]
        await eventually(lambda: _true(looks[1:3] == [[], []]))
        assert bus.nc.stats["out_msgs"] - sent <= 2 * len(looks)
        await bucket.put("k7", 8)
        await bucket.put("other", 2)
        await bucket.delete("k8")
        await eventually(lambda: _true([("k8", None)] in looks or [("k7", 8), ("k8", None)] in looks))
        assert bus.nc.stats["in_msgs"] - received <= 20
        await end(task)
    assert [change for look in looks[1:] for change in look] == [("k7", 8), ("k8", None)]


async def test_a_watch_notices_a_bucket_that_was_made_anew(settings: SharedSettings) -> None:
    seen: dict[str, int | None] = {}

    async def follow(bus: Bus) -> None:
        async for changes in Bucket(bus, "baselines", int).watch():
            seen.update({key: entry.value if entry else None for key, entry in changes})

    async with connected(settings) as bus:
        await Bucket(bus, "baselines", int).put("a", 1)
        await Bucket(bus, "baselines", int).put("b", 1)
        task = asyncio.create_task(follow(bus))
        await eventually(lambda: _true(seen == {"a": 1, "b": 1}))
        await bus.nc.jetstream().delete_key_value("baselines")
        await bus.ensure_streams()
        await Bucket(bus, "baselines", int).put("b", 2)
        await eventually(lambda: _true(seen["b"] == 2))
        await end(task)
    assert seen == {"a": None, "b": 2}


async def _has(items: Sequence[object] | set[str], number: int) -> bool:
    return len(items) >= number


async def _true(value: bool) -> bool:
    return value


async def test_the_keys_below_a_name_are_read_without_their_neighbours(settings: SharedSettings) -> None:
    """More keys than one request of the broker brings, one of another type, and a deleted one."""
    async with connected(settings) as bus:
        bucket, raw = Bucket(bus, "baselines", int), Bucket(bus, "baselines", msgspec.Raw)
        await asyncio.gather(*(bucket.put(f"a.{n}", n) for n in range(600)), bucket.put("a", 1), bucket.put("ab.1", 1))
        await raw.put("a.1", msgspec.Raw(b"{"))
        await bucket.delete("a.2")
        assert await bucket.keys("a") == sorted(f"a.{n}" for n in range(600) if n != 2)
        below = await bucket.below("a")
        read = {key: entry.value for key, entry in below.items() if not isinstance(entry, Unreadable)}
        assert read == {f"a.{n}": n for n in range(600) if n not in (1, 2)}
        assert below.keys() - read.keys() == {"a.1"}
        assert await bucket.below("nobody") == {}


async def test_reading_a_bucket_leaves_no_consumer_behind(settings: SharedSettings) -> None:
    structlog.reset_defaults()
    async with connected(settings) as bus:
        bucket = Bucket(bus, "baselines", int)
        await bucket.put("a.1", 1)
        with capture_logs() as lines:
            for _ in range(5):
                assert list(await bucket.items()) == list(await bucket.below("a")) == await bucket.keys() == ["a.1"]
        assert (await bus.nc.jetstream().stream_info("KV_baselines")).state.consumer_count == 0
    assert lines == []


async def test_keys_rewritten_while_they_are_read_are_all_there_once(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        bucket = Bucket(bus, "baselines", int)
        names = [f"a.{number}" for number in range(700)]
        await asyncio.gather(*(bucket.put(name, 0) for name in names))

        async def rewriting() -> None:
            while True:
                await asyncio.gather(*(bucket.put(name, 1) for name in names[::7]))

        writer = asyncio.create_task(rewriting())
        try:
            for _ in range(5):
                assert await bucket.keys("a") == sorted(names)
                assert sorted(await bucket.items()) == sorted(names)
        finally:
            await end(writer)


async def test_key_that_cannot_be_one_and_a_value_that_is_too_large_are_refused(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        with pytest.raises(Rejected, match="cannot be a key"):
            await Bucket(bus, "baselines", int).put("a b", 1)
        with pytest.raises(Rejected, match="larger than the broker takes"):
            await Bucket(bus, "baselines", str).put("a", "x" * (bus.nc.max_payload + 1))


async def test_a_reader_that_only_asks_for_its_state_is_not_forgotten(settings: SharedSettings) -> None:
    config = ConsumerConfig(name="reader", ack_policy=AckPolicy.NONE, inactive_threshold=2, mem_storage=True)
    async with connected(settings) as bus:
        reader = bus.pull(STREAM, config, batch=8, linger_s=0.01)
        await reader.open()
        for _ in range(10):
            assert (await reader.state()).total == 0
            await asyncio.sleep(0.5)
        await reader.close()
        await reader.delete()
        assert await consumer_state(bus.nc, STREAM, "reader") is None
