"""The present state: the values in the NATS key-value buckets, which change only by compare-and-set."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from ratchet.bus.message import Cause, JsonObject, Value
from ratchet.core.contract.operations import Alert
from ratchet.core.contract.training import (
    Artifacts,
    CurrentMetrics,
    EvaluationResults,
    HealthStop,
    Progress,
    ResourceUsage,
    SnapshotRef,
    TrainingError,
    TrainingRequest,
)
from ratchet.core.contract.values import (
    Count,
    Ordinal,
    Positive,
    Role,
    Sha256,
    Share,
    Text,
    Uuid,
    listed,
    matching,
)

POLICIES, BUNDLES, ROLLOUTS, ROLLOUT_CHUNKS, JOBS = "policies", "bundles", "rollouts", "rollout_chunks", "jobs"
BASELINES, HELD_OUT, RATERS = "baselines", "held_out", "raters"
JUDGEMENTS, JUDGE_SPEND, REWARD_FUNCTIONS = "judgements", "judge_spend", "reward_functions"
KEYS, KEY_USAGE, RESPONSES, PROBES = "keys", "key_usage", "responses", "probes"
"""Bucket names."""

Zoned = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that can be compared with the present: one without a zone cannot be read."""

STAGING, PRODUCTION, ARCHIVED = "staging", "production", "archived"
"""Stages of a policy for people: under examination, serving, or history. See `registry_stage`."""

PENDING, TRAINING, READY, FAILED = "pending", "training", "ready", "failed"
"""Whether a policy can serve. A job that has not made one yet is pending or training."""


class OpenEnum(StrEnum):
    """Values that one service writes. A value that a newer version added stays as it is, as a member without a name."""

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class PolicyStage(OpenEnum):
    """The state of a policy in its rollout. The coordinator releases the data of `refused`, `rolled_back` and
    `superseded` ones."""

    REGISTERED = "registered"
    REFUSED = "refused"
    CANARY = "canary"
    STABLE = "stable"
    ARCHIVED = "archived"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"


class JobState(OpenEnum):
    """The state of a training job."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""States in which a training job stays."""

_STATUS = {
    PolicyStage.REGISTERED: PENDING,
    PolicyStage.CANARY: READY,
    PolicyStage.STABLE: READY,
    PolicyStage.ARCHIVED: READY,
    PolicyStage.REFUSED: FAILED,
    PolicyStage.ROLLED_BACK: FAILED,
    PolicyStage.SUPERSEDED: FAILED,
}
_JOB_STATUS = {
    JobState.QUEUED: PENDING,
    JobState.DISPATCHED: TRAINING,
    JobState.RUNNING: TRAINING,
    JobState.FAILED: FAILED,
    JobState.CANCELLED: FAILED,
}


class PolicyVersion(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A registered policy, key `<role>.<version>` in bucket `policies`.

    Immutable but for its stage, what follows from that, and `takes_tools`.
    """

    role: Role
    """The role it belongs to."""
    version: Count
    """Number of the policy in its role, 1, 2, 3 ...; 0: calls as agents send them."""
    name: Text
    """`<role>@<version>-<first 8 of digest>`: its name in the engine, never reused."""
    digest: Sha256
    """sha256 of its manifest."""
    uri: str
    """`s3://` uri of its manifest; empty for version 0, which has none."""
    kind: Annotated[str, listed("adapter", "model", "bundle")]
    """`adapter`, `model` or `bundle`."""
    base_model: str
    """Of an adapter: its base's manifest, or a name or path. Of a model: what it was made from. Of
    a bundle: who answers, empty where it does not say."""
    created_at: datetime
    stage: PolicyStage
    """Where it is: what became of it in its rollout."""
    parent: Count | None = None
    """Version of the policy that its training continued from; of a bundle that no training made, the one with its
    weights."""
    training_job_id: Uuid | None = None
    """The job that made it."""
    dataset_digest: Sha256 | None = None
    """sha256 of the manifest of the snapshot it learned from."""
    training_samples: Count | None = None
    """Rows it learned from."""
    final_reward: float | None = None
    """Mean reward at the end of its training."""
    reason: str | None = None
    """Why it is in its stage."""
    gate: JsonObject | None = None
    """The evidence of the gates: held-out success of both policies, difference, bound."""
    algorithm: str | None = None
    """The algorithm that trained it; None if its manifest could not be read."""
    metrics: dict[str, float] | None = None
    """Measurements of its trainer at the end."""
    takes_tools: bool | None = None
    """Whether its engine's chat template shows it the tools that agents offer: as its gate saw it, and while it is
    stable as the deployer last saw it. None where that was not checked."""
    idempotency_key: Text | None = None
    """Of the request that registered the bundle: asked for again, it is this version."""
    cause: Cause | None = None
    """The training status that reported it."""

    @property
    def status(self) -> str:
        """`ready` once it has passed the gates, until it is rolled back; else `pending` or `failed`."""
        return _STATUS.get(self.stage, PENDING)


class ServedPolicy(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The members of a policy that a gateway needs to serve it."""

    version: Count
    """Number of the policy in its role."""
    name: Annotated[str, Meta(extra_json_schema={"minLength": 1})]
    """Its name in the engines."""
    digest: Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]
    """sha256 of its manifest. Not checked when it is read: in what gateways tell each other, both may be empty."""
    bundle: bool = False
    """Its manifest stands in the bucket `bundles` under its digest: what it changes of calls, and who answers them."""


class WeightStep(Value, frozen=True, kw_only=True):
    """From `at` on, trajectories that start get the canary with probability `weight` (0..1)."""

    at: datetime
    """When it begins to hold."""
    weight: Share


class CanaryRoute(Value, frozen=True, kw_only=True, omit_defaults=True):
    rollout_id: Uuid
    policy: ServedPolicy
    """The policy under test."""
    salt: Text
    """Drawn into the hash that assigns a trajectory its arm."""
    schedule: list[WeightStep]
    """Its weight over time, oldest step first; before the first it is 0."""
    lease: Count
    """Grows with every renewal; a gateway that sees no growth for 20 s serves stable."""
    centres: dict[str, Share] | None = None
    """By metric: the harm, 0..1, that the tests bet around; gateways copy it into every start."""
    latency_scale_ms: Positive | None = None
    """The latency that counts as a harm of one half; gateways copy it into every start."""


class Route(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The policies that get a role's traffic, key `<role>` in bucket `policies`; written by the deployer only."""

    role: Role
    """The role it belongs to."""
    stable: ServedPolicy | None = None
    """The policy that serves; absent while none does: requests go upstream."""
    previous: ServedPolicy | None = None
    """Stays resident in the engines, so that a rollback is one write."""
    canary: CanaryRoute | None = None
    """The policy under test; absent when there is none."""
    next_version: Ordinal = 1
    """Version of the next policy that is registered."""
    audit_hash: Sha256 | None = None
    """Hash of the role's last rollout decision."""


def registry_stage(policy: PolicyVersion, route: Route | None) -> str:
    """`production` for the policy that the route serves, `staging` for a candidate, `archived` for all others."""
    if route is not None and route.stable is not None and route.stable.version == policy.version:
        return PRODUCTION
    return STAGING if policy.stage in (PolicyStage.REGISTERED, PolicyStage.CANARY) else ARCHIVED


class TriggerNote(Value, frozen=True, kw_only=True):
    """A trigger that asked for a job, or would have while it was under way."""

    kind: Text
    """`rewarded`, `preferences`, `schedule` or `degradation`."""
    at: datetime
    why: str
    """In words, with its numbers."""


class Job(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A training job, key `<training_job_id>` in bucket `jobs`; written by the coordinator only."""

    training_job_id: Uuid
    role: Role
    """The role it belongs to."""
    algorithm: Text
    state: JobState
    priority: Annotated[str, listed("low", "normal", "high", "urgent")]
    """Jobs of a higher one are dispatched first."""
    created_at: datetime
    """When it was accepted."""
    updated_at: datetime
    """When it last changed."""
    request: TrainingRequest
    """What was asked for, with `dataset.snapshot` once it is resolved."""
    attempt: Count = 0
    """The attempt under way, or the last one; what a worker says of an earlier one does not count."""
    worker: str | None = None
    """The worker that has it."""
    instance: str | None = None
    """The process of that worker: the attempt's statuses from any other do not count."""
    pool: Role = "default"
    """The pool of workers it is dispatched to."""
    parent: str | None = None
    """Name of the policy it continues from, `<role>@<version>-<first 8 of its digest>`."""
    snapshot: SnapshotRef | None = None
    """The dataset it learns from."""
    trajectories: Count | None = None
    """Rows of that dataset."""
    heartbeat_at: datetime | None = None
    """The worker's last sign of life: it renews the attempt's lease."""
    started_at: datetime | None = None
    """When its first attempt began to run."""
    finished_at: datetime | None = None
    cancel_requested: bool = False
    """Whether its cancellation was requested."""
    cancelled_by: str | None = None
    """Who cancelled it."""
    cancel_now: bool = False
    """Its end was asked for at once, without a further checkpoint."""
    stopping: Annotated[str, listed("after_step", "now")] | None = None
    """How the worker ends it, `after_step` or `now`; None: it has not acknowledged a cancel."""
    resumed_by: str | None = None
    """Who resumed it after its end."""
    retry_at: datetime | None = None
    """When the next attempt may begin."""
    progress: Progress | None = None
    metrics: CurrentMetrics | None = None
    """At the last train step."""
    artifacts: Artifacts | None = None
    error: TrainingError | None = None
    """Why its last attempt failed."""
    findings: list[str] | None = None
    """What the chat template loses of its data, or teaches by mistake: sentences."""
    health_stop: HealthStop | None = None
    """Why it was stopped before its last train step."""
    evaluation_results: EvaluationResults | None = None
    """What it measured on what was held out."""
    resource_usage: ResourceUsage | None = None
    """What its last attempt has used so far."""
    triggers: list[TriggerNote] | None = None
    """What asked for it by itself, each kind once; None for a job that was asked for by hand."""
    unclaimed: Count = 0
    """Attempts that no worker took, or that a worker which had to stop handed back: they count against no limit."""
    forgiven: Count = 0
    """Other attempts before a person resumed the job last: they count against no limit any more."""
    dispatched_at: datetime | None = None
    """When it first got a slot: until then it waited in the queue."""
    spent: ResourceUsage | None = None
    """What its earlier attempts used."""
    rewarded: Count | None = None
    """The role's rewarded trajectories when the job was accepted: the threshold trigger counts on from here."""
    preferences: Count | None = None
    """The role's preferences when the job was accepted: the preference trigger counts on from here."""
    announced: Annotated[str, matching(r"^[0-9]+:[a-z]+$")] | None = None
    """The last published `<attempt>:<state>`: a coordinator that died before it wrote this publishes it again."""
    cause: Cause | None = None
    """The event that caused its present attempt and state: the request at first, then a worker's status."""

    @property
    def policy_status(self) -> str | None:
        """Status of the policy that this job will make; None once it has made one, which has its own status."""
        return _JOB_STATUS.get(self.state)


class KeyLimits(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The most that a key may use; a member that is absent sets no limit."""

    requests_per_minute: Ordinal | None = None
    """Requests in a minute, of one gateway process."""
    tokens_per_minute: Ordinal | None = None
    """Of prompts and answers together."""
    usd_per_day: Positive | None = None
    """Of a day in UTC."""


_OF_ROLES = r"(\*|[a-z0-9_-]{1,64}|[a-z0-9_-]{0,62}[_-]\*)"
_SCOPE = rf"^((infer|feedback):{_OF_ROLES}|(train|operate|view|annotate)(:{_OF_ROLES})?|admin)$"


class Key(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An API key, key `<key_id>` in bucket `keys`; written by the coordinator only. It stays when it is revoked."""

    key_id: Annotated[str, matching(r"^[a-z]+_[a-z0-9]{10}$")]
    """Its public name, which stands in turns, logs and metrics; never given to another key."""
    name: Annotated[str, matching(r"^[A-Za-z0-9][A-Za-z0-9 _.@/-]{0,63}$")]
    hash: Sha256
    """sha256 of the key itself, hexadecimal. The key itself is stored nowhere."""
    scopes: Annotated[tuple[Annotated[str, matching(_SCOPE)], ...], Meta(min_length=1)]
    """Such as `infer:support`, `view:acme-*`, `train`."""
    created_at: Zoned
    created_by: str
    expires_at: Zoned | None = None
    """From then on it opens nothing."""
    revoked_at: Zoned | None = None
    """When it was revoked; since then it opens nothing."""
    revoked_by: str | None = None
    limits: KeyLimits | None = None
    """The most that it may use; a member that is absent sets no limit."""


class KeyUsage(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What calls with a key through one gateway process used in one day, key `<key_id>.<process>` in `key_usage`.

    Each process writes its own; the use of a key is the sum of all.
    """

    key_id: str
    day: str
    """In UTC, such as `2026-03-01`."""
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class SealedResponse(Value, frozen=True, kw_only=True):
    """A response or conversation that a later call may continue, in bucket `responses` under a digest of its id.

    Only who has the id can find and read it: what agents send is redacted before it is written, but a history that is
    to be continued must be whole.
    """

    sealed: str
    """The history, packed and encrypted, in base64."""


class WatchedMetric(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A number that every reward of a role has, watched for a change of its level."""

    metric: Text
    """`reward`, `length`, `calls`, or a component: its score less the reward that the others give."""
    trajectories: Count
    """How many are compared with one another now."""
    mean: float | None = None
    """Of these."""
    evidence: Annotated[float, Meta(ge=0)] = 0.0
    """Of a change; from 1 on it is an alert."""
    alert: Alert | None = None
    """The newest one; it holds unless it is `cleared`."""


class RewardDrift(Value, frozen=True, kw_only=True):
    """What is watched in the rewards of one role and function, key `drift.<role>.<function>` in bucket `baselines`."""

    role: Role
    function: Text
    """The reward function's name and version."""
    metrics: list[WatchedMetric]


OTHER_ROLES = "OTHERS"
"""Key in the bucket `held_out` of the tasks of all roles that have none of their own; no role's name has capitals."""


RELEASED, BANNED = "released", "banned"
"""What a person decides about a rater's opinions: they train, or they do not."""


class RaterDecision(Value, frozen=True, kw_only=True):
    """A person's decision about a rater."""

    decision: Annotated[str, listed(RELEASED, BANNED)]
    by: Text
    at: Zoned


class RaterDecisions(Value, frozen=True, kw_only=True):
    """What people decided about the raters of a role."""

    raters: dict[str, RaterDecision]
    """By rater: its name, which stands for every source, or `SOURCE/NAME`."""


class HeldOutTasks(Value, frozen=True, kw_only=True):
    """The tasks by which the gate compares candidates with stable: nothing else may learn from or choose by them."""

    file: Text
    """Where the deployer reads them: paths and uris."""
    tasks: list[Sha256]
    """By digest (`evaluation.task_files.task_digest`)."""
