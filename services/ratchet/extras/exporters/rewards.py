"""Rewards, every revision of them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ratchet.core.contract import Reward, decode
from ratchet.extras.exporters.base import Kind, Record


def record(body: bytes, _: Reward | None) -> Record:
    """All members of the message, role and revision also where the message leaves them out as usual."""
    reward = decode(body, Reward)
    members: Record = msgspec.to_builtins(reward, builtin_types=(datetime,))
    return {**members, "role": reward.role, "revision": reward.revision}


REWARDS = Kind(
    summary="Rewards with their components, every revision of them.",
    table="rewards",
    time="at",
    key="reward_id",
    worth="total >= {min_reward:Float64}",
    rewarded=False,
    record=record,
    columns={
        "reward_id": "text",
        "trajectory_id": "text",
        "session_id": "text",
        "role": "text",
        "revision": "integer",
        "timestamp": "time",
        "total_reward": "number",
        "reward_type": "text",
        "reward_components": "json",
        "reward_function": "json",
        "normalization": "json",
        "turn_rewards": "json",
        "metadata": "json",
    },
)
