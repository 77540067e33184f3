"""Until when outcomes are known, as the deployer reads it off the real broker while a service is behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from ratchet.bus.connection import Bus
from ratchet.bus.nats_client import Connection
from ratchet.bus.pull_consumer import ConsumerState, consumer_state
from ratchet.canary_deployer import nats_events
from ratchet.canary_deployer.nats_events import ASSEMBLER, SCORER, TRAJECTORIES, TURNS, NatsEventSource, Places, Read
from ratchet.core.service.settings import SharedSettings
from tests.support.canary_world import ROLE
from tests.support.messages import trajectory, trajectory_end
from tests.support.running import connected

TICK_S = 0.05


def behind(read: Read) -> bool:
    assert read.batch.read_until is not None
    return read.batch.as_of < read.batch.read_until


async def consumer(bus: Bus, name: str, stream: str) -> Any:
    """A service's durable consumer, of which a test takes messages in its place."""
    await bus.nc.jetstream().add_consumer(stream, ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT))
    return await bus.nc.jetstream().pull_subscribe_bind(name, stream)


async def test_an_end_that_the_collector_has_not_assembled_holds_outcomes_open(
    shared_settings: SharedSettings,
) -> None:
    """A collector that is slow would else make every outcome on both arms missing, and no test could speak."""
    async with connected(shared_settings) as bus:
        collector, computer = await consumer(bus, ASSEMBLER, TURNS), await consumer(bus, SCORER, TRAJECTORIES)
        await bus.publish(trajectory_end("one"))
        events = await NatsEventSource(bus).open(ROLE, Places())
        try:
            ended_at = (await bus.nc.jetstream().get_msg(TURNS, 1)).time.timestamp()
            waiting = await events.next(TICK_S)
            assert waiting.batch.as_of <= ended_at
            assert waiting.behind is not None
            assert waiting.behind.service == "trajectory_collector"

            (end,) = await collector.fetch(1, timeout=60)
            await bus.publish(trajectory("one"))
            await end.ack_sync()
            assembled = await events.next(TICK_S)
            assert assembled.batch.as_of <= ended_at, "the trajectory that came of it has no reward yet"
            assert assembled.behind is not None
            assert assembled.behind.service == "reward_computer"

            (scored,) = await computer.fetch(1, timeout=60)
            await scored.ack_sync()
            after = await events.next(TICK_S)
            assert after.behind is None
            assert after.batch.as_of > assembled.batch.read_until - TICK_S
        finally:
            await events.close()


async def test_how_long_oldest_report_has_waited_is_known_from_the_first_look(
    shared_settings: SharedSettings,
) -> None:
    """Else each restart of the deployer would let a canary go on that no test can judge."""
    async with connected(shared_settings) as bus:
        await consumer(bus, ASSEMBLER, TURNS)
        await bus.publish(trajectory_end("one"))
        first = await NatsEventSource(bus).open(ROLE, Places())
        await first.next(1.0)
        await first.close()
        again = await NatsEventSource(bus).open(ROLE, Places())
        try:
            read = await again.next(TICK_S)
            assert read.behind is not None
            assert read.behind.seconds >= 0.9
        finally:
            await again.close()


async def test_an_end_that_the_broker_does_not_count_yet_holds_outcomes_open(
    shared_settings: SharedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count comes after the acknowledgement: what it answered a moment ago, it may answer now."""
    async with connected(shared_settings) as bus:
        for name, stream in ((ASSEMBLER, TURNS), (SCORER, TRAJECTORIES)):
            await consumer(bus, name, stream)
        earlier = await consumer_state(bus.nc, TURNS, ASSEMBLER)
        assert earlier is not None
        events = await NatsEventSource(bus).open(ROLE, Places())
        try:
            assert (await events.next(TICK_S)).behind is None
            await bus.publish(trajectory_end("one"))
            ended_at = (await bus.nc.jetstream().get_msg(TURNS, 1)).time.timestamp()

            async def late(nc: Connection, stream: str, name: str) -> ConsumerState | None:
                now = await consumer_state(nc, stream, name)
                return now if now is None or name != ASSEMBLER else msgspec.structs.replace(earlier, ts=now.ts)

            monkeypatch.setattr(nats_events, "consumer_state", late)
            for _ in range(3):
                assert (await events.next(TICK_S)).batch.as_of <= ended_at
        finally:
            await events.close()


async def test_a_consumer_that_is_deleted_while_it_is_behind_holds_nothing_up(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus:
        await consumer(bus, ASSEMBLER, TURNS)
        await bus.publish(trajectory_end("one"))
        events = await NatsEventSource(bus).open(ROLE, Places())
        try:
            assert (await events.next(TICK_S)).behind is not None
            await bus.nc.jetstream().delete_consumer(TURNS, ASSEMBLER)
            assert (await events.next(TICK_S)).behind is None
        finally:
            await events.close()


async def test_outcomes_are_known_up_to_what_the_reward_computer_acknowledged(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus:
        events = await NatsEventSource(bus).open(ROLE, Places())
        try:
            alone = await events.next(TICK_S)
            assert not behind(alone), "without a reward computer no outcome can be late"

            computer = await consumer(bus, SCORER, TRAJECTORIES)
            before = await events.next(TICK_S)
            await bus.publish(trajectory("one"))
            first = await events.next(TICK_S)
            await bus.publish(trajectory("two"))
            second = await events.next(TICK_S)
            assert behind(first)
            assert behind(second)
            assert first.batch.as_of == second.batch.as_of < first.batch.read_until
            assert first.batch.as_of <= before.batch.read_until

            one, two = await computer.fetch(2, timeout=60)
            await one.ack_sync()
            half = await events.next(TICK_S)
            assert behind(half)
            assert first.batch.as_of < half.batch.as_of, "the first one is scored"
            await two.ack_sync()
            after = await events.next(TICK_S)
            assert after.batch.as_of > half.batch.read_until - TICK_S
        finally:
            await events.close()
