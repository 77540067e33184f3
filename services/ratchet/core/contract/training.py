"""Requests for training, commands to workers, and the workers' reports."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from ratchet.bus.message import Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE


class DateRange(Value, frozen=True, kw_only=True, omit_defaults=True):
    start: datetime | None = None
    end: datetime | None = None


class DatasetFilter(Value, frozen=True, kw_only=True, omit_defaults=True):
    min_reward: float | None = None
    max_trajectory_length: int | None = None
    date_range: DateRange | None = None
    task_domains: list[str] | None = None
    exclude_subordinate_profiles: list[str] | None = None
    sources: list[str] | None = None
    """Only trajectories whose `metadata.source` is listed."""
    max_staleness: int | None = None
    """Generations between the policies that answered and the one that is trained, counted in its lineage (8 for
    algorithms that learn from calls)."""
    balance_domains: bool | None = None
    """No domain gets more than its equal share of the sample while others have more to give."""
    max_reward: float | None = None
    min_margin: float | None = None
    """Least `confidence` of a pair, which is the difference of the rewards where tries were compared. A person's choice
    that names none passes; any other pair without one does not."""
    min_human_share: float | None = None
    """Least share of the pairs that people gave. Where they are too few, fewer of the others are taken."""
    excluded_raters: list[str] | None = None
    """Their preferences and thumbs do not count, as if they had never judged: a name, or `<source>/<name>`."""
    held_out: float | None = None
    """Share of the tasks that do not train, the same ones for the same share: drafts of task files are made of them."""


class SnapshotRef(Value, frozen=True, kw_only=True):
    """An immutable dataset snapshot: the uri of its manifest and the sha256 of that manifest."""

    uri: str
    digest: str


class Dataset(Value, frozen=True, kw_only=True, omit_defaults=True):
    source: str
    sample_size: int
    stream_name: str | None = None
    filter: DatasetFilter | None = None
    snapshot: SnapshotRef | None = None
    reward_transform: str | None = None
    """`identity` (default) or `negate`: train on the opposite of the reward, to rehearse a bad policy."""
    min_rows: int | None = None
    """A job with fewer rows is refused."""


class Lora(Value, frozen=True, kw_only=True, omit_defaults=True):
    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"
    use_rslora: bool = False
    """Scale by alpha / sqrt(r), not alpha / r."""
    use_dora: bool = False
    """Learn magnitudes apart from directions."""
    load_in_4bit: bool = False
    """Hold the frozen base in 4 bits."""


class Hyperparameters(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An absent member means the algorithm's documented default."""

    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    clip_epsilon: float | None = None
    clip_epsilon_high: float | None = None
    gamma: float | None = None
    gae_lambda: float | None = None
    beta: float | None = None
    label_smoothing: float | None = None
    desirable_weight: float | None = None
    undesirable_weight: float | None = None
    kl_beta: float | None = None
    entropy_coefficient: float | None = None
    seed: int | None = None
    lora: Lora | None = None
    full_finetune: bool = False
    """Train every weight; the result is a model, not an adapter."""
    max_steps: int | None = None
    gradient_accumulation: int | None = None
    max_length: int | None = None
    pass_tokens: int | None = None
    """Most tokens that go through the model at once, padding included; a longer row goes alone."""
    warmup_steps: int | None = None
    max_grad_norm: float | None = None
    advantage_floor: float | None = None
    """Successful trajectories (reward > 0) get at least this advantage, so solved groups keep their skill."""
    negative_advantage_scale: float | None = None
    importance_cap: float | None = None
    rejection_window: list[float] | None = None
    """[low, high] of the per-row geometric-mean ratio."""
    loss_normalization: str | None = None
    """`trajectory`, `token` or `constant`."""
    off_policy_correction: str | None = None
    """`both` (default), `importance` (weights, capped), `rejection` (of rows) or `none`."""
    ratio: str | None = None
    """`token` (default), or `sequence`: the geometric mean of a row's (GSPO)."""
    surrogate: str | None = None
    """`ppo` (default), or `cispo`."""
    scale_rewards: str | None = None
    """`group` (default): by the standard deviation in each group; `none`."""
    center_rewards_coefficient: float | None = None
    """Of a reward model: weight of the squared sum of a pair's rewards."""


class Compute(Value, frozen=True, kw_only=True, omit_defaults=True):
    gpu_count: int | None = None
    gpu_type: str | None = None
    distributed: bool | None = None
    mixed_precision: str | None = None
    threads: int | None = None


class Checkpointing(Value, frozen=True, kw_only=True, omit_defaults=True):
    save_interval: int | None = None
    max_checkpoints: int | None = None
    storage_path: str | None = None


class HealthLimits(Value, frozen=True, kw_only=True, omit_defaults=True):
    """When a training is stopped because its policy breaks; an absent limit has its documented default."""

    enabled: bool = True
    """False: nothing but a loss that is no number stops the training."""
    min_ess: float | None = None
    """Least effective sample size of a train step, as a share of its tokens."""
    max_kl: float | None = None
    """Most KL divergence from the policy at the start of the job, per token, in nats."""
    max_entropy_rise: float | None = None
    """Most that the mean entropy per token may rise above that of the start, in nats."""
    min_entropy_share: float | None = None
    """Least share of the start's entropy that must be left."""
    max_gradient_growth: float | None = None
    """Most times the median of the earlier gradient norms."""
    max_loss_rise: float | None = None
    """Most that the mean loss of five train steps may rise above the least such mean before."""
    max_holdout_rise: float | None = None
    """Most that the loss on what is held out may rise above the least one before."""
    independent_metric: str | None = None
    """A column of the data that the reward does not see: `success`."""


class TrainingConfig(Value, frozen=True, kw_only=True, omit_defaults=True):
    algorithm: str
    base_model: str
    """`s3://...` uri of a model manifest, or a name or path that transformers can load.
    The uri of an adapter manifest continues from that adapter."""
    dataset: Dataset
    hyperparameters: Hyperparameters
    compute: Compute | None = None
    checkpointing: Checkpointing | None = None
    health: HealthLimits | None = None


class Evaluation(Value, frozen=True, kw_only=True, omit_defaults=True):
    enabled: bool | None = None
    holdout_size: float | None = None
    eval_steps: int | None = None
    """Train steps between two evaluations on what is held out; five in all without it."""
    metrics: list[str] | None = None
    benchmark_tasks: list[str] | None = None


class RequestMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    requested_by: str | None = None
    notes: str | None = None
    previous_training_job: str | None = None


class TrainingRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A request for training. The same `idempotency_key` (or job id) twice is one job."""

    TOPIC: ClassVar[str] = "agent.rl.training.request.v1"

    training_job_id: str
    timestamp: datetime
    requester: str
    trigger_reason: str
    training_config: TrainingConfig
    role: str = DEFAULT_ROLE
    evaluation: Evaluation | None = None
    priority: str = "normal"
    metadata: RequestMetadata | None = None
    idempotency_key: str | None = None
    deadline: datetime | None = None

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id)


class TrainingDispatch(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Command to the workers of a pool: run this attempt of this job."""

    TOPIC: ClassVar[str] = "agent.rl.training.dispatch.v1"

    training_job_id: str
    attempt: int
    pool: str
    timestamp: datetime
    request: TrainingRequest
    """With `dataset.snapshot` resolved."""
    parent: str | None = None
    """Name of the policy that this job continues (`role@version-sha8`)."""
    resume_from: str | None = None
    """Uri of the checkpoint manifest to resume from."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.pool}"

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id, self.attempt)


class Progress(Value, frozen=True, kw_only=True, omit_defaults=True):
    current_epoch: int | None = None
    total_epochs: int | None = None
    current_step: int | None = None
    total_steps: int | None = None
    percent_complete: float | None = None
    eta_seconds: float | None = None


class CurrentMetrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    loss: float | None = None
    reward_mean: float | None = None
    reward_std: float | None = None
    policy_entropy: float | None = None
    kl_divergence: float | None = None
    learning_rate: float | None = None
    accuracy: float | None = None
    margin: float | None = None
    auc: float | None = None
    ess: float | None = None
    clip_fraction: float | None = None
    rejected_mass: float | None = None
    tokens_per_second: float | None = None
    grad_norm: float | None = None
    value_loss: float | None = None
    explained_variance: float | None = None
    approx_kl: float | None = None


class BestMetrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    epoch: int | None = None
    step: int | None = None
    reward_mean: float | None = None
    checkpoint_path: str | None = None


class Metrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    current: CurrentMetrics | None = None
    best: BestMetrics | None = None


class EvaluationResults(Value, frozen=True, kw_only=True, omit_defaults=True):
    holdout_reward: float | None = None
    benchmark_scores: dict[str, float] | None = None
    improvement_over_baseline: float | None = None


class Artifacts(Value, frozen=True, kw_only=True, omit_defaults=True):
    final_checkpoint: str | None = None
    """Uri of the policy manifest (adapter or model)."""
    tensorboard_logs: str | None = None
    training_curves: str | None = None
    model_card: str | None = None
    digest: str | None = None
    """sha256 of the policy manifest."""
    kind: str | None = None
    """`adapter`, `model` or `reward_model`."""
    checkpoint: str | None = None
    """Uri of the newest resumable checkpoint's manifest."""


class HealthStop(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Why a training was stopped before its last train step."""

    figure: str
    step: int
    """The train step at which it was measured."""
    value: float
    limit: float
    kept_step: int | None = None
    """The train step whose weights were kept; None when none was healthy."""
    message: str = ""
    """The same in a sentence."""


class ResourceUsage(Value, frozen=True, kw_only=True, omit_defaults=True):
    gpu_hours: float | None = None
    cost_usd: float | None = None
    peak_memory_gb: float | None = None
    total_training_time_seconds: float | None = None


class ErrorCode(StrEnum):
    """The class of what ended an attempt, which decides whether and how the job is tried again."""

    OOM = "OOM"
    CONVERGENCE = "CONVERGENCE"
    DATA = "DATA"
    INFRA = "INFRA"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"


class TrainingError(Value, frozen=True, kw_only=True, omit_defaults=True):
    code: str = ErrorCode.UNKNOWN
    """`OOM`, `CONVERGENCE`, `DATA`, `INFRA`, `TIMEOUT` or `UNKNOWN`."""
    message: str = ""
    traceback: str | None = None
    final: bool = False
    """Another attempt would fail the same way, whatever data is chosen."""


class StatusMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    training_platform: str | None = None
    cuda_version: str | None = None
    pytorch_version: str | None = None
    worker: str | None = None
    instance: str | None = None
    """The process of that worker: two machines may have one hostname."""
    training_samples: int | None = None


class TrainingStatus(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a worker (or of the coordinator, for queued and cancelled) on one attempt of a job."""

    TOPIC: ClassVar[str] = "agent.rl.training.status.v1"

    training_job_id: str
    timestamp: datetime
    status: str
    """`queued`, `running`, `completed`, `failed` or `cancelled`."""
    role: str = DEFAULT_ROLE
    attempt: int = 1
    progress: Progress | None = None
    metrics: Metrics | None = None
    evaluation_results: EvaluationResults | None = None
    artifacts: Artifacts | None = None
    resource_usage: ResourceUsage | None = None
    error: TrainingError | None = None
    metadata: StatusMetadata | None = None
    dataset_digest: str | None = None
    findings: list[str] | None = None
    """What the chat template loses of the data, or teaches by mistake: sentences, known before the first train step."""
    health_stop: HealthStop | None = None
    """A completed job has the weights of its `kept_step`."""
    stopping: str | None = None
    """The worker has read a cancel, and ends the training: `after_step`, with a checkpoint, or `now`."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id, self.attempt, self.status, self.timestamp.isoformat())
