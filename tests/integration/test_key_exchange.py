"""Keys of the broker's users are exchanged while programs send."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.errors import BusUnavailable
from ratchet.local.local_stack.broker_users import ADMIN
from tests.support.broker_with_users import AGENT, ROLE, BrokerWithUsers, broker_with_users
from tests.support.messages import trajectory


def reload(broker: BrokerWithUsers) -> None:
    """What `ratchet broker` does once it has written the users."""
    os.kill(broker.server.pid, signal.SIGHUP)


async def works(broker: BrokerWithUsers, user: str) -> bool:
    try:
        async with broker.bus(user, deadline_s=1.0):
            return True
    except BusUnavailable:
        return False


async def send(bus: Bus, number: int) -> None:
    """Publish, again and again until the stream has it: the connection may be made anew in between."""
    message = msgspec.structs.replace(trajectory(str(number)), role=ROLE)
    while True:
        try:
            return await bus.publish(message)
        except BusUnavailable:
            await asyncio.sleep(0.02)


async def test_keys_are_exchanged_while_messages_are_sent(tmp_path: Path) -> None:
    with broker_with_users(tmp_path) as broker:
        async with broker.bus(ADMIN) as admin, broker.bus(AGENT) as bus:
            await admin.make_streams()
            await send(bus, 0)
            old = broker.users.seed_file(AGENT).read_bytes()
            broker.users.rotate(AGENT)
            reload(broker)
            await send(bus, 1)
            broker.users.release(AGENT)
            assert broker.users.seed_file(AGENT).read_bytes() != old
            await eventually(lambda: works(broker, AGENT))
            sending = asyncio.gather(*(send(bus, number) for number in range(2, 50)))
            assert broker.users.retire(AGENT) == 1
            reload(broker)
            await sending
            await eventually(lambda: _reconnected(bus))
            await send(bus, 50)
            assert (await admin.extent("RL_TRAJECTORIES")).last == 51
            broker.users.seed_file(AGENT).write_bytes(old)
            assert not await works(broker, AGENT)


async def _reconnected(bus: Bus) -> bool:
    return bus.nc.stats["reconnects"] > 0


async def test_key_that_is_taken_away_ends_its_connection(tmp_path: Path) -> None:
    with broker_with_users(tmp_path) as broker:
        async with broker.bus(AGENT) as bus:
            seed = broker.users.seed_file(AGENT).read_bytes()
            broker.users.remove_agent(AGENT)
            broker.users.seed_file(AGENT).write_bytes(seed)
            reload(broker)

            async def is_gone() -> bool:
                return not bus.is_connected

            await eventually(is_gone)
            assert await bus.check() == "the broker is not connected"
            with pytest.raises(BusUnavailable, match="refuses this program's key"):
                async with broker.bus(AGENT, deadline_s=1.0):
                    pass
