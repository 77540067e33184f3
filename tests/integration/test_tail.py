"""`ratchet trajectories tail` hands out what arrives, in one line each, and goes on where it was after an outage."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from contextlib import aclosing
from datetime import datetime

import pytest

from ratchet.bus.message import named_id
from ratchet.cli.tail import STREAMS, Arrived, arrivals, is_left_out, show
from ratchet.core.contract import PolicyClaim, Reward, Trajectory
from ratchet.core.contract.reward import RewardMetadata
from ratchet.core.service.settings import SharedSettings
from tests.support.messages import AT, trajectory
from tests.support.running import connected


def reward(of: Trajectory) -> Reward:
    return Reward(
        reward_id=named_id("reward"),
        trajectory_id=of.trajectory_id,
        session_id=of.session_id,
        timestamp=AT,
        reward_components={},
        total_reward=0.0,
        reward_type="sparse",
        metadata=RewardMetadata(evaluator="test", evaluation_method="automated", confidence=0.0),
    )


async def some(settings: SharedSettings, start: dict[str, int | datetime], count: int) -> list[Arrived]:
    async with connected(settings) as bus, asyncio.timeout(60), aclosing(arrivals(bus, start)) as arriving:
        return [await anext(arriving) for _ in range(count)]


async def test_trajectories_and_rewards_come_once_each_also_after_a_break(
    shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    first = trajectory(agent_id="one\x1b[2J")
    second = trajectory(trajectory_id=named_id("second"), agent_id="two")
    start: dict[str, int | datetime] = dict.fromkeys(STREAMS, 1)
    async with connected(shared_settings) as bus:
        await bus.publish(first)
        await bus.publish(reward(first))
        seen = await some(shared_settings, start, 2)
        await bus.publish(second)
        seen += await some(shared_settings, start, 1)
    assert [(one.kind, one.trajectory_id) for one in seen[:2]] == [
        ("trajectory", first.trajectory_id),
        ("reward", first.trajectory_id),
    ]
    assert [(one.kind, one.trajectory_id) for one in seen[2:]] == [("trajectory", second.trajectory_id)]
    for one in seen:
        show(one, as_json=False)
    printed = capsys.readouterr().out
    assert (printed.count("\n"), "one\\x1b[2J" in printed) == (3, True)
    for one in seen:
        show(one, as_json=True)
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == [one.kind for one in seen]


def test_evaluations_and_their_rewards_are_left_out() -> None:
    pinned = PolicyClaim(role="support", version=1, digest="a" * 64, arm="pinned", weight=0.0)
    seen = OrderedDict[str, None]()
    played, run = trajectory("played", policy=pinned), trajectory("run")
    for made, is_out in ((played, True), (run, False)):
        for kind in ("trajectory", "reward"):
            arm = made.policy.arm if made.policy and kind == "trajectory" else None
            one = Arrived(kind=kind, at=AT, trajectory_id=made.trajectory_id, role="support", arm=arm)
            assert is_left_out(one, seen) == is_out
