"""Self-learning: patterns in what agents did, plans to change it, and the trail of both."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject, Value, named_id
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.training import TrainingConfig
from ratchet.core.contract.values import Amount, Count, Role, Share, Text, Uuid, listed, matching

PATTERNS, PLANS, LEADERS = "patterns", "plans", "leaders"
"""Buckets."""
FOCUS_AREAS = (
    "agent_behavior",
    "communication_patterns",
    "decision_making",
    "task_execution_efficiency",
    "resource_utilization",
    "error_handling",
    "performance",
)
"""What a pattern is about, and what a plan changes."""
PHASES = (
    "monitoring",
    "analysis",
    "feedback_collection",
    "pattern_identification",
    "adaptation",
    "validation",
    "deployment",
)
"""Of self-learning, in their order."""
PATTERN_KINDS = ("failure_cluster", "association", "behavior", "drift")
MEASURES = (
    "failure",
    "reward",
    "cost_usd",
    "latency_ms",
    "tokens",
    "calls",
    "answer_chars",
    "inputs",
    "feedback",
    "share",
)
"""What an effect is an effect on. The first four are outcomes of a trajectory; `share` is that of trajectories that
behave as the finding says."""
CHANGES = ("bundle", "training", "held_out_tasks", "reward_weight", "note")
"""What a plan may change; a `note` asks people."""
PLAN_STATES: dict[str, frozenset[str]] = {
    "draft": frozenset({"approved", "rejected"}),
    "approved": frozenset({"executing", "rejected"}),
    "executing": frozenset({"validated", "rolled_back", "rejected"}),
    "validated": frozenset(),
    "rolled_back": frozenset(),
    "rejected": frozenset(),
}
"""State of a plan -> those that may follow. The states without followers are its ends."""
LONGEST_STATEMENT, MOST_EVIDENCE = 400, 20

Id = Annotated[str, matching(r"^[0-9a-f]{32}$")]
Phrase = Annotated[str, Meta(min_length=1, max_length=LONGEST_STATEMENT)]
"""A sentence for people: redacted, on one line."""
Term = Annotated[str, Meta(min_length=1, max_length=80)]


class Trigger(Value, frozen=True, kw_only=True):
    """A condition on trajectories: the attribute has the value, or holds it among others."""

    attribute: Term
    """Such as `task_type`, `tool`, `tool_error`, `term`, `model`."""
    value: Term


class Effect(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A difference, and its 95 % interval; of an alert, which has none, both ends are the difference."""

    measure: Annotated[str, listed(*MEASURES)]
    value: float
    """In the measure's unit: of `failure` a share, 0..1."""
    low: float
    high: float


class Pattern(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What goes wrong in a role, or goes otherwise than before; key `<role>.<pattern_id>` in bucket `patterns`."""

    pattern_id: Id
    """The same pattern keeps it over runs."""
    role: Role
    kind: Annotated[str, listed(*PATTERN_KINDS)]
    finding: Annotated[str, matching(r"^[a-z][a-z0-9_]{0,63}$")]
    """Which detector: such as `tool_error`, `repeated_calls`, `feedback_dried_up`."""
    statement: Phrase
    """In words with numbers."""
    focus_area: Annotated[str, listed(*FOCUS_AREAS)]
    triggers: Annotated[tuple[Trigger, ...], Meta(max_length=8)] = ()
    """All of them hold of the trajectories that it is about; none: it is about all of the role."""
    effect: Effect
    """Against the trajectories of the role that do not match; of drift, against the window before."""
    share: Share
    """Of the window's trajectories."""
    count: Count
    """Trajectories of the window that match."""
    reward_cost: float = 0.0
    """Mean reward of the others less that of those that match, times `count`."""
    cost_usd: Amount = 0.0
    """Excess cost of those that match."""
    confidence: Share | None = None
    """Its stability: the share of resamples of users in which all parts of its test show it again. It is no probability
    of being true. Null where an alert opened it."""
    p_value: Share | None = None
    """Of both windows together; null where an alert opened it."""
    alert_id: Uuid | None = None
    """The alert on the role's rewards that opened it: windows did not test it."""
    trend: Annotated[tuple[float, ...], Meta(max_length=60)] = ()
    """The share, one value a window, the oldest first."""
    evidence: Annotated[tuple[Uuid, ...], Meta(max_length=MOST_EVIDENCE)] = ()
    """Trajectories; the first represents the others."""
    terms: Annotated[tuple[Term, ...], Meta(max_length=12)] = ()
    """Which distinguish it."""
    action: Annotated[str, listed(*CHANGES)] = "note"
    """What is recommended."""
    advice: Phrase
    """The recommendation in words."""
    state: Annotated[str, listed("open", "closed", "dismissed")] = "open"
    opened_at: datetime
    seen_at: datetime
    """End of the newest window in which it appears."""
    closed_at: datetime | None = None
    closed_by: Text | None = None
    """Name of the policy that was stable when it vanished, where another one was when it opened; of a dismissed one,
    who dismissed it."""
    opened_under: Text | None = None
    """Name of the policy that was stable when it opened."""
    reason: Phrase | None = None
    """Why it was dismissed."""


class PlanChange(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a plan changes: `kind` says which of the other members stands. It holds no conversation of a user's."""

    kind: Annotated[str, listed(*CHANGES)]
    summary: Phrase
    bundle: Bundle | None = None
    """The whole bundle, which the role's next version is made of."""
    base: Text | None = None
    """Name of the policy that the bundle was made from: the plan is void where another is stable by then."""
    training: TrainingConfig | None = None
    tasks: Annotated[tuple[Uuid, ...], Meta(max_length=MOST_EVIDENCE)] = ()
    """Trajectories of which tasks of the held-out set can be made, also beside a bundle: a person reads them, says what
    a right answer is, and adds them."""
    component: Text | None = None
    """Of a reward weight: the component of the role's reward."""
    weight: Share | None = None
    """What its weight should be; people set it."""


class Approval(Value, frozen=True, kw_only=True):
    by: Text
    """Name and id of a key, or `policy` where the role lets low-risk plans run by themselves."""
    at: datetime


class ArmEffect(Value, frozen=True, kw_only=True):
    """The difference between the arms among trajectories that match the triggers: canary less stable."""

    difference: float
    """Of the mean of the plan's measure."""
    low: float
    high: float
    """The interval holds the true difference at all looks at once with 95 % probability."""
    stable: Count
    """Trajectories of each arm."""
    canary: Count
    at: datetime


class PlanStep(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A plan entered a state."""

    state: Annotated[str, listed(*PLAN_STATES)]
    at: datetime
    by: Text
    reason: Phrase | None = None


class AdaptationPlan(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What to change because of a pattern, and what came of it; key `<role>.<plan_id>` in bucket `plans`."""

    plan_id: Id
    """Of the pattern, the change and how often it was tried: a plan is drafted once."""
    role: Role
    pattern_id: Id
    state: Annotated[str, listed(*PLAN_STATES)] = "draft"
    focus_area: Annotated[str, listed(*FOCUS_AREAS)]
    change: PlanChange
    triggers: Annotated[tuple[Trigger, ...], Meta(max_length=8)] = ()
    """Those of the pattern: the effect is measured among trajectories that match."""
    expected: Effect
    """An upper bound: trajectories that match become as the others of the window. All 0 of a change that no arms
    compare: it promises nothing."""
    risk: Annotated[str, listed("low", "medium", "high")]
    """By what it touches and how many it reaches."""
    success_metrics: Annotated[tuple[Phrase, ...], Meta(min_length=1)]
    rollback_criteria: Annotated[tuple[Phrase, ...], Meta(min_length=1)]
    approvals: tuple[Approval, ...] = ()
    policy: Text | None = None
    """Name of the version that the deployer made of it."""
    job_id: Uuid | None = None
    """The training."""
    rollout_id: Uuid | None = None
    effect: ArmEffect | None = None
    """None before it was measured, and where the arms cannot tell."""
    verdict: Phrase | None = None
    """What came of it in words: whether it helped, did not, or is unknown."""
    history: Annotated[tuple[PlanStep, ...], Meta(min_length=1)]
    """The oldest first; the last is the state now."""


class LearningEvent(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """One step of self-learning. All of a role together are its trail."""

    TOPIC: ClassVar[str] = "agent.rl.learning.v1"

    at: datetime
    phase: Annotated[str, listed(*PHASES)]
    what: Annotated[str, matching(r"^[a-z][a-z0-9_]{0,63}$")]
    """Such as `run`, `pattern_opened`, `plan_approved`, `weekly_report`."""
    summary: Text
    """For people: redacted, on one line."""
    key: Text
    """Names the step among those of the role: a step that is published again counts once."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    pattern_id: Id | None = None
    plan_id: Id | None = None
    facts: JsonObject = msgspec.field(default_factory=dict)
    """Numbers and ids of the step."""

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.role, self.what, self.key)
