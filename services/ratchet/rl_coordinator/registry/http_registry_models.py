"""What the HTTP API says about policies: the registry of models, and where one of them comes from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from ratchet.contract.state import Job, PolicyVersion, Route, registry_stage

Stage = Literal["staging", "production", "archived"]
Status = Literal["pending", "training", "ready", "failed"]


class ModelOut(BaseModel):
    """A registered policy."""

    role: str
    version: int
    name: str
    stage: Stage = Field(description="production: serves the role. staging: may come to. archived: neither.")
    status: Status = Field(description="ready: it may be asked for by name. pending: not checked yet.")
    state: str = Field(description="registered, refused, canary, stable, archived or rolled_back.")
    digest: str
    uri: str
    kind: str
    base_model: str
    created_at: datetime
    algorithm: str | None = None
    parent: int | None = None
    training_job_id: str | None = None
    dataset_digest: str | None = None
    training_samples: int | None = None
    final_reward: float | None = None
    metrics: dict[str, float] | None = Field(None, description="What its trainer measured at the end.")
    reason: str | None = None
    gate: dict[str, Any] | None = Field(None, description="By gate: outcome, reason, evidence.")
    event_id: str | None = Field(None, description="The completed status that announced it.")


class ModelsOut(BaseModel):
    models: list[ModelOut]


class OutcomeTimesOut(BaseModel):
    """How long outcomes of one policy took, from the start of a trajectory to its first known outcome."""

    role: str
    version: int
    since: datetime = Field(description="Trajectories that started between then ...")
    until: datetime = Field(description="... and then: each has had `within_s` to come to its outcome.")
    within_s: float
    seconds: list[float] = Field(description="Of those known within `within_s`, newest first.")


class TrainingOut(BaseModel):
    """A job that has not made a policy (yet)."""

    training_job_id: str
    algorithm: str
    status: Status
    state: str
    created_at: datetime
    error: str | None = None


class RoleModelsOut(BaseModel):
    """Everything about one role's policies."""

    role: str
    production: str | None = Field(None, description="Name of the policy that serves the role.")
    canary: str | None = None
    previous: str | None = Field(None, description="Stays loaded, so that a rollback is one write.")
    versions: list[ModelOut]
    training: list[TrainingOut] = Field(description="Jobs without a policy, newest first; at most 20.")


class JobPart(BaseModel):
    """The job that made a policy."""

    training_job_id: str
    algorithm: str
    state: str
    requester: str
    trigger: str
    created_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int | None = None
    from_history: bool = Field(default=False, description="The job itself is pruned; this is what the history says.")
    events: dict[str, str] = Field(description="Event ids: request, dispatch, completed.")


class SnapshotPart(BaseModel):
    """The data that it learned from."""

    uri: str
    digest: str
    format: str
    rows: int
    created_at: datetime | None = None
    reward_function: str | None = None
    reward_transform: str | None = None
    filters: dict[str, Any] = Field(default_factory=dict[str, Any])
    left_out: dict[str, int] = Field(default_factory=dict[str, int])
    parent_policy: str | None = None
    raters: dict[str, int] = Field(default_factory=dict[str, int], description="Preferences by rater.")


class RewardPart(BaseModel):
    """What a trajectory was worth at last."""

    event_id: str
    total: float
    function: str
    revision: int
    at: datetime


class TrajectoryPart(BaseModel):
    trajectory_id: str
    event_id: str | None = Field(None, description="None: it is not stored any more.")
    task: str | None = None
    source: str | None = None
    outcome: str | None = None
    policy_version: int | None = None
    ended_at: datetime | None = None
    reward: RewardPart | None = None


class PreferencePart(BaseModel):
    preference_id: str
    event_id: str | None = Field(None, description="None: it is not stored any more.")
    source: str | None = None
    rater: str | None = None
    confidence: float | None = None
    domain: str | None = None


class TrajectoriesPage(BaseModel):
    total: int
    offset: int
    items: list[TrajectoryPart]


class PreferencesPage(BaseModel):
    total: int
    offset: int
    items: list[PreferencePart]


class RewardsPart(BaseModel):
    """Rewards by function, over the trajectories that were counted."""

    function: str
    trajectories: int
    mean: float
    newest_revision: int


class RaterPart(BaseModel):
    """What somebody said about the trajectories that were counted."""

    rater: str | None = Field(None, description="None: the source did not name one.")
    source: str | None = None
    kind: str
    count: int


class EventPart(BaseModel):
    """What was told about the policy, and which event that answered."""

    event_id: str
    kind: str = Field(description="model.deployed or model.rollout")
    what: str | None = Field(None, description="The policy's new state, or the verdict.")
    at: datetime
    causation_id: str | None = None


class LineageOut(BaseModel):
    """One policy back to the data and the people behind it."""

    policy: ModelOut
    job: JobPart | None = None
    snapshot: SnapshotPart | None = None
    trajectories: TrajectoriesPage
    preferences: PreferencesPage
    rewards: list[RewardsPart] = Field(description="At most 50 functions.")
    feedback: list[RaterPart] = Field(description="Most frequent first, at most 100.")
    told: list[EventPart] = Field(description="What the deployer told of it, oldest first, at most 200.")
    counted: int = Field(description="Trajectories that rewards and feedback were counted over: at most 10,000.")
    missing: list[str] = Field(description="What could not be found any more, one sentence each.")
    parent: LineageOut | None = Field(None, description="The same of the policy it continues, when asked for.")


def model_out(policy: PolicyVersion, route: Route | None) -> ModelOut:
    """A policy for people and programs outside."""
    told = msgspec.to_builtins(policy)
    return ModelOut.model_validate(
        {
            **told,
            "stage": registry_stage(policy, route),
            "status": policy.status,
            "state": policy.stage,
            "event_id": policy.cause.event_id if policy.cause else None,
        }
    )


def role_models_out(
    role: str, route: Route | None, versions: Mapping[int, PolicyVersion], jobs: list[Job]
) -> RoleModelsOut:
    """A role's registry; `jobs`: its own, newest first."""
    made = {policy.training_job_id for policy in versions.values()}
    unmade = [job for job in jobs if job.policy_status is not None and job.training_job_id not in made]
    return RoleModelsOut(
        role=role,
        production=route.stable.name if route and route.stable else None,
        canary=route.canary.policy.name if route and route.canary else None,
        previous=route.previous.name if route and route.previous else None,
        versions=[model_out(versions[number], route) for number in sorted(versions)],
        training=[_training_out(job) for job in unmade[:20]],
    )


def _training_out(job: Job) -> TrainingOut:
    return TrainingOut.model_validate(
        {
            "training_job_id": job.training_job_id,
            "algorithm": job.algorithm,
            "status": job.policy_status,
            "state": job.state,
            "created_at": job.created_at,
            "error": job.error.message if job.error else None,
        }
    )
