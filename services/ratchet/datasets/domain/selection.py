"""Which trajectories a job learns from, and why the others are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.contract.training import DatasetFilter
from ratchet.contract.turn import Turn
from ratchet.rules.arms import MIXED, PINNED

LEFT_OUT_ARMS = frozenset({MIXED, PINNED})
"""Evaluation traffic, and trajectories whose policy changed in flight."""
MIXED_OR_PINNED = "mixed_or_pinned"
CONSUMED = "consumed_by_lineage"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored, rewarded trajectory, with what the choice depends on."""

    trajectory_id: str
    task_key: str
    """Group key, or task id: equal keys are tries of one task."""
    ended_at: datetime
    reward: float
    confidence: float
    """0 when nothing was known to reward: such a total says nothing."""
    source: str
    domain: str | None
    profile: str | None
    turns: int
    arms: frozenset[str]
    trainable_calls: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """The data that a lineage has already learned from."""

    trajectories: frozenset[str] = frozenset()
    preferences: frozenset[str] = frozenset()
    labelled: frozenset[str] = frozenset()
    """Trajectories of its snapshots of labels."""


@dataclass(frozen=True, slots=True)
class TrajectoryRules:
    """The conditions on a trajectory that a job may learn from."""

    filter: DatasetFilter
    needs_calls: bool
    consumed: frozenset[str]
    """Trajectories the lineage has already learned from."""


@dataclass(frozen=True, slots=True)
class TrajectorySelection:
    """The chosen trajectories, oldest first, and how many others were left out for which reason."""

    chosen: Sequence[Candidate]
    left_out: Mapping[str, int]


def select(candidates: Iterable[Candidate], rules: TrajectoryRules, sample_size: int) -> TrajectorySelection:
    """Newest groups first, up to `sample_size` trajectories; a group is cut only if nothing else can be taken."""
    left_out: Counter[str] = Counter()
    groups: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=age_order, reverse=True):
        reason = reason_against(candidate, rules)
        if reason is None:
            groups.setdefault(candidate.task_key, []).append(candidate)
        else:
            left_out[reason] += 1
    eligible = [candidate for group in groups.values() for candidate in group]
    chosen: list[Candidate] = []
    for group in groups.values():
        if len(chosen) + len(group) <= sample_size:
            chosen.extend(group)
    chosen = chosen or eligible[:sample_size]
    if len(eligible) > len(chosen):
        left_out["beyond_sample_size"] = len(eligible) - len(chosen)
    return TrajectorySelection(sorted(chosen, key=age_order), left_out)


def reason_against(candidate: Candidate, rules: TrajectoryRules) -> str | None:
    """The first rule the trajectory breaks, as a token; None when a job may learn from it."""
    return next((reason for reason, breaks in _RULES.items() if breaks(candidate, rules)), None)


def pending_rewards_note(count: int) -> str:
    """The end of a refusal for too little data while rewards are still to come; empty when none are."""
    if not count:
        return ""
    return f"; {count} stored {'trajectory waits for its' if count == 1 else 'trajectories wait for their'} reward"


def is_left_out(turns: Iterable[Turn]) -> bool:
    """Whether a call of a trajectory bars all of it. The catalogue may lack the first calls of a long one."""
    return any(turn.policy.arm in LEFT_OUT_ARMS for turn in turns)


def age_order(candidate: Candidate) -> tuple[datetime, str]:
    """Sorts oldest first, the same way every time."""
    return (candidate.ended_at, candidate.trajectory_id)


def is_outside_dates(at: datetime, chosen: DatasetFilter) -> bool:
    """Whether an instant lies outside the filter's range; the end is not part of the range."""
    dates = chosen.date_range
    if dates is None:
        return False
    return (dates.start is not None and at < dates.start) or (dates.end is not None and at >= dates.end)


def is_not_among(value: str | None, allowed: list[str] | None) -> bool:
    """Whether a filter that lists values leaves this one out."""
    return allowed is not None and value not in allowed


_RULES: Mapping[str, Callable[[Candidate, TrajectoryRules], bool]] = {
    MIXED_OR_PINNED: lambda c, _: bool(c.arms & LEFT_OUT_ARMS),
    CONSUMED: lambda c, r: r.needs_calls and c.trajectory_id in r.consumed,
    "outside_date_range": lambda c, r: is_outside_dates(c.ended_at, r.filter),
    "source": lambda c, r: is_not_among(c.source, r.filter.sources),
    "task_domain": lambda c, r: is_not_among(c.domain, r.filter.task_domains),
    "subordinate_profile": lambda c, r: c.profile in (r.filter.exclude_subordinate_profiles or ()),
    "reward_without_evidence": lambda c, r: r.needs_calls and c.confidence <= 0,
    "below_min_reward": lambda c, r: r.filter.min_reward is not None and c.reward < r.filter.min_reward,
    "too_long": lambda c, r: c.turns > (r.filter.max_trajectory_length or c.turns),
    "no_trainable_call": lambda c, r: r.needs_calls and c.trainable_calls == 0,
}
"""Reason -> whether a trajectory is left out for it, in the order in which reasons are reported."""
