"""The present state: the values in the NATS key-value buckets, which change only by compare-and-set."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ratchet.bus.message import Cause, JsonObject, Value
from ratchet.contract.training import (
    Artifacts,
    CurrentMetrics,
    Progress,
    SnapshotRef,
    TrainingError,
    TrainingRequest,
)

POLICIES, ROLLOUTS, ROLLOUT_CHUNKS, JOBS, BASELINES = "policies", "rollouts", "rollout_chunks", "jobs", "baselines"
"""Bucket names."""

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
    """A registered policy, key `<role>.<version>` in bucket `policies`. Immutable but for `stage`."""

    role: str
    version: int
    name: str
    """`<role>@<version>-<first 8 of digest>`: its name in the engine, never reused."""
    digest: str
    """sha256 of its manifest."""
    uri: str
    """`s3://` uri of its manifest."""
    kind: str
    """`adapter` or `model`."""
    base_model: str
    created_at: datetime
    stage: PolicyStage
    parent: int | None = None
    training_job_id: str | None = None
    dataset_digest: str | None = None
    training_samples: int | None = None
    final_reward: float | None = None
    reason: str | None = None
    gate: JsonObject | None = None
    """The evidence of the gates: held-out success of both policies, difference, bound."""
    algorithm: str | None = None
    """The algorithm that trained it; None if its manifest could not be read."""
    metrics: dict[str, float] | None = None
    """Measurements of its trainer at the end."""
    cause: Cause | None = None
    """The training status that reported it."""

    @property
    def status(self) -> str:
        """`ready` once it has passed the gates, until it is rolled back; else `pending` or `failed`."""
        return _STATUS.get(self.stage, PENDING)


class ServedPolicy(Value, frozen=True, kw_only=True):
    """The members of a policy that a gateway needs to serve it."""

    version: int
    name: str
    digest: str


class WeightStep(Value, frozen=True, kw_only=True):
    """From `at` on, trajectories that start get the canary with probability `weight` (0..1)."""

    at: datetime
    weight: float


class CanaryRoute(Value, frozen=True, kw_only=True, omit_defaults=True):
    rollout_id: str
    policy: ServedPolicy
    salt: str
    schedule: list[WeightStep]
    lease: int
    """Grows with every renewal; a gateway that sees no growth for 20 s serves stable."""
    centres: dict[str, float] | None = None
    """By metric: the harm, 0..1, that the tests bet around; gateways copy it into every start."""
    latency_scale_ms: float | None = None
    """The latency that counts as a harm of one half; gateways copy it into every start."""


class Route(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The policies that get a role's traffic, key `<role>` in bucket `policies`; written by the deployer only."""

    role: str
    stable: ServedPolicy | None = None
    previous: ServedPolicy | None = None
    """Stays resident in the engines, so that a rollback is one write."""
    canary: CanaryRoute | None = None
    next_version: int = 1
    audit_hash: str | None = None
    """Hash of the role's last rollout decision."""


def registry_stage(policy: PolicyVersion, route: Route | None) -> str:
    """`production` for the policy that the route serves, `staging` for a candidate, `archived` for all others."""
    if route is not None and route.stable is not None and route.stable.version == policy.version:
        return PRODUCTION
    return STAGING if policy.stage in (PolicyStage.REGISTERED, PolicyStage.CANARY) else ARCHIVED


class Job(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A training job, key `<training_job_id>` in bucket `jobs`; written by the coordinator only."""

    training_job_id: str
    role: str
    algorithm: str
    state: JobState
    priority: str
    created_at: datetime
    updated_at: datetime
    request: TrainingRequest
    attempt: int = 0
    worker: str | None = None
    pool: str = "default"
    parent: str | None = None
    snapshot: SnapshotRef | None = None
    trajectories: int | None = None
    heartbeat_at: datetime | None = None
    """The worker's last sign of life: it renews the attempt's lease."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested: bool = False
    retry_at: datetime | None = None
    progress: Progress | None = None
    metrics: CurrentMetrics | None = None
    artifacts: Artifacts | None = None
    error: TrainingError | None = None
    rewarded: int | None = None
    """The role's rewarded trajectories when the job was accepted: the threshold trigger counts on from here."""
    preferences: int | None = None
    """The role's preferences when the job was accepted: the preference trigger counts on from here."""
    announced: str | None = None
    """The last published `<attempt>:<state>`: a coordinator that died before it wrote this publishes it again."""
    cause: Cause | None = None
    """The event that caused its present attempt and state: the request at first, then a worker's status."""

    @property
    def policy_status(self) -> str | None:
        """Status of the policy that this job will make; None once it has made one, which has its own status."""
        return _JOB_STATUS.get(self.state)
