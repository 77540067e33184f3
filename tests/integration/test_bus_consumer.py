"""The consumer loop on a real broker when what it depends on fails, when messages are large, and when they wait."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from ratchet.bus.connection import STANDING_S, Bus
from ratchet.bus.consumer import Consumer, Done, Later, Outcome, Retry, each, newest_copies
from ratchet.bus.figures import stream_figures
from ratchet.bus.pull_consumer import BATCH_BYTES, PULL_EXPIRES_S, REQUEST_BYTES, PullConsumer
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message, Trajectory
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.errors import BusUnavailable, Rejected, Unavailable
from ratchet.core.service.settings import SharedSettings
from tests.support.consuming import consuming
from tests.support.messages import trajectory
from tests.support.running import connected, running
from tests.support.servers import Broker, RunningServer
from tests.support.training import reward

STREAM = "RL_TRAJECTORIES"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


def sized(name: str, size: int, *, compressible: bool) -> Trajectory:
    text = "x" * size if compressible else random.Random(name).randbytes(size // 2).hex()
    return trajectory(name, task_context=TaskContext(task_id=name, instructions=text))


async def true(value: object) -> bool:
    return bool(value)


async def test_accounting_for_dead_letters_is_retried_until_it_succeeds(settings: SharedSettings) -> None:
    attempts: list[int] = []
    handled: list[str] = []

    async def account(sequences: Sequence[int]) -> None:
        attempts.extend(sequences)
        if len(attempts) < 3:
            raise Rejected("the ledger's table is not there")

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.append(received.message.session_id)
        return []

    async with connected(settings) as bus:
        await bus.nc.jetstream().publish(Trajectory.TOPIC, b"nonsense")
        async with running(consuming(bus, {Trajectory: each(handle)}, on_dead=account)):
            await bus.publish(trajectory("after"))
            await eventually(lambda: _stored(bus, "RL_DEADLETTERS", 1))
            await eventually(lambda: true(handled))
        assert attempts == [1, 1, 1]
        assert (await bus.extent("RL_DEADLETTERS")).last == 1


async def test_unreadable_messages_are_accounted_for_and_hold_up_no_other(
    settings: SharedSettings,
) -> None:
    accounted: list[Sequence[int]] = []
    handled = asyncio.Event()

    async def account(sequences: Sequence[int]) -> None:
        async with asyncio.timeout(60):
            await handled.wait()
        accounted.append(sequences)

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.set()
        return []

    async with connected(settings) as bus:
        for number in range(20):
            await bus.nc.jetstream().publish(Trajectory.TOPIC, b"nonsense %d" % number)
        await bus.publish(trajectory("behind them"))
        async with running(consuming(bus, {Trajectory: each(handle)}, on_dead=account, batch=21, linger_s=30)):
            await eventually(lambda: _stored(bus, "RL_DEADLETTERS", 20))
            await eventually(lambda: _settled(bus))
    assert accounted == [list(range(1, 21))]


async def test_retries_while_a_dependency_is_away_use_up_no_delivery(settings: SharedSettings) -> None:
    seen: list[int] = []

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        seen.append(received.delivered)
        if len(seen) <= 3:
            raise Unavailable("the warehouse is away")
        if len(seen) == 4:
            raise ZeroDivisionError("the first unexpected failure")
        return []

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: each(handle)}, max_deliveries=2)):
        await bus.publish(trajectory())
        await eventually(lambda: true(len(seen) == 5))
        await eventually(lambda: _settled(bus))
        assert (await bus.extent("RL_DEADLETTERS")).last == 0


async def test_messages_that_wait_their_turn_are_not_delivered_again(settings: SharedSettings) -> None:
    """The first message is held until the broker would long have delivered the others again."""
    seen: list[int] = []
    began = asyncio.get_running_loop().time()

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        seen.append(received.delivered)
        await eventually(lambda: true(asyncio.get_running_loop().time() - began > 3.5))
        return []

    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(5)])
        async with running(consuming(bus, {Trajectory: each(handle)}, batch=1, ack_wait_s=1.5)):
            await eventually(lambda: _settled(bus))
    assert seen == [1] * 5


async def test_message_to_come_again_soon_is_no_longer_reported_in_progress(settings: SharedSettings) -> None:
    """It would come after `ack_wait_s` then: the batch is still at hand when its messages are reported."""
    answers: dict[str, list[bytes]] = {}
    reported = asyncio.Event()

    async def on_answer(message: Msg) -> None:
        answers.setdefault(message.subject, []).append(message.data)
        if message.data == Msg.Ack.Progress and message.subject != next(iter(answers)):
            reported.set()

    async def account(sequences: Sequence[int]) -> None:
        async with asyncio.timeout(60):
            await reported.wait()

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        return [Retry("not yet", 0.1) if received.delivered == 1 else Done() for received in batch]

    async with connected(settings) as bus:
        await bus.publish(trajectory("later"))
        await bus.nc.jetstream().publish(Trajectory.TOPIC, b"nonsense")
        await bus.nc.subscribe(f"$JS.ACK.{STREAM}.>", cb=on_answer)
        consumer = consuming(bus, {Trajectory: handle}, on_dead=account, batch=2, linger_s=0.5, ack_wait_s=3.0)
        async with running(consumer):
            await eventually(lambda: _settled(bus))
    returned, unreadable, again = answers.values()
    assert [answer[:4] for answer in returned] == [Msg.Ack.Nak]
    assert Msg.Ack.Progress in unreadable
    assert again == [b""]


async def test_messages_that_wait_for_others_do_not_keep_the_others_away(settings: SharedSettings) -> None:
    handled: list[str] = []

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        handled.extend(one.message.session_id for one in batch if one.message.session_id == "session-go")
        return [Done() if handled else Retry("go has not come", 5.0) for _ in batch]

    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(2500)])
        await bus.publish(trajectory("go"))
        async with running(consuming(bus, {Trajectory: handle})):
            await eventually(lambda: true(handled))
    assert handled == ["session-go"]


async def test_what_is_for_later_comes_first_in_the_next_batch_undelivered(settings: SharedSettings) -> None:
    batches: list[list[tuple[int, int]]] = []

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        batches.append([(one.sequence, one.delivered) for one in batch])
        return [Done(), *[Later()] * (len(batch) - 1)]

    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(4)])
        async with running(consuming(bus, {Trajectory: handle}, batch=3, linger_s=0.5)):
            await eventually(lambda: _settled(bus))
    assert batches == [[(n, 1) for n in range(first, min(first + 3, 5))] for first in range(1, 5)]


def test_copies_of_a_message_are_one_and_a_stream_made_anew_has_others() -> None:
    def delivery(sequence: int, number: int, stored_at_s: int) -> Msg:
        return Msg(Client(), reply=f"$JS.ACK.S.c.{number}.{sequence}.{number}.{stored_at_s}000000000.0")

    first, second, copy, anew = delivery(5, 1, 100), delivery(6, 1, 101), delivery(5, 2, 100), delivery(5, 1, 900)
    assert newest_copies([first, second, copy, anew]) == [copy, second, anew]


def sequences(consumer: Consumer) -> list[int]:
    """Of what waits in it."""
    return [message.metadata.sequence.stream for message in consumer._deliveries.waiting]


async def test_message_that_came_twice_is_acked_once_its_event_is_stored(settings: SharedSettings) -> None:
    handled: list[int] = []

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        if not handled:
            await bus.publish(trajectory("2"))
            await eventually(lambda: true(consumer._deliveries.waiting))
            time.sleep(2.5)  # noqa: ASYNC251 - as a process that is frozen: the broker delivers again what waits in it
            await eventually(lambda: true(sequences(consumer).count(2) > 1))
        fresh = {one.sequence: one for one in batch if one.sequence > 1}
        handled.extend({one.sequence for one in batch})
        return [Done([reward(one.message, 1.0)] if fresh.pop(one.sequence, None) else []) for one in batch]

    async with connected(settings) as bus:
        await bus.publish(trajectory("1"))
        consumer = consuming(bus, {Trajectory: handle}, ack_wait_s=2.0, linger_s=0.1)
        await bus.nc.jetstream().delete_stream("RL_REWARDS")
        async with running(consumer):
            await eventually(lambda: true(handled.count(2) > 1), 30)
    assert handled.count(2) == 2


class Body:
    """What a handler holds."""


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("odd")])
async def test_failed_batch_is_let_go_of_without_a_search_for_garbage(
    settings: SharedSettings, one_by_one: bool, error: Exception
) -> None:
    held: list[weakref.ref[Body]] = []

    async def handle(batch: object) -> Sequence[Any]:
        body = Body()
        held.append(weakref.ref(body))
        raise type(error)(str(error))

    handler = each(handle) if one_by_one else handle
    gc.disable()
    try:
        async with connected(settings) as bus:
            await bus.publish_all([trajectory("1"), trajectory("2")])
            async with running(consuming(bus, {Trajectory: handler}, linger_s=0.5)):
                await eventually(lambda: true(len(held) > 3))
                assert [body() for body in held[:3]] == [None, None, None]
    finally:
        gc.enable()


async def test_a_batch_is_bounded_in_the_unpacked_size_of_its_bodies(settings: SharedSettings) -> None:
    sizes: list[int] = []

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        sizes.append(sum(len(one.body) for one in batch))
        return [Done()] * len(batch)

    async with connected(settings) as bus:
        await bus.publish_all([sized(str(n), 1_000_000, compressible=True) for n in range(40)])
        async with running(consuming(bus, {Trajectory: handle}, linger_s=0.5)):
            await eventually(lambda: _settled(bus))
    assert sum(sizes) > 40_000_000
    assert max(sizes) <= BATCH_BYTES


@pytest.mark.slow
async def test_message_comes_at_once_also_after_the_request_for_it_has_expired(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        consumer = PullConsumer(bus.nc, STREAM, ConsumerConfig(ack_policy=AckPolicy.NONE), batch=8, linger_s=0.01)
        await consumer.open()
        sent = bus.nc.stats["out_msgs"]
        waiting = asyncio.create_task(consumer.next_batch(wait_s=60))
        await eventually(lambda: true(bus.nc.stats["out_msgs"] >= sent + 2), 40)  # asked, and again
        await bus.publish(trajectory())
        async with asyncio.timeout(20):
            (message,) = await waiting
        await consumer.close()
    assert message.metadata.sequence.stream == 1


@pytest.mark.slow
async def test_requests_that_expire_are_no_more_after_bursts(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        config = ConsumerConfig(durable_name="bursts", ack_policy=AckPolicy.NONE)
        consumer = PullConsumer(bus.nc, STREAM, config, batch=8, linger_s=0.01)
        await consumer.open()
        for burst in range(6):
            await bus.publish_all([trajectory(f"{burst} {n}") for n in range(5)])
            taken = 0
            while taken < 5:
                taken += len(await consumer.next_batch(wait_s=1))
        waiting = asyncio.create_task(consumer.next_batch(wait_s=60))
        await asyncio.sleep(2 * PULL_EXPIRES_S + 1)
        state = await bus.nc.jetstream().consumer_info(STREAM, "bursts")
        consumer.interrupt()
        await waiting
        await consumer.close()
    assert state.num_waiting == 1


async def test_messages_that_wait_in_memory_are_bounded_in_bytes_and_all_arrive(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        for n in range(60):
            await bus.publish(sized(str(n), 1_000_000, compressible=False))
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = PullConsumer(bus.nc, STREAM, config, batch=512, linger_s=0.01)
        await consumer.open()
        received, most = 0, 0
        while received < 60:
            received += len(await consumer.next_batch(wait_s=5))
            most = max(most, consumer.waiting_bytes)
        await consumer.close()
    assert most <= 3 * REQUEST_BYTES


@pytest.mark.own_broker
async def test_a_frozen_broker_delays_messages_and_loses_none(settings: SharedSettings, nats: RunningServer) -> None:
    handled: set[str] = set()

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.add(received.message.session_id)
        return []

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: each(handle)})):
        await bus.publish_all([trajectory(str(n)) for n in range(10)])
        os.kill(nats.pid, signal.SIGSTOP)
        with pytest.raises(BusUnavailable):
            await bus.publish(trajectory("10"))
        os.kill(nats.pid, signal.SIGCONT)
        await eventually(lambda: _published(bus, trajectory("10")))
        await eventually(lambda: true(len(handled) == 11))


@pytest.mark.own_broker
async def test_a_broker_that_lost_its_data_is_read_again_from_its_new_beginning(
    settings: SharedSettings, nats: RunningServer, tmp_path: Path
) -> None:
    handled: list[tuple[int, str]] = []

    async def handle(received: Received[Trajectory]) -> Sequence[Message]:
        handled.append((received.sequence, received.message.session_id))
        return []

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: each(handle)})):
        await bus.publish_all([trajectory(str(n)) for n in range(3)])
        await eventually(lambda: true(len(handled) == 3))
        await asyncio.to_thread(nats.kill)
        shutil.rmtree(tmp_path / "nats" / "jetstream")
        await asyncio.to_thread(nats.start)
        await eventually(lambda: _published(bus, trajectory("new")))
        await eventually(lambda: true(len(handled) == 7))  # their publisher has sent the three again
    assert sorted(sequence for sequence, _ in handled[3:]) == [1, 2, 3, 4]
    assert {session for _, session in handled[3:]} == {"session-new", *(session for _, session in handled[:3])}


async def _stored(bus: Bus, stream: str, count: int) -> bool:
    return (await bus.extent(stream)).last >= count


async def _settled(bus: Bus) -> bool:
    readers = await bus.nc.jetstream().consumers_info(STREAM)
    return bool(readers) and readers[0].ack_floor.stream_seq == (await bus.extent(STREAM)).last


async def _published(bus: Bus, message: Message) -> bool:
    try:
        await bus.publish(message)
    except BusUnavailable:
        return False
    return True


async def test_age_of_the_oldest_unsettled_message_is_known(settings: SharedSettings) -> None:
    """A message that is refused again and again, and newer ones that pass it."""
    refused = "session-refused"

    async def handle(batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        sessions = [received.message.session_id for received in batch]
        return [Retry("not yet", 0.2) if session == refused else Done() for session in sessions]

    async def waits_s() -> float:
        (consumer,) = (await stream_figures(bus, STREAM)).consumers
        return consumer.oldest_s

    async def waits_on() -> bool:
        return await waits_s() > 1.0

    async with connected(settings) as bus, running(consuming(bus, {Trajectory: handle})):
        await bus.publish(trajectory("passes"))
        await eventually(lambda: _settled(bus))
        assert await waits_s() == 0.0
        await bus.publish_all([trajectory("refused"), trajectory("newer")])
        await eventually(waits_on)
        refused = ""
        await eventually(lambda: _settled(bus))
        assert await waits_s() == 0.0


async def test_consumers_that_stand_still_are_noted(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        bus.oldest_s = {"reward-trajectories": STANDING_S + 100, "collector-turns": STANDING_S - 1}
        assert await bus.check_consumers() == "the oldest message of reward-trajectories has waited for 7 min"
