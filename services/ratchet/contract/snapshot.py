"""Dataset snapshots: one struct per format of rows, and the manifest that names them.

A row is stored in Parquet, a column for each member; a list is a column of JSON text (`datasets.parquet`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from ratchet.bus.message import JsonObject, Value

DatasetFormat = Literal["trajectories", "pairs", "labels"]
"""Format of a snapshot: one row per trajectory, per preference pair, or per answer with a thumb."""
TRAJECTORIES: DatasetFormat = "trajectories"
PAIRS: DatasetFormat = "pairs"
LABELS: DatasetFormat = "labels"

SNAPSHOT = "snapshot"
"""The kind of a snapshot's manifest."""


class Call(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One complete model call: a learner recomputes its log-probabilities."""

    turn_id: str
    prompt_token_ids: list[int]
    """The whole prompt."""
    output_token_ids: list[int]
    behavior_logprobs: list[float] = msgspec.field(name="logprobs")
    """Of the output tokens, under the policy that wrote them, after division by `temperature`."""
    temperature: float
    policy_version: int | None = None
    policy_digest: str | None = None
    trainable: bool
    reason: str | None = None
    """Why it is not trainable: the gateway's reason, or the fault of the stored ids."""


class TrajectoryRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A trajectory with everything that a learner needs; it reads no other store."""

    trajectory_id: str
    task_key: str
    """Equal keys are tries of one task."""
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None = None
    """The expected reward, on the scale of `reward`."""
    success: bool | None = None
    policy_version: int | None = None
    """Of the first call."""
    source: str
    messages: list[JsonObject]
    tools: list[JsonObject]
    calls: list[Call]


class PairRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """Two answers to one prompt, the better one first."""

    preference_id: str
    prompt: list[JsonObject]
    chosen: list[JsonObject]
    rejected: list[JsonObject]
    tools: list[JsonObject]
    source: str
    rater: str | None = None
    confidence: float | None = None
    domain: str | None = None
    chosen_trajectory_id: str | None = None
    rejected_trajectory_id: str | None = None
    group_key: str | None = None
    """Pairs of one task have the same."""


class LabelRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One answer, and whether its rater liked it."""

    trajectory_id: str
    prompt: list[JsonObject]
    completion: list[JsonObject]
    label: bool
    tools: list[JsonObject]
    source: str


Row = TrajectoryRow | PairRow | LabelRow
"""A row of any format."""

ROWS: Mapping[str, type[Row]] = {TRAJECTORIES: TrajectoryRow, PAIRS: PairRow, LABELS: LabelRow}
"""Format -> its rows."""


class ParquetFile(Value, frozen=True, kw_only=True):
    """The rows."""

    uri: str
    sha256: str
    size: int
    """Bytes."""


class SnapshotHeader(Value, frozen=True, kw_only=True):
    """A manifest without its rows."""

    kind: str
    """Always `snapshot`."""
    role: str
    training_job_id: str
    algorithm: str
    created_at: datetime
    filters: JsonObject
    sample_size: int
    reward_function: str
    """Name and version; several, separated by commas, if different ones scored the trajectories."""
    reward_transform: str
    watermarks: dict[str, int]
    """By stream: the newest sequence that was stored and read."""
    parent_policy: str | None


class SnapshotManifest(SnapshotHeader, frozen=True, kw_only=True):
    """Everything about a snapshot. Its digest names the data that a policy learned from."""

    left_out: dict[str, int]
    """Trajectories that were not taken, by reason."""
    trajectories: list[str]
    """Those of the rows; of pairs, those that both answers come from."""
    rows: int
    parquet: ParquetFile
    format: str = TRAJECTORIES
    """`trajectories`, `pairs` or `labels`: the kind of its rows."""
    preferences: list[str] | None = None
    """Ids of the pairs, each followed by those with the same answers, which count with it."""
    raters: dict[str, int] | None = None
    """Pairs by the rater, or the rule, that preferred."""
    sources: dict[str, int] | None = None
    """Rows by source."""
