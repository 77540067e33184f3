"""Rollouts over HTTP: the deployer's answers, and the orders of operators."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.values import Text, listed

Actor = Annotated[str, msgspec.Meta(max_length=200)]
Reason = Annotated[str, msgspec.Meta(max_length=10_000)]
"""Both stand in the record and in every announcement of a decision, which must fit the broker's messages together."""


class ActIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The actor and the reason of an act: both are part of the audit log."""

    actor: Actor
    reason: Reason
    rollout_id: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """The rollout that the act is meant for: 409 when a newer one has taken its place. Absent: the newest one."""
    dry_run: bool = False
    """Answer with the rollout as the act would leave it, or the refusal, and change nothing."""


class PromoteIn(ActIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A promotion."""

    override: bool = False
    """Past an undecided canary; recorded as emergency_override."""


class StartIn(ActIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version to roll out, and the way."""

    version: Annotated[int, msgspec.Meta(ge=0)]
    override: bool = False
    """Waives the gates; recorded as emergency_override."""
    strategy: Literal["canary", "blue_green", "immediate", "auto"] | None = None
    """How traffic moves once the gates are passed; immediate takes override. Absent: the installation's setting."""


class BundleIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bundle that shall become the role's next policy."""

    bundle: Bundle
    actor: Actor
    reason: Reason
    idempotency_key: Text | None = None
    """The same key twice is one version, whatever became of it."""
    dry_run: bool = False
    """Answer as if it were registered, or refuse it, and change nothing."""


class RemoveIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who removes a role, and why."""

    actor: Actor
    reason: Reason
    dry_run: bool = False
    """Answer with what would go, or the refusal, and change nothing."""


class BundleOut(Answer, frozen=True, kw_only=True):
    """A policy, and what it changes of calls."""

    policy: PolicyVersion
    bundle: Bundle
    """Of an adapter or a model: nothing but this `model`; of version 0: nothing."""
    new: bool
    """It was registered by this request: no other one that may still serve changes the same."""
    warning: str | None = None
    """That the role's name may be mistyped: it has no policy, and no agent has called it."""


class GateOut(Answer, frozen=True, kw_only=True):
    """The result of one gate for a candidate."""

    gate: str
    outcome: Annotated[str, listed("passed", "failed", "needs_approval", "waived", "not_run")]
    reason: str
    evidence: JsonObject


class ForecastOut(Answer, frozen=True, kw_only=True):
    """The expected duration of a rollout, for a policy that equals stable."""

    trajectories_per_day: float
    """At the rate of the last day, or of a shorter time: `seen_in_s`."""
    subjects_per_day: float
    """Users, else sessions, else trajectories that start in a day: each is one unit of evidence."""
    seen_in_s: float
    expected_days: float
    expected_days_by_stage: list[float]


class Horizon(Value, frozen=True, kw_only=True, omit_defaults=True):
    """How long a trajectory may take until its outcome counts as missing; frozen when the rollout starts."""

    seconds: float
    basis: str
    """Its origin, in words."""
    outcomes: int = 0
    """How many of stable's outcomes it was measured on; 0: it is the setting."""
    quantile_s: float | None = None
    """The time within which .99 of them were known."""


class CostCap(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the cost of trajectories is compared, and up to what cap; frozen when the rollout starts."""

    cap_usd: float | None = None
    """A trajectory that costs so much, or more, does a harm of 1; absent: cost is not compared."""
    basis: str
    """Where the cap comes from, or why cost is not compared, in words."""
    trajectories: int = 0
    """How many of stable's trajectories of the last week had a price."""
    quantile_usd: float | None = None
    """What .99 of them cost at most."""
    mean_usd: float | None = None
    growth: float | None = None
    """Of the logarithm of the promotion e-value by cost, for each weighted trajectory, if the canary costs the same."""
    more_evidence: float | None = None
    """How much more evidence a rollback by one of the other metrics needs than without cost: .04 is 4 %."""


class ComplaintsOut(Answer, frozen=True, kw_only=True):
    """How trajectories are compared of which their users say within the horizon that they were bad."""

    margin: float
    """How many more, relative to stable's, still count as not worse: .5 is half as many again."""
    more_evidence: float
    """How much more evidence a rollback by one of the metrics needs than without complaints: .04 is 4 %."""


class ArmOut(Answer, frozen=True, kw_only=True):
    """The outcomes of an arm's trajectories. A share of nothing is a text, such as `no trajectories`."""

    started: int
    trajectories: int
    failures: int
    failure_rate: float | str
    missing: int
    unscored: int
    reward_mean: float | str
    calls: int
    error_rate: float | str
    hung_calls: int
    engine_faults: int = 0
    """Trajectories of which an engine failed a call: that is no policy's failure."""
    bundle_applied: float | str = "no calls"
    """Share of trajectories that met the policy as it is: of the others the agent asked for the bundle, and did not say
    that it applied it."""
    negative_feedback: float | str
    """Share of complaints among the trajectories of which users gave an opinion within the horizon."""
    complaints: int = 0
    """Trajectories of which their users said within the horizon that they were bad."""
    safety_violations: int
    cost_usd: float | str = "no prices"
    """Mean cost of the trajectories whose cost has settled and is known."""
    unpriced: int = 0
    """Those whose cost has settled and is unknown: a call has no price."""
    unannounced: int = 0
    """Trajectories of the canary that have calls and no start that counts: they are in no statistic."""


class ArmsOut(Answer, frozen=True, kw_only=True):
    """Both arms in numbers."""

    stable: ArmOut
    canary: ArmOut
    mixed: int
    """Trajectories that moved from one to the other."""


class ShareDifferenceOut(Answer, frozen=True, kw_only=True):
    """The same of the trajectories that started while the canary had one share of the traffic."""

    weight: float
    """The share."""
    difference: float
    low: float
    high: float
    stable: int
    """Trajectories of each arm."""
    canary: int


class DifferenceOut(Answer, frozen=True, kw_only=True):
    """How much more harm the canary does by one metric, and the margin within which it counts as not worse.

    Of `cost` both are relative to stable's mean: -.2 is 20 % cheaper.
    """

    difference: float
    margin: float
    low: float | None = None
    """The 95 % confidence sequence: with this probability the true difference lies within its limits at every moment of
    the rollout, however often one looks; each interval by itself, and asymptotically: about, where an arm has few
    trajectories."""
    high: float | None = None
    by_share: list[ShareDifferenceOut] = msgspec.field(default_factory=list[ShareDifferenceOut])
    """Of each share that the canary had, smallest first; the whole is these, weighted by their sizes."""


class EvidenceSampleOut(Answer, frozen=True, kw_only=True):
    """The e-values of one moment."""

    at: Instant
    e_values: dict[str, dict[str, float]]
    """By family, then by metric."""


class TrailOut(Answer, frozen=True, kw_only=True):
    """The e-values of a role's newest rollout since it began, oldest first: at most 240 moments, evenly spread."""

    rollout_id: str
    role: str
    samples: list[EvidenceSampleOut]


class SubjectsOut(Answer, frozen=True, kw_only=True):
    """The subjects that the evidence is about: users, else sessions, else single trajectories."""

    seen: int
    """Those that have started: each is one unit of what rolls back and promotes."""
    before: int
    """Subjects of the role's latest starts before the rollout, ..."""
    starts_before: int
    """... and how many starts these were: at most 1,000."""
    split: int
    """Subjects with more than half of those starts, which stand for many: their trajectories count one by one."""
    note: str | None
    """What so few subjects cannot show; null where there are enough to show anything."""


class RolloutOut(Answer, frozen=True, kw_only=True):
    """A rollout as operators see it."""

    rollout_id: str
    role: str
    state: str
    """gating, awaiting_approval, running, paused, held, suspended, soaking, promoted, rolled_back, refused, aborted,
    withdrawn, superseded or reverted."""
    strategy: str
    parked: bool
    """No candidate starts until an operator resumes the queue or starts one."""
    forecast: ForecastOut | None
    """Null: too little traffic for a forecast."""
    horizon: Horizon | None
    cost: CostCap | None = None
    """Null before its gates are passed, and for the first policy of a role."""
    complaints: ComplaintsOut | None = None
    candidate: ServedPolicy
    stable: ServedPolicy | None
    """The policy that it is compared with; null for the first policy of a role."""
    queue: list[str] = msgspec.field(default_factory=list[str])
    """Registered candidates that wait for their turn, newest first: that one is next, and supersedes the others."""
    stage: int
    weight: float
    """The canary's share of new trajectories."""
    stage_since: Instant | None
    waiting_for: list[str]
    """The conditions that the stage still lacks, one line each."""
    stage_age_s: float
    deadline_in_s: float | None
    """For how long it may go on undecided; null when it gathers no evidence."""
    reason: str
    """Of the last decision."""
    actor: str
    approval: Annotated[str, listed("automated", "manual_approved", "emergency_override")]
    created_at: Instant
    finished_at: Instant | None
    gates: list[GateOut]
    arms: ArmsOut
    differences: dict[str, DifferenceOut]
    """By metric."""
    coverage: dict[str, float]
    """By arm: share of the outcomes that are known."""
    run: float
    """Smallest share of false alarms that a run of subjects has used up, whose first canary trajectories fail."""
    run_of_trajectories: float
    """The same of trajectories: suspends."""
    thresholds: dict[str, float]
    """The threshold of each test; `run` is reached from above."""
    budget: dict[str, float]
    """By test: the probability with which it may roll back a canary that is not worse."""
    shares: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """By metric: its share of the budget's `evidence`, fixed before the rollout."""
    pending: int
    """Trajectories whose outcome is not settled."""
    subjects: SubjectsOut
    noticed: list[str]
    """Concerns that were put to a person."""
    e_values: dict[str, dict[str, float]]
    """By family, then by metric."""
    margin: float
    decisions: int
    last_hash: str | None
    fault: str | None = None
    """Why it cannot go on; null when it can, or when another deployer leads."""
    late: str | None = None
    """Why outcomes come late, and what follows; null when they do not, or when another deployer leads."""
    progress: str | None = None
    """How far a gate that takes hours has come; null when none runs, or when another deployer leads."""


class RolloutsOut(Answer, frozen=True, kw_only=True):
    """Every role's newest rollout."""

    rollouts: list[RolloutOut]


class DecisionOut(Answer, frozen=True, kw_only=True):
    """One decision of the audit log."""

    event_id: str
    rollout_id: str
    sequence: int
    timestamp: Instant
    verdict: str
    actor: str
    reason: str


class AuditOut(Answer, frozen=True, kw_only=True):
    """Whether the hash chain of a role's decisions is whole."""

    role: str
    decisions: int
    whole: bool
    problem: str | None
    """Why it is not whole, in one sentence."""
    since: Instant | None
    """The oldest decision that is kept."""
    complete: bool
    """Whether that one is the role's first."""
    first_break: DecisionOut | None
    """The first decision that was changed, inserted, or comes after a removed one."""


class RolePoliciesOut(Answer, frozen=True, kw_only=True):
    """One role's route and policies."""

    role: str
    route: Route | None
    """The policies that serve the role; null before its first one."""
    policies: list[PolicyVersion]


class PoliciesOut(Answer, frozen=True, kw_only=True):
    """Every role's route and policies."""

    roles: list[RolePoliciesOut]
