"""Reading a dataset snapshot: one Parquet row per trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.messages.base import JsonObject, Value
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.learner.rows import Call

_COLUMNS = ["trajectory_id", "task_key", "reward", "baseline", "success", "messages", "tools", "calls"]


class LoggedCall(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One element of the column `calls`."""

    turn_id: str = ""
    prompt_token_ids: list[int] | None = None
    output_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    temperature: float | None = None
    policy_version: int | None = None
    policy_digest: str | None = None
    trainable: bool = False
    reason: str | None = None

    def call(self) -> Call:
        """As the learner takes it."""
        return Call(
            prompt_token_ids=self.prompt_token_ids or [],
            output_token_ids=self.output_token_ids or [],
            behavior_logprobs=self.logprobs or [],
            temperature=1.0 if self.temperature is None else self.temperature,
            policy_version=self.policy_version,
            trainable=self.trainable,
            reason=self.reason or "",
        )


@dataclass(frozen=True, slots=True)
class LoggedTrajectory:
    """One trajectory of the snapshot."""

    trajectory_id: str
    task_key: str
    reward: float
    baseline: float | None
    success: bool | None
    messages: list[JsonObject]
    tools: list[JsonObject]
    calls: list[Call]


def read_snapshot(path: Path) -> list[LoggedTrajectory]:
    """All trajectories, in the file's order. Raises `DataUnusable` when the file is not a snapshot, or empty."""
    try:
        table: Any = pq.read_table(str(path), columns=_COLUMNS)  # pyright: ignore[reportUnknownMemberType] - no types
        trajectories = [_trajectory(record) for record in table.to_pylist()]
    except (pa.ArrowException, KeyError, msgspec.DecodeError) as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error
    if not trajectories:
        raise DataUnusable("the snapshot holds no trajectory")
    return trajectories


def _trajectory(record: dict[str, Any]) -> LoggedTrajectory:
    return LoggedTrajectory(
        trajectory_id=record["trajectory_id"],
        task_key=record["task_key"] or record["trajectory_id"],
        reward=float(record["reward"] or 0.0),
        baseline=record["baseline"],
        success=record["success"],
        messages=msgspec.json.decode(record["messages"] or b"[]", type=list[JsonObject]),
        tools=msgspec.json.decode(record["tools"] or b"[]", type=list[JsonObject]),
        calls=[logged.call() for logged in msgspec.json.decode(record["calls"] or b"[]", type=list[LoggedCall])],
    )
