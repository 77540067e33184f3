"""Messages of the deployer: the policy that serves, every stage of a rollout and its evidence."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from ratchet.bus.message import JsonObject, Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.values import Amount, Count, Ordinal, Percentage, Role, Sha256, Share, Uri, Uuid, listed


class ModelInfo(Value, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str
    base_model: str
    """What it was trained from."""
    checkpoint_path: str
    training_date: datetime | None = None
    training_samples: Ordinal | None = None
    """Number of trajectories (or pairs) trained on."""
    final_reward: float | None = None
    """Mean reward at the end of training."""


class RampStep(Value, frozen=True, kw_only=True):
    timestamp: datetime
    percentage: Percentage
    """Share of the traffic, in percent."""


class DeploymentConfig(Value, frozen=True, kw_only=True, omit_defaults=True):
    serving_platform: Annotated[str, listed("tensorzero", "vllm", "tgi", "ollama", "engine_local")]
    """Which engine serves it."""
    endpoint: Uri
    model_name: str
    rollout_strategy: Annotated[str, listed("canary", "blue_green", "immediate")]
    """How traffic moves to it."""
    traffic_percentage: Percentage | None = None
    """Share of the role's traffic, in percent."""
    ramp_schedule: list[RampStep] | None = None


class ValidationResults(Value, frozen=True, kw_only=True, omit_defaults=True):
    benchmark_passed: bool
    """Held-out tasks passed."""
    safety_checks_passed: bool
    """Whether safety suites were compared and passed; false when none ran."""
    performance_regression: bool
    """It is worse than the policy before; false also where nothing was compared (`not_compared`)."""
    not_compared: (
        list[Annotated[str, listed("benchmark_passed", "safety_checks_passed", "performance_regression")]] | None
    ) = None
    """Which of `benchmark_passed`, `safety_checks_passed` and `performance_regression` nothing was compared for."""
    checks: dict[str, Annotated[str, listed("passed", "failed", "needs_approval", "waived", "not_run")]] | None = None
    """By name: `passed`, `failed`, `needs_approval`, `waived` or `not_run`."""
    benchmark_scores: dict[str, float] | None = None


class DeploymentMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    deployed_by: str | None = None
    approval_status: Annotated[str, listed("automated", "manual_approved", "emergency_override")] | None = None
    """`automated`, `manual_approved` or `emergency_override`."""
    previous_model: str | None = None
    """Name of the policy that served before."""


class ModelDeployed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A policy changed its state: registered, canary, promoted, rolled_back, aborted or superseded."""

    TOPIC: ClassVar[str] = "agent.rl.model.deployed.v1"

    deployment_id: Uuid
    """Id of the deployment; every change of one deployment shares it."""
    training_job_id: Uuid
    """The job that made the policy."""
    timestamp: datetime
    model_info: ModelInfo
    deployment_config: DeploymentConfig
    validation_results: ValidationResults
    """What the gates found."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    state: Annotated[str, listed("registered", "canary", "promoted", "rolled_back", "aborted", "superseded")] | None = (
        None
    )
    """The policy's state after the change."""
    policy_version: Count | None = None
    """Version number of the policy within its role."""
    adapter_digest: Sha256 | None = None
    """sha256 of the policy's manifest."""
    reason: str | None = None
    evidence: JsonObject | None = None
    """Numbers behind the reason."""
    metadata: DeploymentMetadata | None = None

    @property
    def event_id(self) -> str:
        percentage = self.deployment_config.traffic_percentage
        return named_id(self.TOPIC, self.deployment_id, self.state, percentage)


class RolloutStage(Value, frozen=True, kw_only=True):
    index: Count
    """Number of the stage, from 0."""
    weight: Share
    """Share of new trajectories that get the candidate, as a fraction."""


class ModelRollout(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One decision of a rollout with its evidence: a stage change, a hold, a verdict, an operator's act."""

    TOPIC: ClassVar[str] = "agent.rl.model.rollout.v1"

    rollout_id: Uuid
    sequence: Count
    """0, 1, 2 ... within the rollout: the n-th decision."""
    timestamp: datetime
    role: Role
    """The role whose traffic moves."""
    to_version: Count
    """Version of the candidate."""
    stage: RolloutStage
    """Where the rollout is."""
    verdict: Annotated[
        str,
        listed(
            "start",
            "advance",
            "hold",
            "promote",
            "roll_back",
            "refuse",
            "pause",
            "resume",
            "abort",
            "suspend",
            "withdraw",
            "supersede",
            "revert",
        ),
    ]
    """`start`, `advance`, `hold`, `promote`, `roll_back`, `refuse`, `pause`, `resume`, `abort`, `suspend`, `withdraw`,
    `supersede` or `revert`."""
    reason: str
    actor: str
    """Service or person that decided."""
    from_version: Count | None = None
    """Version that serves; absent for the first policy of a role."""
    e_values: dict[str, dict[str, Amount]] | None = None
    """By test (`rollback`, `promotion`), then by metric (`failure`, `reward`, `latency`, `cost`, `over_cap`,
    `combined`)."""
    samples: dict[str, Count] | None = None
    """Trajectories by arm."""
    margin: Amount | None = None
    """By how much the candidate may be worse and still count as not worse."""
    salt: str | None = None
    """Salt of the arm's hash; new for every rollout."""
    evidence: JsonObject | None = None
    """Numbers behind the reason."""
    previous_hash: Sha256 | None = None
    """Hash of the role's decision before this one."""
    hash: Sha256 | None = None
    """sha256 of this decision and `previous_hash`: the audit chain of the role."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.rollout_id, self.sequence)
