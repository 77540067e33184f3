"""Until when outcomes are known, as the deployer reads it off the real broker while the reward computer is behind."""

from __future__ import annotations

from nats.js.api import AckPolicy, ConsumerConfig

from ratchet.canary_deployer.nats_events import SCORER, TRAJECTORIES, NatsEventSource, Places, Read
from ratchet.service.settings import SharedSettings
from tests.support.canary_world import ROLE
from tests.support.messages import trajectory
from tests.support.running import connected

TICK_S = 0.05


def behind(read: Read) -> bool:
    assert read.batch.read_until is not None
    return read.batch.as_of < read.batch.read_until


async def test_outcomes_are_known_up_to_the_reward_computers_last_acknowledged_message(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus:
        events = await NatsEventSource(bus).open(ROLE, Places())
        try:
            alone = await events.next(TICK_S)
            assert not behind(alone), "without a reward computer no outcome can be late"

            config = ConsumerConfig(durable_name=SCORER, ack_policy=AckPolicy.EXPLICIT)
            await bus.nc.jetstream().add_consumer(TRAJECTORIES, config)
            computer = await bus.nc.jetstream().pull_subscribe_bind(SCORER, TRAJECTORIES)
            before = await events.next(TICK_S)
            await bus.publish(trajectory("one"))
            first = await events.next(TICK_S)
            await bus.publish(trajectory("two"))
            second = await events.next(TICK_S)
            assert behind(first)
            assert behind(second)
            assert first.batch.as_of == second.batch.as_of < first.batch.read_until
            assert first.batch.as_of <= before.batch.read_until

            one, two = await computer.fetch(2, timeout=5)
            await one.ack_sync()
            half = await events.next(TICK_S)
            assert behind(half)
            assert first.batch.as_of < half.batch.as_of, "the first one is scored"
            await two.ack_sync()
            after = await events.next(TICK_S)
            assert after.batch.as_of > half.batch.read_until - TICK_S
        finally:
            await events.close()
