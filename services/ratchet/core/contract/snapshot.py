"""Dataset snapshots: one struct per format of rows, and the manifest that names them.

A row is stored in Parquet, a column for each member; a list of numbers is a column of 32-bit numbers, every other list
is a column of JSON text (`datasets.parquet`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.turn import Constraint
from ratchet.core.contract.values import (
    NULLABLE,
    Amount,
    Count,
    Ordinal,
    Role,
    Sha256,
    Sha256OrNone,
    Share,
    TokenId,
    Uri,
    Uuid,
    listed,
)
from ratchet.core.contract.workflows import SubTask, SubTaskRun

DatasetFormat = Literal["trajectories", "pairs", "labels", "executions"]
"""Format of a snapshot: one row per trajectory, per preference pair, per answer with a thumb, or per workflow."""
TRAJECTORIES: DatasetFormat = "trajectories"
PAIRS: DatasetFormat = "pairs"
LABELS: DatasetFormat = "labels"
EXECUTIONS: DatasetFormat = "executions"

SNAPSHOT = "snapshot"
"""The kind of a snapshot's manifest."""


class Call(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One complete model call, with its whole prompt."""

    turn_id: str
    prompt_token_ids: list[Count]
    """The whole prompt."""
    output_token_ids: list[Count]
    behavior_logprobs: list[float]
    """Of the output tokens, under the policy that wrote them, after division by `temperature`."""
    temperature: Amount
    policy_version: Count | None = None
    """Version of the policy that answered."""
    policy_digest: Sha256OrNone | None = None
    """sha256 of its manifest; empty for a model that is not a registered policy."""
    constraint: Constraint | None = None
    """What the answer was constrained to; its log-probabilities are of the distribution after masking."""
    trainable: bool
    """Whether it can be learned from."""
    reason: str | None = None
    """Why it is not trainable: the gateway's reason, or the fault of the stored ids."""


class TokenSequence(Value, frozen=True, kw_only=True, omit_defaults=False):
    """What a model read and wrote in one go: calls of which each continues the one before."""

    size: Count
    """Number of its own tokens; they stand in `token_ids` after those of the sequence before."""
    parent: Count | None = None
    """The earlier sequence that it begins like."""
    shared: Count = 0
    """How many first tokens it has in common with its parent; its own ones follow them."""


class CallSpan(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One model call. Its prompt is what precedes its answer in the sequence."""

    turn_id: str
    sequence: Count | None = None
    """Index of the sequence; None where the token ids are not known."""
    begin: Count = 0
    """Where the answer begins in the sequence, what is shared with the parent included."""
    size: Count = 0
    """Number of tokens of the answer."""
    scored: bool = False
    """Whether the log-probabilities of the answer stand in `logprobs`, after those of the scored call before."""
    temperature: Amount
    policy_version: Count | None = None
    """Version of the policy that answered."""
    policy_digest: Sha256OrNone | None = None
    """sha256 of its manifest; empty for a model that is not a registered policy."""
    constraint: Constraint | None = None
    """What the answer was constrained to: the log-probabilities are of the distribution after masking, and a learner
    masks alike. Null when it was free."""
    trainable: bool
    """Whether it can be learned from."""
    reason: str | None = None
    dropped: bool = False
    """A retry took its place, and no later call saw its answer: it does not learn."""


class ChatPart(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a conversation whose agent compacted its history."""

    messages: list[JsonObject]
    """The part, in OpenAI's form."""
    learn_from: Count
    """Index of the first message to learn from: answers before it stand in an earlier part."""


class TrajectoryRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A trajectory with everything that a learner needs; it reads no other store."""

    trajectory_id: Uuid
    task_key: str
    """Equal keys are tries of one task."""
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None = None
    """The expected reward, on the scale of `reward`."""
    success: bool | None = None
    """Whether the task was solved; null when that is unknown."""
    policy_version: Count | None = None
    """Of the first call."""
    source: str
    """Where it comes from: `client`, an importer, `assembled`."""
    messages: list[JsonObject]
    """The conversation: since its agent compacted it, if it did."""
    tools: list[JsonObject]
    """The tools that were offered, in OpenAI's form."""
    calls: list[Call]
    """The model calls as exported JSON has them; in files they are `spans` of `sequences`."""
    learn_from: Count = 0
    """Index of the first of `messages` to learn from: answers before it stand in an earlier part."""
    earlier: list[ChatPart] = msgspec.field(default_factory=list[ChatPart])
    """The parts before, oldest first; only in snapshots for learners of chats."""
    token_ids: Sequence[TokenId] = msgspec.field(default_factory=list[int])
    """Of all sequences, each token once. `datasets.domain.sequences` reads and writes this form."""
    logprobs: Sequence[float] = msgspec.field(default_factory=list[float])
    """Of the tokens of all scored answers, under the policy that wrote them, after division by the temperature."""
    sequences: list[TokenSequence] = msgspec.field(default_factory=list[TokenSequence])
    """What the model read and wrote in one go: a call whose prompt begins with a whole sequence extends it, any other
    begins a new one."""
    spans: list[CallSpan] = msgspec.field(default_factory=list[CallSpan])
    """The model calls in order."""
    words: list[str] = msgspec.field(default_factory=list[str])
    """What was said of it: feedback in words, judges' reasons; only in snapshots for algorithms that write bundles."""
    model_score: Share | None = None
    """The score by the role's reward model, 0..1, beside the reward that it may be a part of."""


class PairRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """Two answers to one prompt, the better one first."""

    preference_id: Uuid
    prompt: list[JsonObject]
    """What was asked, in OpenAI's form."""
    chosen: list[JsonObject]
    rejected: list[JsonObject]
    tools: list[JsonObject]
    """The tools that were offered, in OpenAI's form."""
    source: str
    """Who said so: `human`, `teacher`, `heuristic`, `derived` or `rag`."""
    rater: str | None = None
    """Who, or which rule, preferred."""
    confidence: Share | None = None
    domain: str | None = None
    chosen_trajectory_id: Uuid | None = None
    """The trajectory that the better answer comes from."""
    rejected_trajectory_id: Uuid | None = None
    """The trajectory that the other one comes from."""
    group_key: str | None = None
    """Pairs of one task have the same."""


class LabelRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """One answer, and whether its rater liked it."""

    trajectory_id: Uuid
    prompt: list[JsonObject]
    """What was asked, in OpenAI's form."""
    completion: list[JsonObject]
    """All that was said after it."""
    label: bool
    """Whether it was liked."""
    tools: list[JsonObject]
    """The tools that were offered, in OpenAI's form."""
    source: str
    """What the label comes from: `thumbs`."""


class ExecutionRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A workflow that ended, with all that a planner learns from: nothing of it is derived, and no default stands for
    what was logged."""

    workflow_id: Uuid
    started_at: datetime
    ended_at: datetime
    instruction: str
    sub_tasks: list[SubTask]
    """Of its plan, in order: types, dependencies and complexity; none where planning failed."""
    runs: list[SubTaskRun]
    """One for each sub-task: who could have done it, each by which chance, who was chosen, and what came of it."""
    made_by: str | None = None
    """What planned: `model`, `llm` or `single`."""
    confidence: Share | None = None
    """Of the planner's model."""
    status: str
    success: bool
    cost_usd: Amount
    latency_ms: Amount
    reward: float | None = None
    """Of the parent trajectory, by the role's reward function; null where it has none yet."""
    policy_version: Count
    """Of the planner's policy; 0 for none."""
    policy_digest: Sha256OrNone
    arm: str
    weight: Share
    """Of the canary when the arm was drawn."""


Row = TrajectoryRow | PairRow | LabelRow | ExecutionRow
"""A row of any format."""

ROWS: Mapping[str, type[Row]] = {
    TRAJECTORIES: TrajectoryRow,
    PAIRS: PairRow,
    LABELS: LabelRow,
    EXECUTIONS: ExecutionRow,
}
"""Format -> its rows."""


class ParquetFile(Value, frozen=True, kw_only=True):
    """The rows."""

    uri: Uri
    sha256: Sha256
    size: Count
    """Bytes."""


class RewardGroups(Value, frozen=True, kw_only=True):
    """Rows by their task. An algorithm that compares the tries of a task learns where their rewards differ."""

    groups: Count
    """Tasks with several rows."""
    mixed_groups: Count
    """Those whose rewards differ: the others have no gradient."""
    singletons: Count
    """Tasks with one row."""


class TaskSets(Value, frozen=True, kw_only=True):
    """The tasks of a search for a bundle, by digest (`evaluation.task_files.task_digest`); no two sets share one."""

    train: list[Sha256]
    """The reflector reads what went wrong with them."""
    validation: list[Sha256]
    """Candidates are chosen by them."""
    held_out: list[Sha256]
    """Those of the gate when the job was prepared; the search has not seen them."""


class SnapshotHeader(Value, frozen=True, kw_only=True):
    """A manifest without its rows."""

    kind: Annotated[str, listed("snapshot")]
    """Always `snapshot`."""
    role: Role
    """The role it belongs to."""
    training_job_id: str
    """Empty for one that was built without a job."""
    algorithm: str
    """What the job trains with."""
    created_at: datetime
    filters: JsonObject
    """The filter of the request's dataset."""
    sample_size: Ordinal
    """Most rows that were asked for."""
    reward_function: str
    """Name and version; several, separated by commas, if different ones scored the trajectories."""
    reward_transform: Annotated[str, listed("identity", "negate")]
    """What was done to the rewards."""
    watermarks: dict[str, Count]
    """By stream: the newest sequence that was stored and read."""
    parent_policy: Annotated[str | None, NULLABLE]
    """Name of the policy that the job continues from."""


class SnapshotManifest(SnapshotHeader, frozen=True, kw_only=True):
    """Everything about a snapshot. Its digest names the data that a policy learned from."""

    left_out: dict[str, Count]
    """Trajectories that were not taken, by reason."""
    trajectories: list[str]
    """Those of the rows; of pairs, those that both answers come from; of executions, the workflows."""
    rows: Count
    """How many rows there are."""
    parquet: ParquetFile
    format: Annotated[str, listed("trajectories", "pairs", "labels", "executions")] = TRAJECTORIES
    """`trajectories`, `pairs`, `labels` or `executions`: the kind of its rows."""
    preferences: list[str] | None = None
    """Ids of the pairs, each followed by those with the same answers, which count with it."""
    raters: dict[str, Count] | None = None
    """Pairs by the rater, or the rule, that preferred."""
    sources: dict[str, Count] | None = None
    """Rows by source."""
    reward_groups: RewardGroups | None = None
    """Of trajectories."""
    tasks: TaskSets | None = None
    """Of a job that writes a bundle."""
