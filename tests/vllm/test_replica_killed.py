"""A replica that is killed takes nothing with it: agents go on, and the other one, on the same cache, serves all."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import manifest_of
from ratchet.canary_deployer.domain.rollout import PASSED
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.core.service.engine_list import EngineSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy
from tests.support.canary_world import policy
from tests.support.served_scene import ServedScene, served_scene
from tests.support.servers import RunningServer
from tests.support.vllm_process import ROLE, RunningVllm

AGENTS, BEFORE, AFTER = 6, 2, 3
"""Agents that call at the same time; least calls of each before the kill, and calls that begin after it."""


def is_held(vllm: RunningVllm, digest: str) -> bool:
    """Whether a replica uses the adapter's directory."""
    lock = os.open(vllm.cache / ".locks" / digest, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@dataclass(frozen=True)
class Doomed:
    """Two replicas, of which the first is to be killed, and adapters."""

    first: RunningVllm
    second: RunningVllm
    only_first: Policy
    """The first replica holds it, and the second does not."""
    both: Policy
    later: Policy
    """No replica has heard of it."""

    def kill(self) -> None:
        """Kill the first replica, once."""
        if self.first.server.process.exit_code() is None:
            self.first.server.kill()


@pytest.fixture(scope="module")
def doomed(replicas: list[RunningVllm]) -> Iterator[Doomed]:
    first, second = replicas
    here = Doomed(first, second, *(first.publish(algorithm=f"kill-{n}", dtype="float32") for n in range(3)))
    for vllm, one in ((first, here.only_first), (first, here.both), (second, here.both)):
        assert vllm.ask(vllm.name_of(one)).status_code == 200
    assert is_held(first, here.only_first.digest)
    yield here
    here.kill()


async def test_agents_notice_of_a_killed_replica_only_streams_under_way(
    doomed: Doomed, nats: RunningServer, tmp_path: Path
) -> None:
    first, second = doomed.first, doomed.second
    async with served_scene(nats, tmp_path, f"{first.url},{second.url}") as here:
        await here.serve(1, doomed.both)
        killed = asyncio.Event()
        agents = [Agent(here, f"agent {number}", number % 2 == 0, killed) for number in range(AGENTS)]
        working = asyncio.gather(*(agent.work() for agent in agents))
        await eventually(lambda: asyncio.to_thread(lambda: min(agent.calls for agent in agents) >= BEFORE), 300)
        await asyncio.to_thread(doomed.kill)
        killed.set()
        await working
        failed = sum(agent.broken for agent in agents)
        played = (await here.turns(sum(agent.calls for agent in agents))).values()
    turns = [turn for one in played for turn in one]
    last = {max(one, key=lambda turn: turn.timestamp).engine.replica for one in played}
    assert {turn.policy.arm for turn in turns} == {"stable"}
    assert {turn.engine.replica for turn in turns} == {url.removeprefix("http://") for url in (first.url, second.url)}
    assert len([turn for turn in turns if turn.error is not None]) == failed
    assert last == {second.url.removeprefix("http://")}


@dataclass
class Agent:
    """Calls again and again in one trajectory, with streams or without, until some calls after the kill."""

    here: ServedScene
    name: str
    streams: bool
    killed: asyncio.Event
    calls: int = 0
    broken: int = 0
    """Streams that ended after they had begun."""

    async def work(self) -> None:
        messages = [{"role": "user", "content": f"where is my order of {self.name}"}]
        left = AFTER
        while left:
            left -= self.killed.is_set()
            if self.streams:
                await self._stream(messages)
            else:
                answer = await self.here.ask(self.name, messages, max_tokens=12)
                assert answer.choices
            self.calls += 1

    async def _stream(self, messages: list[Any]) -> None:
        begun = False
        try:
            stream = await self.here.ask(self.name, messages, max_tokens=12, stream=True)
            async for _ in stream:
                begun = True
        except (openai.APIError, OSError):
            assert begun, "a call that had not begun has failed"
            self.broken += 1


async def test_probe_passes_on_replica_that_is_left_and_names_one_that_is_away(doomed: Doomed) -> None:
    doomed.kill()
    urls = (doomed.first.url, doomed.second.url)
    settings = EngineSettings.model_validate({"name": "small", "kind": "vllm", "urls": urls, "roles": ["*"]})
    one = doomed.both
    candidate = policy(2, name=doomed.first.name_of(one, 2), digest=one.digest, uri=one.uri, kind=one.manifest.kind)
    async with HttpEngines([settings], 120) as engines:
        gate = ProbeGate(ReplicaChecks(engines, time.monotonic), partial(manifest_of, Objects(doomed.first.shared)))
        result = await gate.check(candidate, None)
    assert result.outcome == PASSED, result.reason
    assert "on 1 of 2 replicas" in result.reason
    assert f"not checked, for they are away: small at {doomed.first.url}" in result.reason
    assert candidate.role == ROLE


def test_the_other_replica_serves_on_and_what_the_killed_one_held_is_free(doomed: Doomed) -> None:
    doomed.kill()
    second = doomed.second
    assert [is_held(second, one.digest) for one in (doomed.only_first, doomed.both)] == [False, True]
    for one in (doomed.both, doomed.later, doomed.only_first):
        assert second.ask(second.name_of(one)).status_code == 200
