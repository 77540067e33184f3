"""The documented targets of collecting and rewarding, as `make test-all` prints them: real servers, an agent's pace."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from nats.aio.msg import Msg

from ratchet import AsyncClient
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.contract import Reward, decode
from ratchet.core.service.settings import SharedSettings
from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.targets import note_target

NUMBER = 200
PER_SECOND = 20


@pytest.mark.slow
async def test_recorded_trajectories_are_rewarded_and_both_waits_noted(shared_settings: SharedSettings) -> None:
    waited: list[float] = []
    recorded: dict[str, float] = {}
    rewarded: dict[str, float] = {}

    async def on_reward(message: Msg) -> None:
        rewarded.setdefault(decode(message.data, Reward).trajectory_id, time.monotonic())

    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(connected(shared_settings))
        await stack.enter_async_context(prepared_warehouse(shared_settings))
        await stack.enter_async_context(running_app(build_collector(CollectorSettings(shared=shared_settings))))
        await stack.enter_async_context(running_app(build(Settings(shared=shared_settings))))
        await bus.nc.subscribe("agent.rl.reward.v1.>", cb=on_reward)
        settings = ClientSettings(shared=shared_settings)
        client = await stack.enter_async_context(AsyncClient(agent_id="paced", role="support", settings=settings))
        for number in range(NUMBER):
            before = time.monotonic()
            with client.trajectory(task_id=f"task-{number}", instructions="Help.", model="m", temperature=0.2) as run:
                for index in range(4):
                    run.turn(observation=f"question {index} " + "x" * 400, action=f"answer {index} " + "y" * 400)
                run.outcome("success", verified_by="tests")
            recorded[run.trajectory_id] = time.monotonic()
            waited.append(recorded[run.trajectory_id] - before)
            await asyncio.sleep(1 / PER_SECOND)  # the agent's pace

        async def all_rewarded() -> bool:
            return rewarded.keys() == recorded.keys()

        await eventually(all_rewarded)
    assert len(rewarded) == NUMBER
    note_target("collect", *waited)
    note_target("reward", *(rewarded[name] - at for name, at in recorded.items()))
