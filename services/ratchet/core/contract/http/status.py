"""The state of training over HTTP: jobs and learning from preferences; and the upkeep of the object store."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import listed


class SlotsOut(Answer, frozen=True, kw_only=True):
    """How many jobs a pool of workers runs at a time."""

    used: int
    total: int


class FiredOut(Answer, frozen=True, kw_only=True):
    """When and why a trigger fired, and the job that came of it or was under way."""

    at: Instant
    why: str
    job: str


class TriggerOut(Answer, frozen=True, kw_only=True):
    """Something that starts trainings of a role by itself."""

    kind: str
    """`rewarded`, `preferences`, `schedule` or `degradation`."""
    progress: int | None = None
    """What it counted since the last training."""
    target: int | None = None
    """At this number it fires."""
    is_due: bool = False
    """It fires as soon as all is stored, or is noted at the training that runs."""
    next_at: Instant | None = None
    """The next time of the schedule."""
    rests_until: Instant | None = None
    """The end of its cooldown."""
    state: str | None = None
    """What it last saw, in words."""
    refused: str | None = None
    """It fired, and no training can start: why not."""
    last: FiredOut | None = None
    """Of the jobs that are kept."""


class RoleOut(Answer, frozen=True, kw_only=True):
    """The state of a role."""

    stable: str | None = None
    """Name of the policy that serves the role."""
    canary: str | None = None
    rewarded: int
    """Trajectories that were ever rewarded."""
    since_last_training: int
    threshold: int | None = None
    """New rewarded trajectories that start a training; null: by hand."""
    last_job: str | None = None
    triggers: list[TriggerOut] = msgspec.field(default_factory=list[TriggerOut])
    """Where each trigger of the role stands."""


class ConfigOut(Answer, frozen=True, kw_only=True):
    """How much data trainings take here, see the coordinator's settings."""

    history_limit: int
    """Rows of a snapshot at most."""
    minimum_rows: int
    """Rows of a job that learns from rewards, pairs or thumbs."""
    minimum_pairs: int
    """Pairs of a job that learns from them, where its request names no number."""
    human_share: float
    """The least share of pairs of people, where its request names none."""


class StatusOut(Answer, frozen=True, kw_only=True):
    """The whole of training at a glance."""

    training_enabled: bool
    algorithms: list[str]
    jobs: dict[str, int]
    """Jobs by state."""
    slots: dict[str, SlotsOut]
    longest_wait_s: float
    """Age of the oldest job that waits for a slot, 0 when none does."""
    roles: dict[str, RoleOut]
    total_models: int = 0
    """Registered policies of every kind: those that `GET /v1/models` lists."""
    total_adapters: int = 0
    """Those of kind `adapter`."""
    adapter_status: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """By role: `pending`, `training`, `ready` or `failed`, by its newest adapter; without one, by its newest job."""
    config: ConfigOut | None = None


class JobBrief(Answer, frozen=True, kw_only=True):
    """A job in one line."""

    training_job_id: str
    role: str
    algorithm: str
    state: str
    created_at: Instant
    percent_complete: float | None = None
    eta_s: float | None = None
    loss: float | None = None
    reward_mean: float | None = None
    finished_at: Instant | None = None
    error: str | None = None


class TrainingStatusOut(Answer, frozen=True, kw_only=True):
    """Running and waiting jobs, and how the last ones ended."""

    training_enabled: bool
    algorithms: list[str]
    slots: dict[str, SlotsOut]
    jobs: dict[str, int]
    """Jobs that are kept, by state."""
    active: list[JobBrief]
    """Dispatched or running."""
    waiting: list[JobBrief]
    """Queued, in the order in which they will be served; at most 100."""
    longest_wait_s: float
    last: dict[str, JobBrief]
    """By role: its newest job that has ended."""


class DpoRoleOut(Answer, frozen=True, kw_only=True):
    """The preferences of a role."""

    pairs: dict[str, int]
    """Stored preferences by source."""
    total: int
    since_last_dpo: int
    """Preferences that came since the last job that learns from pairs."""
    threshold: int | None = None
    """New preferences that start a training; null: by hand only."""
    would_fire: bool
    """Whether there is enough for the trigger, which fires once all is stored."""
    why: str = ""
    """Why it would fire, or why not."""
    last_job: JobBrief | None = None
    newest_policy: str | None = None
    """The newest ready policy that learned from pairs."""


class DpoStatusOut(Answer, frozen=True, kw_only=True):
    """The preferences of every role."""

    roles: dict[str, DpoRoleOut]


class HealthOut(Answer, frozen=True, kw_only=True):
    """Whether everything that training needs answers."""

    status: Annotated[str, listed("ok", "degraded")]
    reasons: dict[str, str]
    """By check: why it does not."""


class SweptOut(Answer, frozen=True, kw_only=True):
    """Objects, and their bytes together."""

    objects: int
    bytes: int


class StorageOut(Answer, frozen=True, kw_only=True):
    """What a sweep of the object store did, or would do."""

    dry_run: bool
    """Nothing was changed."""
    objects: int
    """All that there are, without those that were set aside."""
    bytes: int
    set_aside: dict[str, SweptOut]
    """By reason: `superseded_checkpoint`, `expired`, `orphan`. While they are kept, a reader takes them back."""
    taken_back: int
    """Set aside earlier, and referred to again."""
    removed: SweptOut
    """Set aside long enough: they are gone for good."""
