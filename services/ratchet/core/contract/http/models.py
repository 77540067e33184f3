"""Policies over HTTP: the registry of models, the lineage of one of them, and prompts to try it on."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import listed


class ModelOut(Answer, frozen=True, kw_only=True):
    """A registered policy."""

    role: str
    version: int
    name: str
    stage: Annotated[str, listed("staging", "production", "archived")]
    """production: serves the role. staging: may come to. archived: neither."""
    status: Annotated[str, listed("pending", "training", "ready", "failed")]
    """ready: it may be asked for by name. pending: not checked yet."""
    state: str
    """registered, refused, canary, stable, archived, rolled_back or superseded."""
    digest: str
    uri: str
    kind: str
    base_model: str
    created_at: Instant
    algorithm: str | None = None
    parent: int | None = None
    training_job_id: str | None = None
    dataset_digest: str | None = None
    training_samples: int | None = None
    final_reward: float | None = None
    metrics: dict[str, float] | None = None
    """Measurements of its trainer at the end."""
    reason: str | None = None
    gate: JsonObject | None = None
    """By gate: outcome, reason, evidence."""
    takes_tools: bool | None = None
    """Whether its engine's chat template shows it the tools that agents offer; null where that was not checked."""
    event_id: str | None = None
    """The completed status that reported it."""


class ModelsOut(Answer, frozen=True, kw_only=True):
    """Registered policies by role and version."""

    models: list[ModelOut]


class OutcomeTimesOut(Answer, frozen=True, kw_only=True):
    """How long outcomes of one policy took, from the start of a trajectory to its first known outcome."""

    role: str
    version: int
    since: Instant
    """Trajectories that started between then ..."""
    until: Instant
    """... and then: each has had `within_s` to come to its outcome."""
    within_s: float
    seconds: list[float]
    """Of those known within `within_s`, newest first."""


class TrajectoryCostsOut(Answer, frozen=True, kw_only=True):
    """What trajectories of one policy cost, with all their calls."""

    role: str
    version: int
    since: Instant
    """Trajectories that started between then ..."""
    until: Instant
    """... and then."""
    costs_usd: list[float | None]
    """Newest first; null where a call that did not fail has no price."""


class TrainingOut(Answer, frozen=True, kw_only=True):
    """A job that has not made a policy (yet)."""

    training_job_id: str
    algorithm: str
    status: Annotated[str, listed("pending", "training", "ready", "failed")]
    state: str
    created_at: Instant
    error: str | None = None


class RoleModelsOut(Answer, frozen=True, kw_only=True):
    """Everything about one role's policies."""

    role: str
    production: str | None = None
    """Name of the policy that serves the role."""
    canary: str | None = None
    previous: str | None = None
    """Stays loaded, so that a rollback is one write."""
    versions: list[ModelOut]
    training: list[TrainingOut]
    """Jobs without a policy, newest first; at most 20."""


class JobPart(Answer, frozen=True, kw_only=True):
    """The job that made a policy."""

    training_job_id: str
    algorithm: str
    state: str
    requester: str
    trigger_reason: str
    created_at: Instant | None = None
    finished_at: Instant | None = None
    attempt: int | None = None
    from_history: bool = False
    """The job itself is pruned; this comes from the history."""
    events: dict[str, str]
    """Event ids: request, dispatch, completed."""


class SnapshotPart(Answer, frozen=True, kw_only=True):
    """The data that it learned from."""

    uri: str
    digest: str
    format: str
    rows: int
    created_at: Instant | None = None
    reward_function: str | None = None
    reward_transform: str | None = None
    filters: JsonObject = msgspec.field(default_factory=dict[str, object])
    left_out: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    parent_policy: str | None = None
    raters: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Preferences by rater."""


class RewardPart(Answer, frozen=True, kw_only=True):
    """The newest reward of a trajectory."""

    event_id: str
    total: float
    function: str
    revision: int
    at: Instant


class TrajectoryPart(Answer, frozen=True, kw_only=True):
    """A trajectory that was learned from."""

    trajectory_id: str
    event_id: str | None = None
    """Null: it is not stored any more."""
    task: str | None = None
    source: str | None = None
    outcome: str | None = None
    policy_version: int | None = None
    ended_at: Instant | None = None
    reward: RewardPart | None = None


class PreferencePart(Answer, frozen=True, kw_only=True):
    """A preference that was learned from."""

    preference_id: str
    event_id: str | None = None
    """Null: it is not stored any more."""
    source: str | None = None
    rater: str | None = None
    confidence: float | None = None
    domain: str | None = None


class TrajectoriesPage(Answer, frozen=True, kw_only=True):
    """Some of the trajectories, in the snapshot's order."""

    total: int
    offset: int
    items: list[TrajectoryPart]


class PreferencesPage(Answer, frozen=True, kw_only=True):
    """Some of the preferences, in the snapshot's order."""

    total: int
    offset: int
    items: list[PreferencePart]


class RewardsPart(Answer, frozen=True, kw_only=True):
    """Rewards by function, over the trajectories that were counted."""

    function: str
    trajectories: int
    mean: float
    newest_revision: int


class RaterPart(Answer, frozen=True, kw_only=True):
    """The feedback of one rater on the trajectories that were counted."""

    rater: str | None = None
    """Null: the source did not name one."""
    source: str | None = None
    kind: str
    count: int


class EventPart(Answer, frozen=True, kw_only=True):
    """One announcement about the policy, and the event that caused it."""

    event_id: str
    kind: str
    """model.deployed or model.rollout"""
    what: str | None = None
    """The policy's new state, or the verdict."""
    at: Instant
    causation_id: str | None = None


class LineageOut(Answer, frozen=True, kw_only=True):
    """One policy back to the data and the people behind it."""

    policy: ModelOut
    job: JobPart | None = None
    snapshot: SnapshotPart | None = None
    trajectories: TrajectoriesPage
    preferences: PreferencesPage
    rewards: list[RewardsPart]
    """Those that were stored when the snapshot was made; at most 50 functions."""
    feedback: list[RaterPart]
    """Given before the snapshot was made; most frequent first, at most 100."""
    announcements: list[EventPart]
    """The deployer's announcements about it, oldest first, at most 200."""
    counted: int
    """Trajectories that rewards and feedback were counted over: at most 10,000."""
    missing: list[str]
    """Parts that are not kept any more, one sentence each."""
    parent: LineageOut | None = None
    """The same of the policy it continues, when asked for."""


class ReplayPromptOut(Answer, frozen=True, kw_only=True):
    """The prompt of one call, as it is stored: redacted."""

    turn_id: str
    """The call of the prompt."""
    trajectory_id: str
    task: str
    """Group key, or task id."""
    at: Instant
    messages: list[JsonObject]
    tools: list[JsonObject]
    sampling: JsonObject
    """How the logged answer was sampled."""
    metadata: JsonObject = msgspec.field(default_factory=dict[str, Any])
    """Of the request: instructions may name its members."""


class ReplayPromptsOut(Answer, frozen=True, kw_only=True):
    """Prompts for one candidate, newest first, one of each task."""

    role: str
    version: int
    since: Instant
    """The time of the candidate's snapshot: prompts are newer."""
    lineage: list[int]
    """The candidate and its ancestors; prompts of their groups are left out."""
    prompts: list[ReplayPromptOut]
    left_out: dict[str, int]
    """Trajectories that were read and not taken, by reason."""


class ReplayRequestsOut(Answer, frozen=True, kw_only=True):
    """What agents asked for lately, newest first, one request of each trajectory."""

    role: str
    since: Instant
    """The trajectories were stored after that."""
    requests: list[ReplayPromptOut]
    left_out: dict[str, int]
    """Trajectories that were read and not taken, by reason."""
