"""Reading a dataset snapshot: one Parquet row per trajectory, per preference pair, or per labelled answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.bus.message import JsonObject, Value, decode
from ratchet.rules.training_options import LABELS, PAIRS, TRAJECTORIES
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.rows import Call

_TRAJECTORY_COLUMNS = ["trajectory_id", "task_key", "reward", "baseline", "success", "messages", "tools", "calls"]
_PAIR_COLUMNS = [
    "preference_id",
    "prompt",
    "chosen",
    "rejected",
    "tools",
    "group_key",
    "chosen_trajectory_id",
    "rejected_trajectory_id",
]
_LABEL_COLUMNS = ["trajectory_id", "prompt", "completion", "label", "tools"]

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class LoggedPair:
    """Two answers to one prompt, the better one first."""

    preference_id: str
    prompt: list[JsonObject]
    chosen: list[JsonObject]
    rejected: list[JsonObject]
    tools: list[JsonObject]
    group_key: str | None
    """Pairs of one task have the same."""
    chosen_trajectory_id: str | None = None
    rejected_trajectory_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedLabel:
    """One answer, and whether it was liked."""

    trajectory_id: str
    prompt: list[JsonObject]
    completion: list[JsonObject]
    label: bool
    tools: list[JsonObject]


def read_snapshot(path: Path) -> list[LoggedTrajectory]:
    """All trajectories, in the file's order. Raises `DataUnusable` when the file is not a snapshot, or empty."""
    return _read(path, _TRAJECTORY_COLUMNS, _trajectory, "trajectory")


def read_pairs(path: Path) -> list[LoggedPair]:
    """All preference pairs; see `read_snapshot`."""
    return _read(path, _PAIR_COLUMNS, _pair, "preference pair")


def read_labels(path: Path) -> list[LoggedLabel]:
    """All labelled answers; see `read_snapshot`."""
    return _read(path, _LABEL_COLUMNS, _label, "labelled answer")


READERS: Mapping[str, Callable[[Path], Sequence[Any]]] = {
    TRAJECTORIES: read_snapshot,
    PAIRS: read_pairs,
    LABELS: read_labels,
}
"""By the `format` of a snapshot's manifest. `Any`: each has its own type."""


def _read(path: Path, columns: list[str], make: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    try:
        table: Any = pq.read_table(str(path), columns=columns)  # pyright: ignore[reportUnknownMemberType] - no types
        found = [make(record) for record in table.to_pylist()]
    except (pa.ArrowException, KeyError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error
    if not found:
        raise DataUnusable(f"the snapshot holds no {what}")
    return found


def _objects(column: str | None) -> list[JsonObject]:
    return decode(column or "[]", list[JsonObject])


def _trajectory(record: dict[str, Any]) -> LoggedTrajectory:
    return LoggedTrajectory(
        trajectory_id=record["trajectory_id"],
        task_key=record["task_key"] or record["trajectory_id"],
        reward=float(record["reward"] or 0.0),
        baseline=record["baseline"],
        success=record["success"],
        messages=_objects(record["messages"]),
        tools=_objects(record["tools"]),
        calls=[logged.call() for logged in decode(record["calls"] or "[]", list[LoggedCall])],
    )


def _pair(record: dict[str, Any]) -> LoggedPair:
    return LoggedPair(
        preference_id=record["preference_id"],
        prompt=_objects(record["prompt"]),
        chosen=_objects(record["chosen"]),
        rejected=_objects(record["rejected"]),
        tools=_objects(record["tools"]),
        group_key=record["group_key"],
        chosen_trajectory_id=record["chosen_trajectory_id"],
        rejected_trajectory_id=record["rejected_trajectory_id"],
    )


def _label(record: dict[str, Any]) -> LoggedLabel:
    return LoggedLabel(
        trajectory_id=record["trajectory_id"],
        prompt=_objects(record["prompt"]),
        completion=_objects(record["completion"]),
        label=bool(record["label"]),
        tools=_objects(record["tools"]),
    )
