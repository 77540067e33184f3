"""Requests for training, commands to workers, and the workers' reports."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from ratchet.bus.message import JsonObject, Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.traces import Trace, span_id_of, trace_id_of
from ratchet.core.contract.values import (
    DOMAINS,
    NULLABLE,
    Amount,
    Count,
    Ordinal,
    Percentage,
    Positive,
    Role,
    Sha256,
    Share,
    Text,
    Uri,
    Uuid,
    listed,
    matching,
)


class DateRange(Value, frozen=True, kw_only=True, omit_defaults=True):
    start: datetime | None = None
    end: datetime | None = None


class DatasetFilter(Value, frozen=True, kw_only=True, omit_defaults=True):
    min_reward: float | None = None
    max_trajectory_length: Ordinal | None = None
    date_range: DateRange | None = None
    task_domains: list[Annotated[str, Meta(examples=[*DOMAINS])]] | None = None
    """Only these domains. Open: any domain of your own."""
    exclude_subordinate_profiles: list[str] | None = None
    """Not these sub-agents."""
    sources: list[str] | None = None
    """Only trajectories whose `metadata.source` is listed."""
    max_staleness: Count | None = None
    """Generations between the policies that answered and the one that is trained, counted in its lineage (8 for
    algorithms that learn from calls)."""
    balance_domains: bool | None = None
    """No domain gets more than its equal share of the sample while others have more to give."""
    max_reward: float | None = None
    min_margin: Share | None = None
    """Least `confidence` of a pair, which is the difference of the rewards where tries were compared. A person's choice
    that names none passes; any other pair without one does not."""
    min_human_share: Share | None = None
    """Least share of the pairs that people gave. Where they are too few, fewer of the others are taken."""
    excluded_raters: list[str] | None = None
    """Their preferences and thumbs do not count, as if they had never judged: a name, or `<source>/<name>`."""
    held_out: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    """Share of the tasks that do not train, the same ones for the same share: drafts of task files are made of them."""


class SnapshotRef(Value, frozen=True, kw_only=True):
    """An immutable dataset snapshot: the uri of its manifest and the sha256 of that manifest."""

    uri: Uri
    """Uri of the snapshot's manifest."""
    digest: Sha256
    """sha256 of that manifest."""


class Dataset(Value, frozen=True, kw_only=True, omit_defaults=True):
    source: Annotated[str, listed("nats_stream", "clickhouse", "s3", "local")]
    sample_size: Ordinal
    """Most trajectories (or pairs) to use."""
    stream_name: str | None = None
    """Of `nats_stream`: `RL_TRAJECTORIES`, also when it is absent. Only what the stream still holds is chosen from; the
    rows come from the warehouse, where erasures and opt-outs have been carried out."""
    filter: DatasetFilter | None = None
    snapshot: SnapshotRef | None = None
    """The immutable dataset, once resolved."""
    reward_transform: Annotated[str, listed("identity", "negate")] | None = None
    """`identity` (default) or `negate`: train on the opposite of the reward, to rehearse a bad policy."""
    min_rows: Ordinal | None = None
    """A job with fewer rows is refused."""


class Lora(Value, frozen=True, kw_only=True, omit_defaults=True):
    r: Ordinal = 16
    alpha: Positive = 32
    """Scale; the update is multiplied by alpha / r."""
    dropout: Annotated[float, Meta(lt=1, ge=0)] = 0.0
    """Dropout on the adapter's input."""
    target_modules: str | Annotated[list[str], Meta(min_length=1)] = "all-linear"
    """Which layers: names, or `all-linear`."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r), not alpha / r."""
    use_dora: bool = False
    """Learn magnitudes apart from directions."""
    load_in_4bit: bool = False
    """Hold the frozen base in 4 bits."""


class Hyperparameters(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An absent member means the algorithm's documented default."""

    learning_rate: Positive | None = None
    """Peak learning rate; 1e-5 is a number like any other."""
    batch_size: Ordinal | None = None
    """Rows (or trajectories) per update."""
    epochs: Ordinal | None = None
    """Passes over the dataset."""
    clip_epsilon: Amount | None = None
    """PPO's lower clip of the probability ratio."""
    clip_epsilon_high: Amount | None = None
    """Upper clip, when it differs."""
    gamma: Share | None = None
    gae_lambda: Share | None = None
    beta: Amount | None = None
    """Strength of the preference loss's tie to the reference (DPO, KTO)."""
    label_smoothing: Annotated[float, Meta(lt=0.5, ge=0)] | None = None
    """Share of preferences assumed to be mislabelled."""
    desirable_weight: Amount | None = None
    """How much liked answers count (KTO)."""
    undesirable_weight: Amount | None = None
    """How much disliked answers count (KTO)."""
    kl_beta: Amount | None = None
    """Weight of the KL penalty to the reference."""
    entropy_coefficient: Amount | None = None
    """Weight of the entropy of ppo's policy, which keeps it from settling too early."""
    seed: Count | None = None
    """Seed of everything random."""
    lora: Lora | None = None
    """Shape of the adapter."""
    full_finetune: bool = False
    """Train every weight; the result is a model, not an adapter."""
    max_steps: Ordinal | None = None
    """Stop after so many updates."""
    gradient_accumulation: Ordinal | None = None
    """Micro-batches per update."""
    max_length: Ordinal | None = None
    """Longest row, in tokens."""
    pass_tokens: Ordinal | None = None
    """Most tokens that go through the model at once, padding included; a longer row goes alone."""
    warmup_steps: Count | None = None
    """Updates until the learning rate is reached."""
    lr_scheduler: Annotated[str, listed("linear", "constant", "cosine")] | None = None
    """How the learning rate goes on from there: down to a tenth (`linear`, `cosine`), or `constant`."""
    weight_decay: Share | None = None
    """Of the optimizer, for matrices."""
    max_grad_norm: Positive | None = None
    """Clip of the gradient's norm."""
    advantage_floor: Amount | None = None
    """Successful trajectories (reward > 0) get at least this advantage, so solved groups keep their skill."""
    negative_advantage_scale: Amount | None = None
    """Factor on negative advantages."""
    importance_cap: Positive | None = None
    """Most an importance weight may be; `off_policy_correction` leaves the weight out."""
    rejection_window: Annotated[list[Positive], Meta(max_length=2, min_length=2)] | None = None
    """[low, high] of the per-row geometric-mean ratio."""
    loss_normalization: Annotated[str, listed("trajectory", "token", "constant")] | None = None
    """`trajectory`, `token` or `constant`."""
    off_policy_correction: Annotated[str, listed("both", "importance", "rejection", "none")] | None = None
    """`both` (default), `importance` (weights, capped), `rejection` (of rows) or `none`."""
    ratio: Annotated[str, listed("token", "sequence")] | None = None
    """`token` (default), or `sequence`: the geometric mean of a row's (GSPO)."""
    surrogate: Annotated[str, listed("ppo", "cispo")] | None = None
    """`ppo` (default), or `cispo`."""
    scale_rewards: Annotated[str, listed("group", "none")] | None = None
    """`group` (default): by the standard deviation in each group; `none`."""
    center_rewards_coefficient: Amount | None = None
    """Of a reward model: weight of the squared sum of a pair's rewards."""


class Compute(Value, frozen=True, kw_only=True, omit_defaults=True):
    gpu_count: Count | None = None
    """Number of GPUs; 0 is CPU only."""
    gpu_type: Annotated[str, Meta(examples=["a100", "v100", "t4", "any"])] | None = None
    """Kind of GPU. Open. Ratchet places jobs by pool and refuses any value but `any`."""
    distributed: bool | None = None
    """Over several machines."""
    mixed_precision: Annotated[str, listed("fp32", "fp16", "bf16")] | None = None
    """Number format of the computation. Absent means bf16 on a GPU, fp32 on a CPU."""
    threads: Ordinal | None = None
    """CPU threads of the trainer."""


class Checkpointing(Value, frozen=True, kw_only=True, omit_defaults=True):
    save_interval: Ordinal | None = None
    """Updates between checkpoints."""
    max_checkpoints: Ordinal | None = None
    storage_path: str | None = None
    """Where they go. Refused by Ratchet: checkpoints lie in the installation's bucket."""


class HealthLimits(Value, frozen=True, kw_only=True, omit_defaults=True):
    """When a training is stopped because its policy breaks; an absent limit has its documented default."""

    enabled: bool = True
    """False: nothing but a loss that is no number stops the training."""
    min_ess: Share | None = None
    """Least effective sample size of a train step, as a share of its tokens."""
    max_kl: Positive | None = None
    """Most KL divergence from the policy at the start of the job, per token, in nats."""
    max_entropy_rise: Positive | None = None
    """Most that the mean entropy per token may rise above that of the start, in nats."""
    min_entropy_share: Share | None = None
    """Least share of the start's entropy that must be left."""
    max_gradient_growth: Annotated[float, Meta(gt=1)] | None = None
    """Most times the median of the earlier gradient norms."""
    max_loss_rise: Positive | None = None
    """Most that the mean loss of five train steps may rise above the least such mean before."""
    max_holdout_rise: Positive | None = None
    """Most that the loss on what is held out may rise above the least one before."""
    independent_metric: Annotated[str, listed("success")] | None = None
    """A column of the data that the reward does not see: `success`."""


class TaskFileRef(Value, frozen=True, kw_only=True):
    """An immutable task file in the object store."""

    uri: Uri
    sha256: Sha256


class CallBudget(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The most that a search may use, all of its attempts together; each call reserves its most beforehand."""

    calls: Ordinal
    """Calls of models, those of the reflector included."""
    tokens: Ordinal | None = None
    """Tokens of prompts and answers."""
    usd: Positive | None = None
    """US dollars, at the prices that are set in the gateway, or that the search names."""


class TokenPrices(Value, frozen=True, kw_only=True):
    """US dollars for a million tokens."""

    prompt: Amount
    completion: Amount
    """Of an answer's tokens, those of reasoning included."""


class PromptSearch(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What an algorithm that writes bundles needs. The two files of tasks share no task with each other and with the
    held-out tasks of the gate."""

    reflector: Text
    """The model that proposes instructions: `UPSTREAM/MODEL`, or a role, a policy or another name that the gateway
    answers for."""
    train_tasks: TaskFileRef
    """A task file to learn from: the reflector reads what went wrong with its tasks."""
    validation_tasks: TaskFileRef
    """A task file to choose by."""
    budget: CallBudget
    reflector_prices: TokenPrices | None = None
    """Of the reflector, in the place of the price that is set in the gateway."""
    answer_prices: TokenPrices | None = None
    """The same of what answers for the role."""


class TrainingConfig(Value, frozen=True, kw_only=True, omit_defaults=True):
    algorithm: Annotated[
        str,
        Meta(
            pattern=r"^(ppo|dpo|rloo|grpo|reinforce|sft|reward_model|kto|planner_supervised|planner_ppo|selector_linucb|selector_thompson|gepa|[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*)$"
        ),
    ]
    """How to learn: one of those listed, or `<package>.<name>`, which a package of that name brings."""
    base_model: str
    """`s3://...` uri of a model manifest, or a name or path that transformers can load.
    The uri of an adapter manifest continues from that adapter."""
    dataset: Dataset
    hyperparameters: Hyperparameters
    """Absent members have the algorithm's documented default."""
    compute: Compute | None = None
    checkpointing: Checkpointing | None = None
    health: HealthLimits | None = None
    """When a training is stopped because its policy breaks. It then falls back to its last healthy weights, or fails
    with CONVERGENCE."""
    prompts: PromptSearch | None = None
    """Of an algorithm that writes bundles, and of no other."""


class Evaluation(Value, frozen=True, kw_only=True, omit_defaults=True):
    enabled: bool | None = None
    """Whether to evaluate at all."""
    holdout_size: Share | None = None
    """Fraction of the dataset that is held out: pairs, thumbs, or the tries of whole tasks."""
    eval_steps: Ordinal | None = None
    """Train steps between two evaluations on what is held out; five in all without it."""
    metrics: list[Annotated[str, listed("reward", "task_completion", "efficiency", "loss", "kl_divergence")]] | None = (
        None
    )
    """What to measure. Refused by Ratchet: it follows from the algorithm."""
    benchmark_tasks: list[str] | None = None
    """Names of benchmark tasks. Refused by Ratchet: the deployer's gates run benchmarks."""


class RequestMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    requested_by: str | None = None
    notes: str | None = None
    previous_training_job: Annotated[Uuid | None, NULLABLE] = None
    """The job this one follows: a note for people. What a job continues from is `base_model`."""


HOURS = r"^([01]?[0-9]|2[0-3])-([01]?[0-9]|2[0-3])$"
StartHours = Annotated[str, matching(HOURS)]
"""From the first hour of the day until the second begins, over midnight where that is the smaller one. The same
hour twice is any hour."""


class TrainingRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A request for training. The same `idempotency_key` (or job id) twice is one job."""

    TOPIC: ClassVar[str] = "agent.rl.training.request.v1"

    training_job_id: Uuid
    timestamp: datetime
    """When it was asked for."""
    requester: str
    """Service or person that asks."""
    trigger_reason: Annotated[str, listed("scheduled", "threshold_reached", "manual", "performance_degradation")]
    training_config: TrainingConfig
    """What to train, on what, how."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    evaluation: Evaluation | None = None
    """How to evaluate the result."""
    priority: Annotated[str, listed("low", "normal", "high", "urgent")] = "normal"
    """Urgent jobs go first, first come first served within a class."""
    metadata: RequestMetadata | None = None
    idempotency_key: Text | None = None
    """Requests with the same key are one job."""
    deadline: datetime | None = None
    """Not to be started after this."""
    start_hours: StartHours | None = None
    """Hours of the day, in UTC, in which an attempt of `low` or `normal` priority may start: `22-6`."""
    offer: bool = True
    """False: the policy is stored, and its job names it, but it is no version of its role: nothing serves it."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id)

    @property
    def traceparent(self) -> str:
        """A job has a trace of its own, up to the rollout of its policy: it learns from many traces of agents."""
        return Trace(trace_id=trace_id_of(self.training_job_id), span_id=span_id_of(self.training_job_id)).traceparent


class TrainingDispatch(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Command to the workers of a pool: run this attempt of this job."""

    TOPIC: ClassVar[str] = "agent.rl.training.dispatch.v1"

    training_job_id: Uuid
    attempt: Ordinal
    """1 for the first attempt; later attempts fence off earlier ones."""
    pool: Role
    timestamp: datetime
    """When it was dispatched."""
    request: TrainingRequest
    """With `dataset.snapshot` resolved."""
    parent: str | None = None
    """Name of the policy that this job continues (`role@version-sha8`)."""
    resume_from: Uri | None = None
    """Uri of the checkpoint manifest to resume from."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.pool}"

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id, self.attempt)


class Progress(Value, frozen=True, kw_only=True, omit_defaults=True):
    current_epoch: Count | None = None
    total_epochs: Ordinal | None = None
    current_step: Count | None = None
    total_steps: Ordinal | None = None
    percent_complete: Percentage | None = None
    """Share done, in percent."""
    eta_seconds: Amount | None = None
    """Estimated time left, in seconds."""


class CurrentMetrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    loss: float | None = None
    reward_mean: float | None = None
    """Mean reward of the batch."""
    reward_std: Amount | None = None
    """Its standard deviation."""
    policy_entropy: float | None = None
    """Mean entropy per token, in nats."""
    kl_divergence: Amount | None = None
    """KL divergence from the reference per token, in nats."""
    learning_rate: Amount | None = None
    accuracy: Share | None = None
    """Share of pairs (or tokens) that are right."""
    margin: float | None = None
    """Mean difference of implicit rewards, chosen minus rejected."""
    auc: Share | None = None
    """Area under the ROC curve of the reward model."""
    ess: Share | None = None
    """Effective sample size as a share of the tokens."""
    clip_fraction: Share | None = None
    """Share of tokens whose ratio was clipped."""
    rejected_mass: Share | None = None
    """Share of tokens in rejected rows."""
    tokens_per_second: Amount | None = None
    """Tokens of rows that went through the model in a second, prompts included."""
    grad_norm: Amount | None = None
    """Norm of the gradient before clipping."""
    value_loss: Amount | None = None
    explained_variance: float | None = None
    """Share of the returns' variance that the critic explains; may be negative."""
    approx_kl: Amount | None = None
    """KL divergence from the policy at the start of the job per token, in nats."""
    validation_score: Share | None = None
    """Of a search for a bundle: the best mean score on the validation tasks."""
    candidates: Count | None = None
    """Bundles that were scored on all validation tasks, the first one included."""
    calls: Count | None = None
    """Calls of models that the budget was charged with, those of earlier attempts included."""
    spent_tokens: Count | None = None
    """Tokens, alike."""
    spent_usd: Amount | None = None
    """US dollars, alike."""


class BestMetrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    epoch: Count | None = None
    step: Count | None = None
    reward_mean: float | None = None
    checkpoint_path: str | None = None


class Metrics(Value, frozen=True, kw_only=True, omit_defaults=True):
    current: CurrentMetrics | None = None
    best: BestMetrics | None = None
    """At the train step with the least loss so far, where the losses of two steps can be compared: sft, dpo, kto.
    Ratchet sets `epoch` and `step`: logged rewards are not of a step, and no checkpoint is kept for being the
    best."""


class EvaluationResults(Value, frozen=True, kw_only=True, omit_defaults=True):
    holdout_reward: float | None = None
    """Mean reward on held-out data. Not set by Ratchet: a logged trajectory's reward is not the new policy's; see
    `benchmark_scores`."""
    benchmark_scores: dict[str, float] | None = None
    improvement_over_baseline: float | None = None
    """Difference from the policy it started from."""


class Artifacts(Value, frozen=True, kw_only=True, omit_defaults=True):
    final_checkpoint: str | None = None
    """Uri of the policy manifest (adapter, model or bundle)."""
    tensorboard_logs: str | None = None
    """The curves as one file of events that TensorBoard reads (`<sha256>.tfevents`)."""
    training_curves: str | None = None
    """Where the curves are."""
    model_card: str | None = None
    """Where the model card is."""
    digest: Sha256 | None = None
    """sha256 of the policy manifest."""
    kind: Annotated[str, listed("adapter", "model", "bundle", "reward_model")] | None = None
    """`adapter`, `model`, `bundle` or `reward_model`."""
    checkpoint: str | None = None
    """Uri of the newest resumable checkpoint's manifest."""


class HealthStop(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Why a training was stopped before its last train step."""

    figure: Text
    step: Count
    """The train step at which it was measured."""
    value: float
    limit: float
    kept_step: Ordinal | None = None
    """The train step whose weights were kept; None when none was healthy."""
    message: str = ""
    """The same in a sentence."""


class ResourceUsage(Value, frozen=True, kw_only=True, omit_defaults=True):
    gpu_hours: Amount | None = None
    cost_usd: Amount | None = None
    """Cost, in US dollars: time of the attempt at the worker's price per hour. Absent where the worker has no price."""
    peak_memory_gb: Amount | None = None
    """Most memory used, in gigabytes."""
    total_training_time_seconds: Amount | None = None
    """Wall time, in seconds."""
    tokens: Count | None = None
    """Tokens of rows that went through the model in train steps, prompts included."""


class ErrorCode(StrEnum):
    """The class of what ended an attempt, which decides whether and how the job is tried again."""

    OOM = "OOM"
    CONVERGENCE = "CONVERGENCE"
    DATA = "DATA"
    INFRA = "INFRA"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"


class TrainingError(Value, frozen=True, kw_only=True, omit_defaults=True):
    code: Annotated[str, listed("OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN")] = ErrorCode.UNKNOWN
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
    training_samples: Count | None = None
    """Number of trajectories (or pairs) trained on."""


class TrainingStatus(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a worker (or of the coordinator, for queued and cancelled) on one attempt of a job."""

    TOPIC: ClassVar[str] = "agent.rl.training.status.v1"
    RULES: ClassVar[JsonObject] = {
        "if": {"properties": {"status": {"const": "failed"}}, "required": ["status"]},
        "then": {"required": ["error"]},
    }

    training_job_id: Uuid
    timestamp: datetime
    status: Annotated[str, listed("queued", "running", "completed", "failed", "cancelled")]
    """`queued`, `running`, `completed`, `failed` or `cancelled`."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    attempt: Ordinal = 1
    """Which attempt; reports of an older attempt are ignored."""
    progress: Progress | None = None
    metrics: Metrics | None = None
    """What the learner measures."""
    evaluation_results: EvaluationResults | None = None
    """What evaluation found."""
    artifacts: Artifacts | None = None
    resource_usage: ResourceUsage | None = None
    error: TrainingError | None = None
    """What went wrong; required when the status is `failed`."""
    metadata: StatusMetadata | None = None
    dataset_digest: Sha256 | None = None
    """sha256 of the snapshot's manifest."""
    findings: list[Text] | None = None
    """What the chat template loses of the data, or teaches by mistake: sentences, known before the first train step."""
    health_stop: HealthStop | None = None
    """A completed job has the weights of its `kept_step`."""
    offer: bool = True
    """As in the request: a result that is not offered is no version of its role."""
    stopping: Annotated[str, listed("after_step", "now")] | None = None
    """The worker has read a cancel, and ends the training: `after_step`, with a checkpoint, or `now`."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.training_job_id, self.attempt, self.status, self.timestamp.isoformat())
