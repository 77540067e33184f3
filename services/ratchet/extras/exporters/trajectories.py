"""Trajectories as they were published, each with its newest reward."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ratchet.core.contract import Reward, Trajectory, decode
from ratchet.extras.exporters.base import REWARDED, Kind, Record


def record(body: bytes, reward: Reward | None) -> Record:
    """All members of the message, and `reward`."""
    trajectory = decode(body, Trajectory)
    members: Record = msgspec.to_builtins(trajectory, builtin_types=(datetime,))
    part = reward and {
        "total": reward.total_reward,
        "revision": reward.revision,
        "components": {name: part.score for name, part in reward.reward_components.items() if part.applicable},
        "confidence": reward.metadata.confidence,
    }
    return {**members, "role": trajectory.role, "reward": part}


TRAJECTORIES = Kind(
    summary="Trajectories as they were published, each with its newest reward.",
    table="trajectories",
    time="ended_at",
    key="trajectory_id",
    worth=REWARDED,
    rewarded=True,
    record=record,
    columns={
        "trajectory_id": "text",
        "role": "text",
        "session_id": "text",
        "agent_id": "text",
        "subordinate_profile": "text",
        "parent_trajectory_id": "text",
        "recorded_as": "text",
        "user_ref": "text",
        "start_timestamp": "time",
        "end_timestamp": "time",
        "task_context": "json",
        "turns": "json",
        "outcome": "json",
        "quality": "json",
        "policy": "json",
        "labels": "json",
        "trace": "json",
        "metadata": "json",
        "reward": "json",
    },
)
