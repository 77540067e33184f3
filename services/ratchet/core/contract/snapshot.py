"""Dataset snapshots: one struct per format of rows, and the manifest that names them.

A row is stored in Parquet, a column for each member; a list of numbers is a column of 32-bit numbers, every other list
is a column of JSON text (`datasets.parquet`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.turn import Constraint

DatasetFormat = Literal["trajectories", "pairs", "labels"]
"""Format of a snapshot: one row per trajectory, per preference pair, or per answer with a thumb."""
TRAJECTORIES: DatasetFormat = "trajectories"
PAIRS: DatasetFormat = "pairs"
LABELS: DatasetFormat = "labels"

SNAPSHOT = "snapshot"
"""The kind of a snapshot's manifest."""


class Call(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One complete model call, with its whole prompt."""

    turn_id: str
    prompt_token_ids: list[int]
    """The whole prompt."""
    output_token_ids: list[int]
    behavior_logprobs: list[float]
    """Of the output tokens, under the policy that wrote them, after division by `temperature`."""
    temperature: float
    policy_version: int | None = None
    policy_digest: str | None = None
    constraint: Constraint | None = None
    """What the answer was constrained to; its log-probabilities are of the distribution after masking."""
    trainable: bool
    reason: str | None = None
    """Why it is not trainable: the gateway's reason, or the fault of the stored ids."""


class TokenSequence(Value, frozen=True, kw_only=True, omit_defaults=False):
    """What a model read and wrote in one go: calls of which each continues the one before."""

    size: int
    """Number of its own tokens; they stand in `token_ids` after those of the sequence before."""
    parent: int | None = None
    """The earlier sequence that it begins like."""
    shared: int = 0
    """How many first tokens it has in common with its parent; its own ones follow them."""


class CallSpan(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One model call. Its prompt is what precedes its answer in the sequence."""

    turn_id: str
    sequence: int | None = None
    """Index of the sequence; None where the token ids are not known."""
    begin: int = 0
    """Where the answer begins in the sequence, what is shared with the parent included."""
    size: int = 0
    """Number of tokens of the answer."""
    scored: bool = False
    """Whether the log-probabilities of the answer stand in `logprobs`, after those of the scored call before."""
    temperature: float
    policy_version: int | None = None
    policy_digest: str | None = None
    constraint: Constraint | None = None
    trainable: bool
    reason: str | None = None
    dropped: bool = False
    """A retry took its place, and no later call saw its answer: it does not learn."""


class ChatPart(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a conversation whose agent compacted its history."""

    messages: list[JsonObject]
    learn_from: int
    """Index of the first message to learn from: answers before it stand in an earlier part."""


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
    """The conversation: since its agent compacted it, if it did."""
    tools: list[JsonObject]
    calls: list[Call]
    """The model calls as exported JSON has them; in files they are `spans` of `sequences`."""
    learn_from: int = 0
    """Index of the first of `messages` to learn from: answers before it stand in an earlier part."""
    earlier: list[ChatPart] = msgspec.field(default_factory=list[ChatPart])
    """The parts before, oldest first; only in snapshots for learners of chats."""
    token_ids: Sequence[int] = msgspec.field(default_factory=list[int])
    """Of all sequences, each token once. `datasets.domain.sequences` reads and writes this form."""
    logprobs: Sequence[float] = msgspec.field(default_factory=list[float])
    """Of the tokens of all scored answers, under the policy that wrote them, after division by the temperature."""
    sequences: list[TokenSequence] = msgspec.field(default_factory=list[TokenSequence])
    spans: list[CallSpan] = msgspec.field(default_factory=list[CallSpan])
    """The model calls in order."""


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


class RewardGroups(Value, frozen=True, kw_only=True):
    """Rows by their task. An algorithm that compares the tries of a task learns where their rewards differ."""

    groups: int
    """Tasks with several rows."""
    mixed_groups: int
    """Those whose rewards differ: the others have no gradient."""
    singletons: int
    """Tasks with one row."""


class SnapshotHeader(Value, frozen=True, kw_only=True):
    """A manifest without its rows."""

    kind: str
    """Always `snapshot`."""
    role: str
    training_job_id: str
    """Empty for one that was built without a job."""
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
    reward_groups: RewardGroups | None = None
    """Of trajectories."""
