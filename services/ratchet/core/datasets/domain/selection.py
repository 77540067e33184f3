"""Which trajectories a job learns from, and why the others are left out."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ratchet.core.contract.training import DatasetFilter
from ratchet.core.contract.turn import Turn
from ratchet.core.rules.arms import MIXED, PINNED

LEFT_OUT_ARMS = frozenset({MIXED, PINNED})
"""Evaluation traffic, and trajectories whose policy changed in flight."""
MIXED_OR_PINNED = "mixed_or_pinned"
CONSUMED = "consumed_by_lineage"
EXCLUDED_RATER = "excluded_rater"
MAX_STALENESS = 8
"""Generations of policies, for algorithms that learn from calls."""
HELD_OUT = 0.1
"""The share of tasks that a request over HTTP leaves out where it names none: what `ratchet export tasks` drafts."""
FEWEST_TRIES = 8
"""A larger group is cut before an older one is left out."""


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
    versions: frozenset[int] = frozenset()
    """Of the policies that answered."""
    model_score: float | None = None
    """The score by the role's reward model, where it has one."""


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
    generations: Mapping[int, int] = field(default_factory=dict[int, int])
    """By policy version: how many generations it is from the policy that is trained. Others are of unknown age."""

    @property
    def max_staleness(self) -> int | None:
        """The most generations; None for any number."""
        return most_generations(self.filter, needs_calls=self.needs_calls)


@dataclass(frozen=True, slots=True)
class TrajectorySelection:
    """The chosen trajectories, oldest first, and how many others were left out for which reason."""

    chosen: Sequence[Candidate]
    left_out: Mapping[str, int]


def select(
    candidates: Iterable[Candidate], rules: TrajectoryRules, sample_size: int, unlisted: int = 0
) -> TrajectorySelection:
    """Up to `sample_size` trajectories, newest groups first (`newest_groups`).

    `unlisted`: how many others are stored that are too old, or too many, to be candidates.
    """
    left_out: Counter[str] = Counter()
    eligible: list[Candidate] = []
    for candidate in sorted(candidates, key=age_order, reverse=True):
        reason = reason_against(candidate, rules)
        if reason is None:
            eligible.append(candidate)
        else:
            left_out[reason] += 1
    within = _balanced(eligible, sample_size) if rules.filter.balance_domains else newest_groups(eligible, sample_size)
    left_out["beyond_sample_size"] += len(eligible) - len(within)
    left_out["beyond_history"] += unlisted
    return TrajectorySelection(sorted(within, key=age_order), dict(+left_out))


def newest_groups(newest_first: Sequence[Candidate], sample_size: int) -> list[Candidate]:
    """The newest groups, whole while that leaves no other out.

    Where not all fit, a group larger than `FEWEST_TRIES` gives way to older ones, down to the number of its newest
    tries with which all would fit, so that one task that was tried without end does not fill the sample. The last
    group gets what is left, but never a single try of several: that could be compared with nothing.
    """
    groups: dict[str, list[Candidate]] = {}
    for candidate in newest_first:
        groups.setdefault(candidate.task_key, []).append(candidate)
    sizes = [len(group) for group in groups.values()]
    share, over = _even_share(sizes, sample_size)
    chosen: list[Candidate] = []
    for group in groups.values():
        most = max(share, FEWEST_TRIES)
        if share >= FEWEST_TRIES and len(group) > share and over:
            most, over = share + 1, over - 1
        taken = min(len(group), most, sample_size - len(chosen))
        if taken > 1 or taken == len(group):
            chosen.extend(group[:taken])
    return chosen or list(newest_first[:sample_size])


def _balanced(newest_first: Sequence[Candidate], sample_size: int) -> list[Candidate]:
    """`newest_groups` of every domain, in even shares; those without a domain are one."""
    domains: dict[str | None, list[Candidate]] = {}
    for candidate in newest_first:
        domains.setdefault(candidate.domain, []).append(candidate)
    share, over = _even_share([len(domain) for domain in domains.values()], sample_size)
    chosen: list[Candidate] = []
    for domain in domains.values():
        room = share + (over > 0 and len(domain) > share)
        over -= room > share
        chosen.extend(newest_groups(domain, room))
    return chosen


def _even_share(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """(the most that each may have if all shall have a part of `room`, how many of the larger may have one more)."""
    if sum(sizes) <= room:
        return max(sizes, default=0), 0
    left, share = room, 0
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        share = left // (len(ascending) - place)
        if size > share:
            return share, left - share * (len(ascending) - place)
        left -= size
    return share, 0


def most_generations(chosen: DatasetFilter, *, needs_calls: bool) -> int | None:
    """The most generations between the policies that answered and the one that is trained; None for any number."""
    stated = chosen.max_staleness
    return MAX_STALENESS if stated is None and needs_calls else stated


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


def is_excluded(source: str, rater: str | None, chosen: DatasetFilter) -> bool:
    """Whether a filter that lists raters leaves this one out, by its name or by `<source>/<name>`."""
    return rater is not None and not {rater, f"{source}/{rater}"}.isdisjoint(chosen.excluded_raters or ())


def is_held_out(task_key: str, share: float | None) -> bool:
    """Whether a task belongs to the `share` of tasks that do not train. A larger share holds out all of a smaller."""
    return int.from_bytes(hashlib.sha256(task_key.encode()).digest()[:4]) < (share or 0.0) * 2**32


def _is_stale(candidate: Candidate, rules: TrajectoryRules) -> bool:
    """Whether a policy that answered is too many generations away."""
    limit = rules.max_staleness
    return limit is not None and any(rules.generations.get(version, 0) > limit for version in candidate.versions)


_RULES: Mapping[str, Callable[[Candidate, TrajectoryRules], bool]] = {
    MIXED_OR_PINNED: lambda c, _: bool(c.arms & LEFT_OUT_ARMS),
    CONSUMED: lambda c, r: c.trajectory_id in r.consumed,
    "held_out": lambda c, r: is_held_out(c.task_key, r.filter.held_out),
    "outside_date_range": lambda c, r: is_outside_dates(c.ended_at, r.filter),
    "source": lambda c, r: is_not_among(c.source, r.filter.sources),
    "task_domain": lambda c, r: is_not_among(c.domain, r.filter.task_domains),
    "subordinate_profile": lambda c, r: c.profile in (r.filter.exclude_subordinate_profiles or ()),
    "reward_without_evidence": lambda c, r: r.needs_calls and c.confidence <= 0,
    "reward_not_finite": lambda c, _: not math.isfinite(c.reward),
    "below_min_reward": lambda c, r: r.filter.min_reward is not None and c.reward < r.filter.min_reward,
    "above_max_reward": lambda c, r: r.filter.max_reward is not None and c.reward > r.filter.max_reward,
    "too_long": lambda c, r: c.turns > (r.filter.max_trajectory_length or c.turns),
    "no_trainable_call": lambda c, r: r.needs_calls and c.trainable_calls == 0,
    "too_stale": _is_stale,
}
"""Reason -> whether a trajectory is left out for it, in the order in which reasons are reported."""
