"""The broker loses one server of three, in three ways, under load: nothing is lost or doubled; the pauses are shown."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from tests.chaos.balance import settled
from tests.cluster.brokers import Cluster, cluster
from tests.cluster.members import Members, two_of_each
from tests.cluster.pauses import PATIENCE_S, STREAM, Probe, leader_of, longest_gap, probing
from tests.support.gateway_scene import put_routes
from tests.support.running import connected, http_client

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)
QUIET_S, FAULT_S, AFTER_S = 10.0, 30.0, 30.0
KILLED, PARTED, CUT_OFF = "killed", "parted from the others and its clients", "parted from the others alone"
LATER = "later"
"""A role that is routed once all is over."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_broker_that_loses_a_server_loses_and_doubles_nothing(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    async with (
        cluster(tmp_path / "brokers") as brokers,
        two_of_each(brokers, shared_settings, tmp_path / "members") as members,
    ):
        await asyncio.sleep(QUIET_S)
        async with probing(brokers) as probes:
            for fault in (KILLED, PARTED, CUT_OFF):
                number = await leader_of(members.world.connection, STREAM)
                port = brokers.clients[number].port
                own = [probe for probe in probes if probe.is_client_of(port)]
                others = [probe for probe in probes if probe not in own]
                began = time.monotonic()
                await _hit(brokers, fault, number)
                await asyncio.sleep(AFTER_S)
                between = began, time.monotonic()
                members.world.say(
                    f"the leader, {fault} for {FAULT_S:g} s: its clients waited {_waited(own, between)} for an"
                    f" acknowledgement, those of other servers {_waited(others, between)}; agents waited"
                    f" {longest_gap(members.answered(), *between):.1f} s for an answer"
                )
        for traffic in members.traffics:
            traffic.working.clear()
        for traffic in members.traffics:
            figures = (await settled(traffic.world, traffic)).figures
            traffic.world.say(str(dict(figures)))
            assert figures["trajectories acknowledged"] > 0
            assert [name for name, count in figures.items() if name.endswith("doubled") and count] == []
        await eventually(members.all_ready, PATIENCE_S)
        await _routed_everywhere(brokers, members)
    gc.collect()  # now, and not in a later test: NATS's client leaves open what is cut before the broker has spoken


async def _hit(brokers: Cluster, fault: str, number: int) -> None:
    """A fault that lasts, and its end."""
    if fault == KILLED:
        brokers.kill(number)
        await asyncio.sleep(FAULT_S)
        await brokers.start(number)
        return
    brokers.part(number, from_clients=fault == PARTED)
    await asyncio.sleep(FAULT_S)
    brokers.heal()


def _waited(probes: Sequence[Probe], between: tuple[float, float]) -> str:
    """The longest pause of each."""
    gaps = sorted(longest_gap(probe.taken, *between) for probe in probes)
    return f"{gaps[0]:.1f} to {gaps[-1]:.1f} s" if gaps else "(there was none)"


async def _routed_everywhere(brokers: Cluster, members: Members) -> None:
    """Each gateway still hears of what is written into a bucket."""
    settings = SharedSettings(nats_url=brokers.url(0), nats_seed_file=brokers.admin)
    async with connected(settings) as bus, http_client() as http:
        await put_routes(bus, **{LATER: 1})

        async def known() -> bool:
            answers = [await http.get(f"{gateway.url}/v1/models") for gateway in members.running["gateway"]]
            return all(f"{LATER}@1" in [model["id"] for model in answer.json()["data"]] for answer in answers)

        await eventually(known, PATIENCE_S)
