"""The deployer's clock is the broker's, even where its own host's clock is wrong."""

from __future__ import annotations

from datetime import timedelta

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.nats_clock import SYNCHRONIZE_S, BrokerClock
from ratchet.core.contract import Start
from ratchet.core.service.runtime import Periodic
from ratchet.core.service.settings import SharedSettings
from tests.support.messages import turn
from tests.support.running import connected, running
from tests.support.servers import Broker

NEAR = timedelta(seconds=20)
"""The most that a busy machine puts between two readings of one clock."""


class HandMoved:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


async def test_now_is_the_brokers_clock_and_goes_on_without_it(nats: Broker) -> None:
    async with connected(SharedSettings(nats_url=nats.url)) as bus:
        hand = HandMoved()
        clock = BrokerClock(bus, hand)
        await clock.synchronize()
        asked_at = clock()
        await bus.publish(
            Start(trajectory_id="0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11", timestamp=bus.now(), policy=turn().policy)
        )
        stored = (await bus.nc.jetstream().get_msg("RL_STARTS", 1)).time
        assert stored is not None
        assert timedelta(0) <= stored - asked_at < NEAR
        hand.seconds += 3600
        assert clock() == asked_at + timedelta(hours=1)

        async def corrected() -> bool:
            return clock() - stored < NEAR

        async with running(Periodic(SYNCHRONIZE_S, clock.synchronize)):
            await eventually(corrected)
