"""What the HTTP API takes and gives. Closed and strictly typed: a misspelt setting is refused, not ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from pydantic import BaseModel, ConfigDict, Field, Strict

from ratchet.bus.message import DEFAULT_ROLE, encode, named_id
from ratchet.contract.state import Job
from ratchet.contract.training import RequestMetadata, TrainingConfig, TrainingRequest

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""Numbers are numbers: `"1e-5"` and `true` are refused."""
Flag = Annotated[bool, Strict()]
Positive = Annotated[int, Strict(), Field(ge=1)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
NotNegative = Annotated[float, Strict(), Field(ge=0)]


class Closed(BaseModel):
    """Unknown members are errors."""

    model_config = ConfigDict(extra="forbid")


class DateRangeIn(Closed):
    start: datetime | None = None
    end: datetime | None = None


class FilterIn(Closed):
    min_reward: Number | None = None
    max_trajectory_length: Positive | None = None
    date_range: DateRangeIn | None = None
    task_domains: list[str] | None = None
    exclude_subordinate_profiles: list[str] | None = None
    sources: list[str] | None = Field(None, description="Only trajectories from these: client, assembled, import:...")


class SnapshotIn(Closed):
    uri: str
    digest: str


class DatasetIn(Closed):
    source: Literal["nats_stream", "clickhouse", "s3", "local"] = "clickhouse"
    sample_size: Positive = Field(
        5000,
        description="At most this many trajectories, newest first. Refused above RATCHET_COORDINATOR_HISTORY_LIMIT"
        " (200000), and below what the algorithm needs: RATCHET_COORDINATOR_MINIMUM_TRAJECTORIES, ..._PAIRS or"
        " ..._LABELS (8 each; sft needs 1).",
    )
    stream_name: str | None = None
    filter: FilterIn | None = None
    snapshot: SnapshotIn | None = Field(None, description="With source s3: train on this snapshot again.")
    reward_transform: Literal["identity", "negate"] | None = None


class LoraIn(Closed):
    r: Positive = 16
    alpha: Annotated[float, Strict(), Field(gt=0)] = 32
    dropout: Share = 0.0
    target_modules: str | list[str] = "all-linear"


class HyperparametersIn(Closed):
    """Absent means: the algorithm's documented default."""

    learning_rate: Annotated[float, Strict(), Field(gt=0)] | None = None
    batch_size: Positive | None = None
    epochs: Positive | None = None
    clip_epsilon: NotNegative | None = None
    clip_epsilon_high: NotNegative | None = None
    gamma: Share | None = None
    gae_lambda: Share | None = None
    beta: NotNegative | None = None
    label_smoothing: Share | None = None
    desirable_weight: NotNegative | None = None
    undesirable_weight: NotNegative | None = None
    kl_beta: NotNegative | None = None
    seed: Integer | None = None
    lora: LoraIn | None = None
    full_finetune: Flag = False
    max_steps: Positive | None = None
    gradient_accumulation: Positive | None = None
    max_length: Positive | None = None
    warmup_steps: Annotated[int, Strict(), Field(ge=0)] | None = None
    max_grad_norm: NotNegative | None = None
    advantage_floor: Number | None = None
    negative_advantage_scale: NotNegative | None = None
    importance_cap: Annotated[float, Strict(), Field(gt=0)] | None = None
    rejection_window: list[Number] | None = None
    loss_normalization: Literal["trajectory", "token", "constant"] | None = None


class ComputeIn(Closed):
    gpu_count: Annotated[int, Strict(), Field(ge=0)] | None = None
    gpu_type: str | None = None
    distributed: Flag | None = None
    mixed_precision: Literal["fp32", "fp16", "bf16"] | None = None
    threads: Positive | None = None


class CheckpointingIn(Closed):
    save_interval: Positive | None = None
    max_checkpoints: Positive | None = None
    storage_path: str | None = None


class EvaluationIn(Closed):
    enabled: Flag | None = None
    holdout_size: Share | None = None
    metrics: list[Literal["reward", "task_completion", "efficiency", "loss", "kl_divergence"]] | None = None
    benchmark_tasks: list[str] | None = None


class JobIn(Closed):
    """A request for training."""

    algorithm: str = Field(description="sft, rloo, ppo, ...: what the workers of this installation offer.")
    role: str = Field(DEFAULT_ROLE, pattern=r"^[a-z0-9_-]{1,64}$")
    base_model: str = Field(
        "stable",
        min_length=1,
        description="`stable`: continue from what serves the role when the job starts. Else the uri of a policy"
        " manifest, or a name or path that transformers can load. The worker looks a name or path up, on its own"
        " machine: one that is not there fails the job.",
    )
    dataset: DatasetIn = Field(default_factory=lambda: DatasetIn.model_validate({}))
    hyperparameters: HyperparametersIn = Field(default_factory=lambda: HyperparametersIn.model_validate({}))
    compute: ComputeIn | None = None
    checkpointing: CheckpointingIn | None = None
    evaluation: EvaluationIn | None = None
    priority: Literal["low", "normal", "high", "urgent"] = "normal"
    training_job_id: UUID | None = Field(None, description="Chosen by you; the same id twice is one job.")
    idempotency_key: str | None = Field(None, min_length=1, description="The same key twice is one job.")
    deadline: datetime | None = Field(None, description="A job that has not started by then fails.")
    requester: str = "api"
    notes: str | None = None
    previous_training_job: UUID | None = None

    def request(self, job_id: str, now: datetime) -> TrainingRequest:
        """The message of this request. `job_id` is used where the request brings neither an id nor a key."""
        given = self.model_dump(mode="json", exclude_none=True)
        config = {name: given[name] for name in TrainingConfig.__struct_fields__ if name in given}
        metadata = {name: given[name] for name in RequestMetadata.__struct_fields__ if name in given}
        rest = {
            name: given[name] for name in ("role", "priority", "evaluation", "deadline", "requester") if name in given
        }
        made: dict[str, Any] = {
            **rest,
            "training_job_id": self._id(job_id),
            "timestamp": now,
            "trigger_reason": "manual",
            "training_config": config,
            "metadata": metadata or None,
            "idempotency_key": self.idempotency_key,
        }
        return msgspec.convert(made, TrainingRequest)

    def _id(self, fresh: str) -> str:
        if self.training_job_id is not None:
            return str(self.training_job_id)
        return named_id("job", self.role, self.idempotency_key) if self.idempotency_key else fresh


class JobOut(BaseModel):
    """A training job as it is now."""

    training_job_id: str
    role: str
    algorithm: str
    state: Literal["queued", "dispatched", "running", "completed", "failed", "cancelled"]
    priority: str
    pool: str = "default"
    attempt: int = 0
    created_at: datetime
    updated_at: datetime
    request: dict[str, Any] = Field(description="The request, with names resolved once the job was dispatched.")
    worker: str | None = None
    parent: str | None = Field(None, description="Name of the policy that the job continues from.")
    snapshot: dict[str, Any] | None = Field(None, description="Uri and digest of its data's manifest.")
    trajectories: int | None = Field(None, description="Rows of the snapshot.")
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    retry_at: datetime | None = None
    cancel_requested: bool = False
    progress: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    artifacts: dict[str, Any] | None = None
    error: dict[str, Any] | None = Field(None, description="code and message; of the last attempt, while one is left.")
    cause: dict[str, Any] | None = Field(None, description="The event that led to its present state, and its chain.")


class JobsOut(BaseModel):
    jobs: list[JobOut]
    total: int = Field(description="How many there are, on this page or not.")


class PreviewOut(BaseModel):
    """The data that a job would learn from if it started now."""

    format: str = Field(description="trajectories, pairs or labels: the algorithm decides.")
    rows: int
    left_out: dict[str, int] = Field(description="What would not be taken, by reason.")
    waiting: int = Field(description="Stored trajectories that have no reward yet, which only a later job can take.")
    sources: dict[str, int]
    watermarks: dict[str, int] = Field(description="By stream: the newest message that was seen.")
    reward_function: str
    refused: str | None = Field(description="Why the job would fail; null when it would not.")


class SlotsOut(BaseModel):
    used: int
    total: int


class RoleOut(BaseModel):
    stable: str | None = Field(None, description="Name of the policy that serves the role.")
    canary: str | None = None
    rewarded: int = Field(description="Trajectories that were ever rewarded.")
    since_last_training: int
    threshold: int | None = Field(None, description="New rewarded trajectories that start a training; null: by hand.")
    last_job: str | None = None


class StatusOut(BaseModel):
    """The whole of training at a glance."""

    training_enabled: bool
    algorithms: list[str]
    jobs: dict[str, int] = Field(description="Jobs by state.")
    slots: dict[str, SlotsOut]
    longest_wait_s: float = Field(description="Age of the oldest job that waits for a slot, 0 when none does.")
    roles: dict[str, RoleOut]


class HealthOut(BaseModel):
    status: Literal["ok", "degraded"]
    reasons: dict[str, str]


class ErrorPart(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorOut(BaseModel):
    error: ErrorPart


def job_out(job: Job) -> JobOut:
    """A job for people and programs outside."""
    return JobOut.model_validate_json(encode(job))
