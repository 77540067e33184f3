"""Several gateway workers on one port: they share the calls, and each may die, as their supervisor may."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratchet.bus.testing import eventually
from ratchet.core.service.workers import ANSWER_S
from ratchet.local.local_stack.ports import free_ports
from tests.support.gateway_process import gateway_process, terminate
from tests.support.gateway_world import BODY, answers, call, has_asked, stored_turns, world
from tests.support.running import http_client
from tests.support.servers import Broker, RunningServer

TWO = {"RATCHET_GATEWAY_WORKERS": "2"}
CONNECTIONS = 40
"""That the kernel gives all of them to one of two workers has a chance of 1 in 2^39."""


AGENTS = 6
WRITTEN_S = 4.0
"""A turn of an answer that is older is in the broker or in the spool, also on a busy machine."""
LATER_S = 1.0
"""An answer that the killed worker gave may be noted so much later."""


def workers_of(gateway: RunningServer) -> dict[int, psutil.Process]:
    """The processes of the workers that run now, by number."""
    children = psutil.Process(gateway.pid).children()
    return {
        json.loads(one.cmdline()[-1])["number"]: one for one in children if "ratchet.gateway.worker" in one.cmdline()
    }


@asynccontextmanager
async def connections(port: int) -> AsyncIterator[None]:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    try:
        yield
    finally:
        for _, writer in opened:
            writer.close()


async def counted(http: httpx.AsyncClient, gateway: RunningServer, name: str) -> float:
    """The sum of all samples of a metric."""
    text = (await http.get(f"http://127.0.0.1:{gateway.program.health_port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name)


async def reasons(http: httpx.AsyncClient, gateway: RunningServer) -> dict[str, str]:
    """Why it is not ready."""
    return (await http.get(gateway.program.ready_url)).json()["reasons"]


async def is_ready(http: httpx.AsyncClient, gateway: RunningServer) -> bool:
    return not await reasons(http, gateway)


async def call_each(gateway: RunningServer, number: int) -> None:
    """Answered calls, each on a connection of its own."""
    async with http_client(headers={"connection": "close"}) as http:
        for _ in range(number):
            answer = await call(http, gateway.url)
            assert answer.status_code == 200, answer.text


async def test_two_workers_share_a_port_and_report_as_one(nats: Broker, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path, **TWO) as gateway:
            workers = workers_of(gateway)
            assert sorted(workers) == [1, 2]
            await call_each(gateway, 20)
            assert await counted(http, gateway, "ratchet_gateway_calls_total") == 20
            async with connections(gateway.program.port):
                at_each = await eventually(lambda: accepted(workers.values(), gateway.program.port))
            assert min(at_each) > 0, at_each
            logged = [json.loads(line) for line in gateway.log.read_text().splitlines()]
            assert {line.get("worker") for line in logged if line["event"] == "running"} == {None, 1, 2}

            workers[2].suspend()
            await eventually(lambda: names_worker(http, gateway, 2))
            workers[2].kill()
            await eventually(lambda: is_ready(http, gateway))
            assert workers_of(gateway)[1].pid == workers[1].pid
            assert workers_of(gateway)[2].pid != workers[2].pid
            assert await counted(http, gateway, "ratchet_gateway_calls_total") == 20
            assert await counted(http, gateway, "ratchet_gateway_worker_deaths_total") == 1
            await call_each(gateway, 5)
            assert await counted(http, gateway, "ratchet_gateway_calls_total") == 25


async def accepted(processes: Iterable[psutil.Process], port: int) -> list[int]:
    """How many connections each process has accepted, once all are."""
    opened = [[one for one in process.net_connections("tcp") if one.status == "ESTABLISHED"] for process in processes]
    at_port = [sum(1 for one in some if one.laddr[1] == port) for some in opened]
    return at_port if sum(at_port) == CONNECTIONS else []


async def names_worker(http: httpx.AsyncClient, gateway: RunningServer, number: int) -> bool:
    return (await reasons(http, gateway)).get("workers") == f"worker {number}: no answer within {ANSWER_S:g} s"


async def test_a_worker_that_is_killed_under_traffic_loses_no_more_than_a_gateway_that_is(
    nats: Broker, tmp_path: Path
) -> None:
    answered: dict[str, float] = {}
    ending = asyncio.Event()

    async def agent(url: str) -> None:
        """Goes on with another connection when the worker of its own has died."""
        while not ending.is_set():
            with suppress(httpx.TransportError):
                async with http_client() as http:
                    while not ending.is_set():
                        answer = await call(http, url, str(uuid.uuid4()))
                        answered[answer.headers["x-ratchet-turn"]] = time.monotonic()

    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path, **TWO) as gateway:
            agents = [asyncio.create_task(agent(gateway.url)) for _ in range(AGENTS)]
            await eventually(lambda: has_answered(answered, 300))
            victim = workers_of(gateway)[1]
            victim.kill()
            killed, before = time.monotonic(), len(answered)
            await eventually(lambda: has_answered(answered, before + 100))  # by the other one
            await eventually(lambda: is_ready(http, gateway))
            ending.set()
            await asyncio.gather(*agents)
        stored = await stored_turns(here.bus)
    lost = {turn: killed - at for turn, at in answered.items() if turn not in stored}
    assert all(-LATER_S < age_s < WRITTEN_S for age_s in lost.values()), f"{len(lost)} of {len(answered)} have no turn"
    assert len(stored) == len(set(stored))


async def has_answered(answered: dict[str, float], number: int) -> bool:
    return len(answered) >= number


def interrupt(gateway: RunningServer) -> None:
    """What a terminal sends to all processes at Ctrl-C."""
    os.killpg(gateway.pid, signal.SIGINT)


def kill_supervisor(gateway: RunningServer) -> None:
    os.kill(gateway.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "status"),
    [(terminate, 0), (interrupt, 0), (kill_supervisor, -signal.SIGKILL)],
    ids=["SIGTERM", "Ctrl-C", "SIGKILL"],
)
async def test_however_the_gateway_ends_the_calls_of_all_workers_end_well_and_no_process_is_left(
    nats: Broker, tmp_path: Path, end: Callable[[RunningServer], None], status: int
) -> None:
    async with world(nats, tmp_path) as here:
        with gateway_process(nats.url, here.engine_url, tmp_path, **TWO) as gateway:
            going_on = asyncio.Event()

            async def in_the_middle(number: int) -> None:
                if number == 2:
                    await going_on.wait()

            here.engine.before_event = in_the_middle
            streams = [asyncio.create_task(stream(gateway.url)) for _ in range(CONNECTIONS)]
            await eventually(lambda: has_asked(here.engine, CONNECTIONS))
            processes = psutil.Process(gateway.pid).children(recursive=True)
            assert len(processes) == 4, "two workers, and a recorder for each"
            end(gateway)
            async with http_client() as http:
                await eventually(lambda: is_closed(http, gateway.url))
            going_on.set()
            texts = await asyncio.gather(*streams)
            assert [text for text in texts if not text.rstrip().endswith("data: [DONE]")] == []
            assert await asyncio.to_thread(gateway.process.wait) == status

            async def gone() -> bool:
                return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)

            await eventually(gone)
            assert len(await stored_turns(here.bus)) == CONNECTIONS
            await asyncio.to_thread(gateway.start)  # the port is free


async def stream(url: str) -> str:
    async with http_client() as http:
        return (await http.post(f"{url}/v1/chat/completions", json={**BODY, "stream": True})).text


async def is_closed(http: httpx.AsyncClient, url: str) -> bool:
    """Whether no new connection is accepted any more."""
    try:
        await http.get(f"{url}/v1/models", headers={"connection": "close"})
    except httpx.TransportError:
        return True
    return False


async def test_a_second_gateway_on_the_port_is_refused(nats: Broker, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here:
        with gateway_process(nats.url, here.engine_url, tmp_path, **TWO) as gateway:
            for number in ("1", "2"):
                environment = {**gateway.program.env, "RATCHET_GATEWAY_WORKERS": number, "RATCHET_HEALTH_PORT": "0"}
                assert (
                    refusal(environment) == f"cannot listen on 127.0.0.1:{gateway.program.port}: Address already in use"
                )


def test_a_wrong_setting_ends_all_workers_with_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    strange = [{"name": "other", "kind": "nobody's", "base_url": "http://127.0.0.1:1/v1", "models": {"*": "*"}}]
    environment = {
        "RATCHET_DATA_DIR": str(tmp_path),
        "RATCHET_GATEWAY_PORT": str(port),
        "RATCHET_GATEWAY_UPSTREAMS": json.dumps(strange),
        **TWO,
    }
    assert "nobody's" in refusal(environment)


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
    *_, line = [json.loads(line) for line in ended.stderr.splitlines()]
    others = [json.loads(line)["event"] for line in ended.stderr.splitlines()[:-1]]
    assert (ended.returncode, line["event"]) == (1, "cannot run")
    assert set(others) <= {"running", "stopped"}, others
    reason: str = line["reason"]
    return reason


@pytest.mark.own_broker
async def test_another_number_of_workers_loses_no_spooled_turn(nats: RunningServer, tmp_path: Path) -> None:
    calls = 30
    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path, RATCHET_GATEWAY_WORKERS="3") as gateway:
            await eventually(lambda: answers(http, gateway.url))
            await asyncio.to_thread(nats.kill)
            await call_each(gateway, calls)
        spools = tmp_path / "data/gateway/spool"
        assert len([folder for folder in spools.iterdir() if any(folder.glob("*.segment"))]) > 1
        await asyncio.to_thread(nats.start)
        with gateway_process(nats.url, here.engine_url, tmp_path):

            async def all_stored() -> bool:
                return len(set(await stored_turns(here.bus))) == calls + 1

            await eventually(all_stored)
