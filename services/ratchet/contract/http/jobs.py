"""Training jobs over HTTP: requests, and the coordinator's answers."""

from __future__ import annotations

from typing import Annotated

from ratchet.bus.message import Cause
from ratchet.contract.http.answers import Answer, Instant, listed
from ratchet.contract.roles import DEFAULT_ROLE
from ratchet.contract.training import (
    Artifacts,
    CurrentMetrics,
    Dataset,
    Evaluation,
    Hyperparameters,
    Progress,
    SnapshotRef,
    TrainingConfig,
    TrainingError,
    TrainingRequest,
)

JobState = Annotated[str, listed("queued", "dispatched", "running", "completed", "failed", "cancelled")]


class DatasetIn(Dataset, frozen=True, kw_only=True, omit_defaults=True):
    """The trajectories to learn from."""

    source: str = "clickhouse"
    sample_size: int = 5000
    """At most this many trajectories, newest first. Refused above RATCHET_COORDINATOR_HISTORY_LIMIT (200000), and below
    what the algorithm needs: RATCHET_COORDINATOR_MINIMUM_TRAJECTORIES, ..._PAIRS or ..._LABELS (8 each; sft needs 1).
    """


class JobIn(TrainingConfig, frozen=True, kw_only=True, omit_defaults=True):
    """A request for training. Its members are those of the message `training.request.v1`, without the nesting."""

    algorithm: str
    """sft, rloo, ppo, ...: any that the workers of this installation offer."""
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
    progress: Progress | None = None
    metrics: CurrentMetrics | None = None
    artifacts: Artifacts | None = None
    error: TrainingError | None = None
    """Of the last attempt, while one is left."""
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
