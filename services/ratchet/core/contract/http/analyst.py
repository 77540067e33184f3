"""What to change: patterns, plans, their trail, and episodes, over HTTP.

GET  /v1/patterns?role=&state=                     PatternsOut
GET  /v1/patterns/{role}/{pattern_id}              PatternOut
POST /v1/patterns/{role}/{pattern_id}/dismiss      DecisionIn -> PatternOut
POST /v1/patterns/{role}/{pattern_id}/reopen       DecisionIn -> PatternOut: a dismissal is undone
GET  /v1/plans?role=&state=                        PlansOut
GET  /v1/plans/{role}/{plan_id}                    PlanOut
POST /v1/plans/{role}/{plan_id}/approve            DecisionIn -> PlanOut
POST /v1/plans/{role}/{plan_id}/reject             DecisionIn -> PlanOut
POST /v1/analyses                                  AnalysisIn -> AnalysisOut: a run now
GET  /v1/learning/{role}/events?plan_id=&pattern_id=  TrailOut
GET  /v1/learning/{role}/report                    LearningReportOut: of the last seven days
GET  /v1/episodes/{trajectory_id}?role=            EpisodeOut
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.learning import AdaptationPlan, LearningEvent, Pattern
from ratchet.core.contract.reward import Feedback, Reward
from ratchet.core.contract.values import Role, Text


class DecisionIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person decides."""

    reason: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    """To dismiss or reject: why, asked for."""


class AnalysisIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role


class AnalysisOut(Answer, frozen=True, kw_only=True):
    """What a run saw. A run of windows that were looked at already tests nothing anew."""

    role: str
    since: Instant
    """Start of the earlier window."""
    middle: Instant
    until: Instant
    trajectories: list[int]
    """Of both windows."""
    tested: int
    """Hypotheses."""
    opened: list[str]
    """Ids of patterns that are new."""
    known: list[str] = msgspec.field(default_factory=list[str])
    """Open ones that were there before."""
    closed: list[str]
    note: str | None
    """Such as: too few trajectories to tell."""


class PatternsOut(Answer, frozen=True, kw_only=True):
    """The dearest first."""

    patterns: list[Pattern]


class PatternOut(Answer, frozen=True, kw_only=True):
    pattern: Pattern
    plans: list[AdaptationPlan]


class PlansOut(Answer, frozen=True, kw_only=True):
    """The newest first."""

    plans: list[AdaptationPlan]


class PlanOut(Answer, frozen=True, kw_only=True):
    plan: AdaptationPlan
    pattern: Pattern | None
    """Null where it was removed meanwhile."""
    waits_for: str | None = None
    """Why a gate would refuse it today, or it does not go on: gates, the evidence of its canary, what comes first."""


class TrailOut(Answer, frozen=True, kw_only=True):
    """The oldest first; the newest 1,000."""

    events: list[LearningEvent]


class LearningReportOut(Answer, frozen=True, kw_only=True):
    """What changed in seven days, what it earned, what was taken back."""

    role: str
    since: Instant
    until: Instant
    markdown: str
    html: str
    figures: JsonObject


class EpisodeOut(Answer, frozen=True, kw_only=True):
    """A trajectory and all that is known of it, as one record. A view: nothing is stored for it."""

    episode_id: str
    """That of the trajectory."""
    role: str
    episode_type: str
    """Its task's domain; `general` where it names none."""
    started_at: Instant
    ended_at: Instant
    context: JsonObject
    """Task, instructions, the tools offered, complexity, labels."""
    actions: list[JsonObject]
    """In order: tool, arguments, whether it worked, and its time in milliseconds."""
    decisions: list[JsonObject]
    """In order: the turn, the agent's reasoning, what it chose."""
    communication: list[JsonObject]
    """Calls between agents: linked trajectories, who asked whom, and their outcome."""
    resources: JsonObject
    """Tokens, US dollars, seconds, calls."""
    outcome: JsonObject | None
    rewards: list[Reward]
    feedback: list[Feedback]
    errors: list[str]
    tags: list[str]
    suggestions: list[Text]
    """Advice of the open patterns whose triggers it matches."""
