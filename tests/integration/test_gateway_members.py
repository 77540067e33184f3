"""Several gateways on one port, as members of a stack: they share the calls, and each may hang or die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratchet.bus.testing import eventually
from ratchet.local.local_stack.member import Member
from tests.support.gateway_members import gateway_members
from tests.support.gateway_process import gateway_process
from tests.support.gateway_world import answers, call, stored_turns, world
from tests.support.running import http_client
from tests.support.servers import Broker, RunningServer

pytestmark = pytest.mark.slow

CALLS = 30
"""That the kernel gives all of them to one of two gateways has a chance of 1 in 2^29."""
AGENTS = 6
SILENT_S = 3.0
"""How long an agent waits for a gateway that hangs before it asks another one."""
ENDED_S = 60.0
"""15 s by the limits of the looks, which a machine with five times more work than cores exceeds."""
WRITTEN_S = 4.0
"""A turn of an answer that is older is in the broker or in the spool, also on a busy machine."""
LATER_S = 1.0
"""An answer that the killed gateway gave may be noted so much later."""


def pid_of(member: Member) -> int:
    assert member.process is not None
    return member.process.pid


async def counted(http: httpx.AsyncClient, member: Member) -> float:
    """The calls that one gateway has answered, by its own metrics."""
    text = (await http.get(f"http://127.0.0.1:{member.program.health_port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "ratchet_gateway_calls_total")


async def call_each(url: str, number: int) -> None:
    """Answered calls, each on a connection of its own."""
    async with http_client(headers={"connection": "close"}) as http:
        for _ in range(number):
            answer = await call(http, url)
            assert answer.status_code == 200, answer.text


class Agents:
    """Call again and again; one whose connection breaks or whose gateway is silent goes on with another connection."""

    def __init__(self, url: str) -> None:
        self.answered: dict[str, float] = {}
        """When each turn was answered."""
        self._url = url
        self._ending = asyncio.Event()
        self._tasks = [asyncio.create_task(self._call()) for _ in range(AGENTS)]

    async def _call(self) -> None:
        while not self._ending.is_set():
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(timeout=SILENT_S) as http:
                    while not self._ending.is_set():
                        answer = await call(http, self._url, str(uuid.uuid4()))
                        if answer.status_code == 200:
                            self.answered[answer.headers["x-ratchet-turn"]] = time.monotonic()

    async def answer_more(self, number: int) -> None:
        """Wait for so many more answers."""
        goal = len(self.answered) + number

        async def enough() -> bool:
            return len(self.answered) >= goal

        await eventually(enough)

    async def end(self) -> None:
        self._ending.set()
        await asyncio.gather(*self._tasks)


async def all_ready(members: Sequence[Member], restarts: Sequence[int]) -> bool:
    return all(member.ready.is_set() for member in members) and [member.restarts for member in members] == restarts


async def test_gateways_share_a_port_and_each_has_its_own_metrics(nats: Broker, tmp_path: Path) -> None:
    async with (
        world(nats, tmp_path) as here,
        http_client() as http,
        gateway_members(nats.url, here.engine_url, tmp_path) as members,
    ):
        await call_each(members[0].program.url, CALLS)
        numbers = [await counted(http, member) for member in members]
        assert (sum(numbers), min(numbers) > 0) == (CALLS, True), numbers


async def test_gateway_that_hangs_is_ended_while_calls_go_on(nats: Broker, tmp_path: Path) -> None:
    async with (
        world(nats, tmp_path) as here,
        gateway_members(nats.url, here.engine_url, tmp_path) as members,
    ):
        agents = Agents(members[0].program.url)
        await agents.answer_more(20)
        frozen, other = pid_of(members[0]), pid_of(members[1])
        os.kill(frozen, signal.SIGSTOP)
        began = time.monotonic()

        async def ended() -> bool:
            return not psutil.pid_exists(frozen)

        await agents.answer_more(20)
        assert psutil.pid_exists(frozen), "calls go on while it hangs"
        await eventually(ended)
        assert time.monotonic() - began < ENDED_S
        await eventually(lambda: all_ready(members, [1, 0]))
        assert pid_of(members[1]) == other
        await agents.answer_more(20)
        await agents.end()


async def test_gateway_killed_under_traffic_loses_its_own_calls_alone(nats: Broker, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here:
        async with gateway_members(nats.url, here.engine_url, tmp_path) as members:
            agents = Agents(members[0].program.url)
            await agents.answer_more(300)
            os.kill(pid_of(members[0]), signal.SIGKILL)
            killed = time.monotonic()
            await agents.answer_more(100)
            await eventually(lambda: all_ready(members, [1, 0]))
            await agents.end()
        stored = await stored_turns(here.bus)
    lost = {turn: killed - at for turn, at in agents.answered.items() if turn not in stored}
    assert all(-LATER_S < age_s < WRITTEN_S for age_s in lost.values()), f"{len(lost)} of {len(agents.answered)} lost"
    assert len(stored) == len(set(stored))


@pytest.mark.own_broker
async def test_gateway_alone_publishes_what_several_have_spooled(nats: RunningServer, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here, http_client() as http:
        async with gateway_members(nats.url, here.engine_url, tmp_path) as members:
            url = members[0].program.url
            await eventually(lambda: answers(http, url))
            await asyncio.to_thread(nats.kill)
            await call_each(url, CALLS)
        await asyncio.to_thread(nats.start)
        spooled = members[0].program.env["RATCHET_DATA_DIR"]
        with gateway_process(nats.url, here.engine_url, tmp_path, RATCHET_DATA_DIR=spooled):

            async def all_stored() -> bool:
                return len(set(await stored_turns(here.bus))) == CALLS + 1

            await eventually(all_stored)


async def test_port_that_is_not_shared_refuses_a_second_gateway(nats: Broker, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here:
        with gateway_process(nats.url, here.engine_url, tmp_path) as gateway:
            for shares in ("false", "true"):
                environment = {
                    **gateway.program.env,
                    "RATCHET_GATEWAY_SHARES_PORT": shares,
                    "RATCHET_HEALTH_PORT": "0",
                }
                assert (
                    refusal(environment) == f"cannot listen on 127.0.0.1:{gateway.program.port}: Address already in use"
                )


def refusal(environment: Mapping[str, str]) -> str:
    """Why a gateway with these settings does not run: the only line that it logs."""
    ended = subprocess.run(
        [sys.executable, "-m", "ratchet.gateway"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    (line,) = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, line["event"]) == (1, "cannot run")
    reason: str = line["reason"]
    return reason
