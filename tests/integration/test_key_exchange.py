"""Keys of the broker's users are made and exchanged while it runs and programs send."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.bus.testing import eventually
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.broker_users import ADMIN
from ratchet.local.local_stack.state import read_record
from tests.support.broker_with_users import AGENT, ROLE, BrokerWithUsers, broker_with_users
from tests.support.command_lines import ratchet
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


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_added_user_is_heard_before_its_key_is_shown(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path / "state"))
    up = ratchet("up", *directory, "--free-ports", "--only", "trajectory_collector", "--detach")
    try:
        assert up.returncode == 0, up.stderr
        record = read_record(tmp_path / "state")
        assert record is not None
        added = ratchet("broker", "add", "late", "--role", ROLE, "--json", *directory)
        assert added.returncode == 0, added.stderr
        settings = BusSettings(record.env["RATCHET_NATS_URL"], Path(json.loads(added.stdout)["seed_file"]))
        patience = Patience(deadline_s=10.0, quiet=True)
        bus = await Bus.connect(settings, name="late", contracts=load_contracts(), patience=patience)
        await bus.publish(msgspec.structs.replace(trajectory("1"), role=ROLE))
        await bus.close()
    finally:
        down = ratchet("down", *directory)
    assert down.returncode == 0, down.stderr
