"""Training jobs over HTTP: requests, and the coordinator's answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ratchet.bus.message import Cause
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.snapshot import RewardGroups
from ratchet.core.contract.state import RaterDecision, TriggerNote
from ratchet.core.contract.training import (
    Artifacts,
    CurrentMetrics,
    Dataset,
    DatasetFilter,
    Evaluation,
    EvaluationResults,
    HealthStop,
    Hyperparameters,
    Progress,
    ResourceUsage,
    SnapshotRef,
    TrainingConfig,
    TrainingError,
    TrainingRequest,
)
from ratchet.core.contract.values import Role, Text, listed

JobState = Annotated[str, listed("queued", "dispatched", "running", "completed", "failed", "cancelled")]


class DatasetIn(Dataset, frozen=True, kw_only=True, omit_defaults=True):
    """The trajectories to learn from."""

    source: str = "clickhouse"
    sample_size: int = 5000
    """At most this many trajectories, newest first. Refused above RATCHET_COORDINATOR_HISTORY_LIMIT (200000), and below
    what the algorithm needs: RATCHET_COORDINATOR_MINIMUM_ROWS (8; sft needs 1)."""


class JobIn(TrainingConfig, frozen=True, kw_only=True, omit_defaults=True):
    """A request for training. Its members are those of the message `training.request.v1`, without the nesting."""

    algorithm: str
    """sft, rloo, ppo, ...: any that the workers of this installation offer. `auto`: what `GET /v1/plan` proposes; the
    reasons are in the job's notes."""
    base_model: str = "stable"
    """`stable`: continue from what serves the role when the job starts. Else the uri of a policy manifest, or a name or
    path that transformers can load. The worker looks a name or path up, on its own machine: one that is not there fails
    the job."""
    dataset: DatasetIn = DatasetIn()
    hyperparameters: Hyperparameters = Hyperparameters()
    role: str = DEFAULT_ROLE
    evaluation: Evaluation | None = None
    priority: str = "normal"
    training_job_id: str | None = None
    """Chosen by you; the same id twice is one job."""
    idempotency_key: str | None = None
    """The same key twice is one job."""
    deadline: Instant | None = None
    """A job that has not started by then fails."""
    start_hours: str | None = None
    offer: bool = True
    requester: str = "api"
    notes: str | None = None
    previous_training_job: str | None = None


class JobOut(Answer, frozen=True, kw_only=True):
    """A training job as it is now."""

    training_job_id: str
    role: str
    algorithm: str
    state: JobState
    priority: str
    pool: str = "default"
    attempt: int = 0
    created_at: Instant
    updated_at: Instant
    request: TrainingRequest
    """The request, with names resolved once the job was dispatched."""
    worker: str | None = None
    parent: str | None = None
    """Name of the policy that the job continues from."""
    snapshot: SnapshotRef | None = None
    """Uri and digest of its data's manifest."""
    trajectories: int | None = None
    """Rows of the snapshot."""
    heartbeat_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    retry_at: Instant | None = None
    cancel_requested: bool = False
    cancelled_by: str | None = None
    """Who cancelled it."""
    cancel_now: bool = False
    """Its end was asked for at once, without a further checkpoint."""
    stopping: Annotated[str, listed("after_step", "now")] | None = None
    """How its worker ends the training: `after_step`, with a checkpoint, or `now`. Null: it has not acknowledged a
    cancel."""
    resumed_by: str | None = None
    """Who resumed it after its end."""
    progress: Progress | None = None
    metrics: CurrentMetrics | None = None
    artifacts: Artifacts | None = None
    error: TrainingError | None = None
    """Of the last attempt, while one is left."""
    findings: list[str] | None = None
    """What the chat template loses of its data, or teaches by mistake: a sentence for each."""
    health_stop: HealthStop | None = None
    """Why its last attempt was stopped before the last train step."""
    evaluation_results: EvaluationResults | None = None
    """What was measured on what was held out."""
    triggers: list[TriggerNote] | None = None
    """What asked for it by itself; null for a job that was asked for by hand."""
    unclaimed: int = 0
    """Attempts that no worker took."""
    dispatched_at: Instant | None = None
    """When it first got a slot."""
    queue_wait_s: float = 0.0
    """Seconds from its creation to its first slot, or until now."""
    resource_usage: ResourceUsage | None = None
    """What all of its attempts used together, so far."""
    cause: Cause | None = None
    """The event that caused its present state, and its chain."""


class JobsOut(Answer, frozen=True, kw_only=True):
    """Jobs, newest first."""

    jobs: list[JobOut]
    total: int
    """The number of all matching jobs, on this page or not."""


class PreviewOut(Answer, frozen=True, kw_only=True):
    """The data that a job would learn from if it started now."""

    format: str
    """trajectories, pairs or labels: the algorithm decides."""
    rows: int
    left_out: dict[str, int]
    """Rows that would not be taken, by reason."""
    waiting: int
    """Stored trajectories that have no reward yet, which only a later job can take."""
    sources: dict[str, int]
    watermarks: dict[str, int]
    """By stream: the newest message that was seen."""
    reward_function: str
    refused: str | None
    """Why the job would fail; null when it would not."""
    reward_groups: RewardGroups | None = None
    """Of trajectories: how many tasks an algorithm can learn from that compares their tries."""
    planned: str | None = None
    """Of `auto`: the algorithm that it stands for, and why not the others."""


class SnapshotOut(Answer, frozen=True, kw_only=True):
    """A snapshot that was built without a job."""

    uri: str
    """Of its manifest."""
    digest: str
    """sha256 of the manifest, which names the data."""
    rows: int
    planned: str | None = None
    """Of `auto`: the algorithm that it stands for, and why not the others."""


class RaterIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision about a rater."""

    role: Role
    rater: Text
    """Its name, which stands for every source, or `SOURCE/NAME`."""
    decision: Annotated[str, listed("released", "banned")]


class RatersOut(Answer, frozen=True, kw_only=True):
    """The raters of a role that people decided about."""

    role: str
    raters: dict[str, RaterDecision]


class ShapeOut(Answer, frozen=True, kw_only=True):
    """What a role has to learn from."""

    rewarded: int
    """Trajectories with a reward for which something was known."""
    successes: int
    """Those with a reward of at least .5."""
    new_successes: int = 0
    """Those from which the stable policy's lineage has not learnt."""
    success_share: float
    trainable: int
    """Those that a policy gradient may use, and the stable policy's lineage has not used."""
    groups: int
    """Tasks with several tries among these."""
    mixed_groups: int
    """Groups whose rewards differ: the others have no gradient."""
    singletons: int
    old_share: float
    """Share of the trainable ones that a policy of 4 or more generations away answered."""
    pairs: int
    """Pairs of answers that the stable policy's lineage has not learnt from, one of each question."""
    thumbs_up: int
    """Trajectories that most of their raters liked and the lineage has not learnt from as such."""
    thumbs_down: int
    ess: float | None
    """Effective sample size of the role's last policy gradient, until most trajectories are newer than it."""
    has_imitated: bool
    """The stable policy or an ancestor learnt by sft."""
    held_out_tasks: int
    """Tasks by which the gate compares candidates with stable."""


class PlanOut(Answer, frozen=True, kw_only=True):
    """A proposal for a role's next training."""

    role: str
    algorithm: str | None
    """Null: nothing can be learnt yet."""
    why: str
    filter: DatasetFilter | None
    """Which of the data it takes; null: all of it."""
    rejected: dict[str, str]
    """Why not the others, by algorithm."""
    shape: ShapeOut
