"""Messages of the deployer: the policy that serves, every stage of a rollout and its evidence."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus.message import JsonObject, Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE


class ModelInfo(Value, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    base_model: str
    checkpoint_path: str
    training_date: datetime | None = None
    training_samples: int | None = None
    final_reward: float | None = None


class RampStep(Value, frozen=True, kw_only=True):
    timestamp: datetime
    percentage: float


class DeploymentConfig(Value, frozen=True, kw_only=True, omit_defaults=True):
    serving_platform: str
    endpoint: str
    model_name: str
    rollout_strategy: str
    traffic_percentage: float | None = None
    ramp_schedule: list[RampStep] | None = None


class ValidationResults(Value, frozen=True, kw_only=True, omit_defaults=True):
    benchmark_passed: bool
    safety_checks_passed: bool
    """Whether a safety suite ran and passed; false when none ran."""
    performance_regression: bool
    """It is worse than the policy before; false also where nothing was compared (`not_compared`)."""
    not_compared: list[str] | None = None
    """Which of `benchmark_passed`, `safety_checks_passed` and `performance_regression` nothing was compared for."""
    checks: dict[str, str] | None = None
    """By name: `passed`, `failed`, `needs_approval`, `waived` or `not_run`."""
    human_eval_score: float | None = None
    benchmark_scores: dict[str, float] | None = None


class DeploymentMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    deployed_by: str | None = None
    approval_status: str | None = None
    """`automated`, `manual_approved` or `emergency_override`."""
    previous_model: str | None = None


class ModelDeployed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A policy changed its state: registered, canary, promoted, rolled_back, aborted or superseded."""

    TOPIC: ClassVar[str] = "agent.rl.model.deployed.v1"

    deployment_id: str
    training_job_id: str
    timestamp: datetime
    model_info: ModelInfo
    deployment_config: DeploymentConfig
    validation_results: ValidationResults
    role: str = DEFAULT_ROLE
    state: str | None = None
    policy_version: int | None = None
    adapter_digest: str | None = None
    reason: str | None = None
    evidence: JsonObject | None = None
    metadata: DeploymentMetadata | None = None

    @property
    def event_id(self) -> str:
        percentage = self.deployment_config.traffic_percentage
        return named_id(self.TOPIC, self.deployment_id, self.state, percentage)


class RolloutStage(Value, frozen=True, kw_only=True):
    index: int
    weight: float


class ModelRollout(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One decision of a rollout with its evidence: a stage change, a hold, a verdict, an operator's act."""

    TOPIC: ClassVar[str] = "agent.rl.model.rollout.v1"

    rollout_id: str
    sequence: int
    """0, 1, 2 ... within the rollout: the n-th decision."""
    timestamp: datetime
    role: str
    to_version: int
    stage: RolloutStage
    verdict: str
    """`start`, `advance`, `hold`, `promote`, `roll_back`, `refuse`, `pause`, `resume`, `abort`, `supersede` or
    `revert`."""
    reason: str
    actor: str
    from_version: int | None = None
    e_values: dict[str, dict[str, float]] | None = None
    """By test (`rollback`, `promotion`), then by metric (`failure`, `reward`, `latency`, `combined`)."""
    samples: dict[str, int] | None = None
    """Trajectories by arm."""
    margin: float | None = None
    salt: str | None = None
    evidence: JsonObject | None = None
    previous_hash: str | None = None
    hash: str | None = None
    """sha256 of this decision and `previous_hash`: the audit chain of the role."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.rollout_id, self.sequence)
