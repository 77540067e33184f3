"""Other processes record calls: agents never wait for them, and no call is lost when one dies."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import Any

from ratchet.bus.testing import eventually
from ratchet.core.contract import TrajectoryEnd, Turn
from ratchet.core.rules.redaction import MAX_SECRETS
from ratchet.dialects.telemetry.otlp import JSON
from ratchet.gateway.recorder_pool import RecorderPool
from ratchet.gateway.telemetry import LARGEST
from tests.support.gateway_scene import Scene, ask, scene
from tests.support.running import http_client
from tests.support.servers import Broker

HI: list[Any] = [{"role": "user", "content": "hi"}]


def recorders(here: Scene) -> RecorderPool:
    (the_recorders,) = [component for component in here.app.components if isinstance(component, RecorderPool)]
    return the_recorders


async def test_a_recorder_that_is_killed_again_and_again_loses_no_call(nats: Broker, tmp_path: Path) -> None:
    calls, kills, trajectory = 24, 3, str(uuid.uuid4())
    async with scene(nats, tmp_path, recorders=2) as here:
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")

        async def killed(one: int) -> bool:
            pid = recorders(here).processes[one].pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            return pid is not None

        for number in range(calls):
            question = [{"role": "user", "content": f"number {number}"}]
            await asyncio.gather(ask(client, question), ask(here.client(), question))
            if number % (calls // kills) == 0:
                for one in range(2):
                    await eventually(lambda one=one: killed(one))
        async with http_client(base_url=here.url) as http:
            await http.post(f"/v1/trajectories/{trajectory}/end", json={"outcome": {"status": "success"}})
        (ended,) = [one for one in await _all(here, 2 * calls + 1) if isinstance(one, TrajectoryEnd)]
        turns = await here.published(Turn, 2 * calls)
        assert len({turn.turn_id for turn in turns}) == 2 * calls
        assert {turn.messages[0]["content"] for turn in turns} == {f"number {n}" for n in range(calls)}
        assert {turn.trainable.ok for turn in turns} == {True}
        assert ended.turns == calls


async def test_an_end_follows_its_turns_also_when_their_recorder_died(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path, recorders=1) as here:
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")
        await ask(client, HI)
        await here.published(Turn, 1)
        pid = recorders(here).processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it receives jobs, and answers none
        await ask(client, HI)
        async with http_client(base_url=here.url) as http:
            assert (await http.post(f"/v1/trajectories/{trajectory}/end", json={})).status_code == 202
        os.kill(pid, signal.SIGKILL)
        kinds = [type(message) for message in await _all(here, 3)]
        assert kinds == [Turn, Turn, TrajectoryEnd]


async def test_a_body_that_takes_long_to_search_holds_up_no_other_agent(nats: Broker, tmp_path: Path) -> None:
    hostile = [{"role": "user", "content": "pwd=hunter22 " * MAX_SECRETS}]
    async with scene(nats, tmp_path, recorders=1) as here:
        await ask(here.client(), HI)
        await here.published(Turn, 1)
        pid = recorders(here).processes[0].pid
        assert pid is not None
        await ask(here.client(), hostile)
        os.kill(pid, signal.SIGSTOP)  # however fast it searches: it has not ended
        answer = await ask(here.client(), HI)
        assert answer.parse().choices[0].message.content == here.engine.answer
        assert len(await here.published(Turn, 1)) == 1
        os.kill(pid, signal.SIGCONT)
        _, searched, following = await here.published(Turn, 3)
        assert searched.redactions["password"] == MAX_SECRETS
        assert following.trainable.ok


async def test_telemetry_that_takes_long_to_read_costs_no_call(nats: Broker, tmp_path: Path) -> None:
    largest = b"{}".ljust(LARGEST)
    async with (
        scene(nats, tmp_path, recorders=1, recording_bytes=20_000) as here,
        http_client(base_url=here.url, headers={"content-type": JSON}) as http,
    ):
        assert (await http.post("/v1/traces", content=b"{}")).status_code == 200
        pid = recorders(here).telemetry.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        sent = [asyncio.create_task(http.post("/v1/traces", content=largest)) for _ in range(2)]
        done, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        (busy,) = (task.result() for task in done)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "5")
        await ask(here.client(), HI)
        (turn,) = await here.published(Turn, 1)
        assert turn.trainable.ok
        os.kill(pid, signal.SIGCONT)
        assert [(await task).status_code for task in waiting] == [200]


async def test_beyond_the_budget_only_the_fact_of_a_call_is_recorded(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path, recorders=1, recording_bytes=20_000) as here:
        client = here.client(
            base_url=f"{here.url}/t/{trajectory}/v1", default_headers={"x-ratchet-agent": "mia@example.com"}
        )
        await ask(client, [{"role": "user", "content": "x" * 20_000}])
        await ask(client, HI)
        async with http_client(base_url=here.url) as http:
            long = {"outcome": {"status": "success"}, "labels": {"x": "x" * 20_000}}
            busy = await http.post(f"/v1/trajectories/{trajectory}/end", json=long)
            assert (busy.status_code, busy.json()["error"]["code"]) == (503, "busy")
            await http.post(f"/v1/trajectories/{trajectory}/end", json={"outcome": {"status": "success"}})
        (ended,) = [one for one in await _all(here, 3) if isinstance(one, TrajectoryEnd)]
        turns = {turn.trainable.reason: turn for turn in await here.published(Turn, 2)}
        bare = turns["too_large"]
        assert (bare.messages, bare.response, bare.redactions) == ([], None, {"email": 1})
        assert bare.latency_ms is not None
        assert turns["redacted"].response is not None
        assert ended.turns == 2


async def _all(here: Scene, number: int) -> list[Any]:
    """The first messages of the stream of turns, in its order."""
    jetstream = here.bus.nc.jetstream()

    async def stored() -> int:
        return (await jetstream.stream_info("RL_TURNS")).state.last_seq >= number

    await eventually(stored)
    raw = [await jetstream.get_msg("RL_TURNS", n + 1) for n in range(number)]
    return [here.bus.contracts.read(m.subject or "", m.data or b"")[0] for m in raw]
