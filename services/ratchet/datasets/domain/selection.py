"""Which trajectories a job learns from, and why the others are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.contract.training import DatasetFilter
from ratchet.contract.turn import Turn
from ratchet.rules.arms import MIXED, PINNED

LEFT_OUT_ARMS = frozenset({MIXED, PINNED})
"""Evaluation traffic, and trajectories whose policy changed in flight."""
MIXED_OR_PINNED = "mixed_or_pinned"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored, rewarded trajectory, as far as choosing needs to know it."""

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
    """What a trajectory must be like."""

    filter: DatasetFilter
    needs_calls: bool
    consumed: frozenset[str]
    """Trajectories the lineage has already learned from."""


@dataclass(frozen=True, slots=True)
class TrajectorySelection:
    """The chosen ones, oldest first, and how many were left out for which reason."""

    chosen: Sequence[Candidate]
    left_out: Mapping[str, int]


def select(candidates: Iterable[Candidate], rules: TrajectoryRules, sample_size: int) -> TrajectorySelection:
    """Newest groups first, up to `sample_size` trajectories; a group is cut only if nothing else can be taken."""
    left_out: Counter[str] = Counter()
    eligible: list[Candidate] = []
    for candidate in candidates:
        reason = reason_against(candidate, rules)
        if reason is None:
            eligible.append(candidate)
        else:
            left_out[reason] += 1
    chosen = _newest_groups(eligible, sample_size)
    if len(eligible) > len(chosen):
        left_out["beyond_sample_size"] = len(eligible) - len(chosen)
    return TrajectorySelection(sorted(chosen, key=age_order), left_out)


def reason_against(candidate: Candidate, rules: TrajectoryRules) -> str | None:
    """The first rule the trajectory breaks, as a token; None when it may be learned from."""
    return next((reason for reason, breaks in _RULES.items() if breaks(candidate, rules)), None)


def pending_rewards_note(count: int) -> str:
    """What a refusal for too little data adds while some of it is still to come; nothing when nothing is."""
    if not count:
        return ""
    return f"; {count} stored {'trajectory waits for its' if count == 1 else 'trajectories wait for their'} reward"


def is_left_out(turns: Iterable[Turn]) -> bool:
    """Whether a call of a trajectory bars all of it. The catalogue may not know the first calls of a long one."""
    return any(turn.policy.arm in LEFT_OUT_ARMS for turn in turns)


def age_order(candidate: Candidate) -> tuple[datetime, str]:
    """Sorts oldest first, the same way every time."""
    return (candidate.ended_at, candidate.trajectory_id)


def _newest_groups(eligible: Sequence[Candidate], sample_size: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for group in _groups_newest_first(eligible):
        if len(chosen) + len(group) <= sample_size:
            chosen.extend(group)
    return chosen or [candidate for group in _groups_newest_first(eligible) for candidate in group][:sample_size]


def _groups_newest_first(eligible: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Tries of one task together; ordered by their newest try, and newest first within."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in sorted(eligible, key=age_order, reverse=True):
        groups.setdefault(candidate.task_key, []).append(candidate)
    yield from groups.values()


def _outside_dates(candidate: Candidate, rules: TrajectoryRules) -> bool:
    dates = rules.filter.date_range
    if dates is None:
        return False
    too_old = dates.start is not None and candidate.ended_at < dates.start
    too_new = dates.end is not None and candidate.ended_at >= dates.end
    return too_old or too_new


def _not_in(value: str | None, allowed: list[str] | None) -> bool:
    return allowed is not None and value not in allowed


_RULES: Mapping[str, Callable[[Candidate, TrajectoryRules], bool]] = {
    MIXED_OR_PINNED: lambda c, _: bool(c.arms & LEFT_OUT_ARMS),
    "consumed_by_lineage": lambda c, r: r.needs_calls and c.trajectory_id in r.consumed,
    "outside_date_range": _outside_dates,
    "source": lambda c, r: _not_in(c.source, r.filter.sources),
    "task_domain": lambda c, r: _not_in(c.domain, r.filter.task_domains),
    "subordinate_profile": lambda c, r: c.profile in (r.filter.exclude_subordinate_profiles or ()),
    "reward_without_evidence": lambda c, r: r.needs_calls and c.confidence <= 0,
    "below_min_reward": lambda c, r: r.filter.min_reward is not None and c.reward < r.filter.min_reward,
    "too_long": lambda c, r: c.turns > (r.filter.max_trajectory_length or c.turns),
    "no_trainable_call": lambda c, r: r.needs_calls and c.trainable_calls == 0,
}
"""Reason -> whether a trajectory is left out for it, in the order in which reasons are reported."""
