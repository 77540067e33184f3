"""Rows, files and manifests of snapshots, with plain values for members that a test does not name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ratchet.core.contract.snapshot import (
    Call,
    LabelRow,
    PairRow,
    ParquetFile,
    SnapshotManifest,
    TrajectoryRow,
)
from ratchet.core.datasets.domain.sequences import packed
from ratchet.core.datasets.parquet import RowWriter


def call(prompt: list[int], output: list[int], logprobs: list[float], **changes: Any) -> Call:
    """A call that can learn."""
    plain = {"turn_id": "turn", "temperature": 1.0, "trainable": True}
    tokens = {"prompt_token_ids": prompt, "output_token_ids": output, "behavior_logprobs": logprobs}
    return Call(**{**plain, **tokens, **changes})


def trajectory_row(number: int = 0, calls: Sequence[Call] = (), **changes: Any) -> TrajectoryRow:
    """A trajectory that got a reward of 1, of a task of its own; its calls as files hold them, none by default."""
    reward = changes.get("reward", 1.0)
    plain: dict[str, Any] = {"trajectory_id": f"t{number}", "task_key": f"k{number}", "source": "client"}
    lists: dict[str, Any] = {"messages": [], "tools": [], "calls": []}
    row = TrajectoryRow(**{**plain, **lists, "reward": reward, "raw_reward": reward, **changes})
    return packed(replace(row, calls=list(calls))) if calls else row


def pair_row(number: int = 0, **changes: Any) -> PairRow:
    """A pair without a group and without the tries that it came from."""
    plain: dict[str, Any] = {"preference_id": f"p{number}", "source": "derived"}
    return PairRow(**{**plain, "prompt": [], "chosen": [], "rejected": [], "tools": [], **changes})


def label_row(number: int = 0, **changes: Any) -> LabelRow:
    """An answer with a thumb."""
    plain: dict[str, Any] = {"trajectory_id": f"t{number}", "source": "thumbs"}
    return LabelRow(**{**plain, "prompt": [], "completion": [], "tools": [], **changes})


def write_rows(path: Path, rows: Sequence[TrajectoryRow] | Sequence[PairRow] | Sequence[LabelRow]) -> Path:
    """The Parquet file of a snapshot."""
    writer = RowWriter(path, type(rows[0]))
    writer.add(rows)
    writer.close()
    return path


def snapshot_manifest(**changes: Any) -> SnapshotManifest:
    """The manifest of a snapshot of one trajectory."""
    plain: dict[str, Any] = {
        "kind": "snapshot",
        "role": "support",
        "training_job_id": "job",
        "algorithm": "sft",
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
        "filters": {},
        "sample_size": 1,
        "reward_function": "default 1",
        "reward_transform": "identity",
        "watermarks": {},
        "parent_policy": None,
        "left_out": {},
        "trajectories": ["t"],
        "rows": 1,
        "parquet": ParquetFile(uri="s3://test/rows.parquet", sha256="0" * 64, size=1),
    }
    return SnapshotManifest(**{**plain, **changes})
