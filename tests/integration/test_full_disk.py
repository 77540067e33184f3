"""A disk that was full for a while: the broker takes messages again without a person, and none is lost meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Spans
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.member import MemberState
from ratchet.local.local_stack.servers import STUCK_S
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.integration.test_telemetry import post
from tests.support.broker_with_users import admin_seed
from tests.support.consuming import messages_of
from tests.support.gateway_scene import scene
from tests.support.messages import trajectory
from tests.support.small_disk import filled, small_disk
from tests.support.telemetry import Traced, traced

pytestmark = pytest.mark.slow


async def _publishes(bus: Bus, number: int) -> bool:
    try:
        await bus.publish(trajectory(f"run {number}"))
    except BusUnavailable:
        return False
    return True


async def test_broker_takes_messages_again_after_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        settings = StackSettings(directory=disk / "state", free_ports=True, only=("nats",))
        async with Stack(settings) as stack:
            broker = stack.members["nats"]
            shared = SharedSettings(nats_url=stack.url("nats"), nats_seed_file=admin_seed(disk / "state"))
            bus = await Bus.connect(shared.bus, name="test", contracts=load_contracts())
            await bus.ensure_streams()
            acknowledged = [number for number in range(100) if await _publishes(bus, number)]
            with filled(disk):
                refused = 100
                while await _publishes(bus, refused):  # what fits into the file's last page is taken
                    acknowledged.append(refused)
                    refused += 1

                async def named() -> bool:
                    return broker.state is MemberState.NOT_READY and "RL_TRAJECTORIES" in str(broker.reason)

                await eventually(named)
                assert "write error" in str(broker.reason)

                async def started_again() -> bool:
                    return broker.restarts > 0

                with pytest.raises(AssertionError):  # a new start would find no room either
                    await eventually(started_again, 2 * STUCK_S)
            await eventually(lambda: _publishes(bus, refused))
            assert broker.restarts == 1
            assert "write error" in str(broker.restarted)
            assert (await bus.extent("RL_TRAJECTORIES")).last >= len(acknowledged) + 1
            await bus.close()


async def test_telemetry_waits_for_room_on_a_full_disk_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("RATCHET_NATS_SEED_FILE", str(admin_seed(disk / "state")))
        settings = StackSettings(directory=disk / "state", free_ports=True, only=("nats",))
        async with Stack(settings) as stack, scene(At(stack.url("nats")), tmp_path / "gateway") as here:
            runs = [traced(f"run {number}") for number in range(1000)]
            taken: list[str] = []

            async def takes(run: Traced) -> bool:
                answer = await post(here, "traces", run.protobuf)
                if answer.status_code == 200:
                    taken.append(run.id)
                    return True
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                return False

            assert await takes(runs[0])
            with filled(disk):
                refused = 1
                while await takes(runs[refused]):  # what fits into the file's last page is taken
                    refused += 1
                assert not await takes(runs[refused])
            await eventually(lambda: takes(runs[refused]))
            assert await takes(runs[refused + 1])
            assert [batch.trace_id for batch in await messages_of(here.bus, Spans)] == taken


@dataclass(frozen=True)
class At:
    """Where a stack's broker is."""

    url: str
