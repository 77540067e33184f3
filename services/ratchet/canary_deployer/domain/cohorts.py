"""Consecutive trajectories as arrays, and the value that each test takes for their harms, known or pending.

With them come the units of the subjects that they opened (`subjects.py`): the same arrays, of what counts in each.

Arrays are [..., n]: n trajectories in the order of their starts. The product has one rollout; simulations put many
rollouts in front, through the same code. A harm that is pending is NaN until `for_rollback` puts the bound in its
place.

| harm | known failure | missing at the horizon | moved, unscored | pending |
|---|---|---|---|---|
| failure, rollback | 1 | 0; 1 when broken off | bound; 1 when broken off | bound |
| missing, rollback | 0 | 1 | bound | bound |
| reward, rollback | 1 - reward | its reward if any came, else the centre | bound | bound |
| complaint, rollback | as users say | as users say | as users say | the same |
| cost, rollback | as spent | as spent | as spent; the cap on stable | the same |
| latency, rollback | x / (x + scale); 1 when a call hung or none came | the same | bound | bound |
| failure, promotion | 1 | 1 | worst for the claim | behind the watermark |
| reward, promotion | 1 - reward | 1 | worst for the claim | behind the watermark |
| cost, promotion | as spent | as spent | as spent; the cap on the canary | behind the watermark |

The bound is 0 on the canary and 1 on stable for rollback; the worst value for promotion is the opposite.

**Cost** c is counted as x = min(c / cap, 1), with the cap of the rollout, and the claim about it is relative: the
canary is worse when E x > (1 + r) E x' for r = .25, x of the canary and x' of stable. That is linear, so the margin is
folded into the harm: x / (1 + r) on the canary, x on stable. This harm is in [0, 1], its difference D has the sign of
E x - (1 + r) E x', and the factors of `e_processes.py` with d = 0 test the claim exactly, with the bounds, centres and
stakes of any other harm. What is spent only grows, so as much as is known of it is the lowest that a cost can be, and
the cap the highest: a cost that is pending, or of which a call has no price, counts with the one that is worst for the
claim. A cost above the cap is cut, so how often that happens is a harm of its own (`over_cap`), with a margin of .05.

**Complaints** are counted likewise, with r = .5: one is a harm of 1 / (1 + r) on the canary and of 1 on stable. No
opinion is no complaint, and one that may still come counts at the bound, whatever is known of the outcome.

Broken off: an engine broke over one of the calls. For a rollback's failures that is harm on both arms, also where an
agent of stable repaired it and the trajectory succeeded: an engine that restarts breaks the calls of both alike, and a
policy that breaks it does so alone. Promotion takes these trajectories as it takes any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.canary_deployer.domain.e_processes import Flags, Floats, lowest_difference, weighted_difference
from ratchet.canary_deployer.domain.rules import (
    COMPLAINT_MARGIN,
    COMPLAINTS,
    COST_MARGIN,
    COSTS,
    FAILURE,
    LATENCY,
    MISSED,
    OVER_CAP,
    REWARD,
)
from ratchet.canary_deployer.domain.subjects import FIRST, Unit
from ratchet.canary_deployer.domain.trajectories import (
    FAILED,
    MISSING,
    MOVED,
    PENDING,
    UNSCORED,
    Chunk,
    Terms,
    Trajectory,
)

FIRST_CALL, SAFETY = "first_call", "safety"


@dataclass(frozen=True, slots=True)
class Costs:
    """What trajectories cost in units of the cap, not cut."""

    spent: Floats
    """As far as it is known."""
    known: Flags
    """Whether that is all."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """n trajectories as far as they are known, in one rollout or in many."""

    canary: Flags
    weight: Floats
    outcome: np.ndarray
    first: Floats
    """1: the first call was a harm, 0: it was not, NaN: pending."""
    reward: Floats
    """NaN: none came."""
    latency: Floats
    """Harm in [0, 1]; NaN: no call had one."""
    timed: Flags
    """Whether a latency scale was known at the start: without one the trajectory's latency is not tested."""
    violation: Floats
    broken_off: Flags
    """An engine broke over one of the calls."""
    complaint: Floats
    """1: its user has complained, 0: and will not, NaN: pending."""
    centres: dict[str, Floats]
    """`reward`, `latency` and `cost` for rollback, `failure`, `loss`, `latency` and `cost` for promotion."""
    opens: Flags
    """Whether it opened its subject's unit."""
    units: Units | None = None
    """What counts in the units that these trajectories opened; None where each unit is its opener alone."""
    costs: Costs | None = None
    """None where cost is not compared."""

    @property
    def settled(self) -> Flags:
        """Trajectories whose outcome is known, or never will be."""
        return self.outcome != PENDING

    @property
    def unknowable(self) -> Flags:
        """Trajectories whose outcome will never be known, through no fault of the arm."""
        return (self.outcome == MOVED) | (self.outcome == UNSCORED)


@dataclass(frozen=True, slots=True)
class Units:
    """The units that a cohort's trajectories opened, [..., n] by opener; `members` are flat, [m]."""

    members: Cohort
    """All that counts so far, the openers too; with the centres of their unit."""
    opener: NDArray[np.intp]
    """Of each member: the place of its unit's opener in the cohort, rollouts and trajectories flattened."""
    coming: Floats
    """How many trajectories may still count; 0 where none was opened."""

    def total(self, values: Floats) -> Floats:
        """Sums of the members' values by unit, [..., n]."""
        totals = np.bincount(self.opener, values, minlength=self.coming.size).astype(np.float64)
        return totals.reshape(self.coming.shape)

    @property
    def settled(self) -> Flags:
        """Units whose outcome will not change any more."""
        return (self.coming == 0) & (self.total((~self.members.settled).astype(np.float64)) == 0)


@dataclass(frozen=True, slots=True)
class Known:
    """What a rollout knows of all its trajectories: for the harms of a chunk."""

    cap_usd: float | None = None
    """None: cost is not compared."""
    silent: float = math.inf
    """Users complain no more of trajectories that started before this instant."""


PLAIN = Known()
"""Cost is not compared, and no user complains any more."""


def cohort_of(chunk: Chunk, units: Mapping[str, Unit] | None = None, known: Known = PLAIN) -> Cohort:
    """A chunk as arrays, with the units that it opened where `units` are given, by subject."""
    trajectories = chunk.trajectories
    terms = [chunk.terms[trajectory.terms] for trajectory in trajectories]
    opens_named = any(trajectory.subject and trajectory.place == 0 for trajectory in trajectories)
    opened = _units(chunk, units, known) if units and opens_named else None
    return _cohort(trajectories, terms, terms, known, opened)


def _units(chunk: Chunk, units: Mapping[str, Unit], known: Known) -> Units:
    opener, coming = list[int](), np.zeros(len(chunk.trajectories))
    members, terms, centres = list[Trajectory](), list[Terms](), list[Terms]()
    for place, trajectory in enumerate(chunk.trajectories):
        if trajectory.place != 0:
            continue
        opening = chunk.terms[trajectory.terms]
        counted = [(trajectory, opening)]
        if trajectory.subject:
            unit = units[trajectory.subject]
            counted, coming[place] = unit.members, unit.coming
        for member, own in counted:
            members.append(member)
            terms.append(own)
        opener += [place] * len(counted)
        centres += [opening] * len(counted)
    return Units(_cohort(members, terms, centres, known), np.array(opener, dtype=np.intp), coming)


def _cohort(
    trajectories: Sequence[Trajectory],
    terms: Sequence[Terms],
    centres: Sequence[Terms],
    known: Known,
    units: Units | None = None,
) -> Cohort:
    """Trajectories with their own terms as arrays; `centres` are those that each is tested with."""
    scales = [term.scale_ms for term in terms]
    return Cohort(
        canary=np.array([trajectory.canary for trajectory in trajectories], dtype=np.bool_),
        weight=np.array([trajectory.weight for trajectory in trajectories]),
        outcome=np.array([trajectory.outcome for trajectory in trajectories]),
        first=np.array(
            [np.nan if trajectory.first is None else trajectory.first for trajectory in trajectories], dtype=np.float64
        ),
        reward=np.array(
            [np.nan if trajectory.reward is None else trajectory.reward for trajectory in trajectories],
            dtype=np.float64,
        ),
        latency=np.array(
            [_latency(trajectory, scale_ms) for trajectory, scale_ms in zip(trajectories, scales, strict=True)]
        ),
        timed=np.array([scale_ms is not None for scale_ms in scales], dtype=np.bool_),
        violation=np.array([float(trajectory.violation) for trajectory in trajectories]),
        broken_off=np.array([trajectory.broken_off for trajectory in trajectories], dtype=np.bool_),
        complaint=np.array(
            [
                1.0 if trajectory.complained else 0.0 if trajectory.since < known.silent else np.nan
                for trajectory in trajectories
            ]
        ),
        centres={
            "reward": np.array([term.reward for term in centres]),
            "loss": np.array([term.loss for term in centres]),
            "failure": np.array([term.failure for term in centres]),
            "latency": np.array([term.latency for term in centres]),
            "cost": np.array([term.cost for term in centres]),
        },
        opens=np.array([trajectory.place == 0 for trajectory in trajectories], dtype=np.bool_),
        units=units,
        costs=None if known.cap_usd is None else _costs(trajectories, known.cap_usd),
    )


def _costs(trajectories: Sequence[Trajectory], cap_usd: float) -> Costs:
    never = (PENDING, MOVED, UNSCORED)
    return Costs(
        spent=np.array([trajectory.cost_usd or 0.0 for trajectory in trajectories]) / cap_usd,
        known=np.array(
            [
                trajectory.priced and not trajectory.spending and trajectory.outcome not in never
                for trajectory in trajectories
            ],
            dtype=np.bool_,
        ),
    )


def rollback_gain(cohort: Cohort, metric: str, centre: str | None, margin: float) -> Floats:
    """Z - margin of each trajectory [..., n], pending harms at their bound; `centre`: its name, None for 0."""
    harm = for_rollback(cohort, metric)
    gain = weighted_difference(cohort.canary, cohort.weight, harm, _centre(cohort, centre)) - margin
    return np.where(cohort.timed, gain, 0.0) if metric == LATENCY else gain


def promotion_gain(cohort: Cohort, metric: str, margin: float) -> Floats:
    """Margin - Z of each trajectory [..., n]; of a pending one it means nothing."""
    centre = centre_for_promotion(cohort, metric)
    gain = margin - weighted_difference(cohort.canary, cohort.weight, for_promotion(cohort, metric), centre)
    return np.where(cohort.timed, gain, 0.0) if metric == LATENCY else gain


def mean_rollback_gain(cohort: Cohort, metric: str, centre: str | None, margin: float) -> Floats:
    """G of each unit for k = 20, at its opener's place [..., n]; what is open counts at its bound."""
    units = cohort.units
    if units is None:
        return rollback_gain(cohort, metric, centre, margin) / FIRST
    known = units.total(rollback_gain(units.members, metric, centre, margin))
    return (known + units.coming * (lowest_difference(cohort.weight, _centre(cohort, centre)) - margin)) / FIRST


def mean_promotion_gain(cohort: Cohort, metric: str, margin: float) -> Floats:
    """-G of each unit for k = 20, at its opener's place [..., n]; of one that is open it means nothing."""
    if cohort.units is None:
        return promotion_gain(cohort, metric, margin) / FIRST
    return cohort.units.total(promotion_gain(cohort.units.members, metric, margin)) / FIRST


def for_rollback(cohort: Cohort, metric: str) -> Floats:
    """The metric's harms, pending ones at their bound."""
    bound = np.where(cohort.canary, 0.0, 1.0)
    if metric in COSTS:
        return _cost_harm(cohort, metric, dearest=~cohort.canary)
    if metric == FIRST_CALL:
        return np.where(np.isnan(cohort.first), bound, cohort.first)
    if metric == COMPLAINTS:
        harm = np.where(np.isnan(cohort.complaint), bound, cohort.complaint)
        return folded(cohort.canary, harm, COMPLAINT_MARGIN)
    if metric == FAILURE:
        harm = np.where((cohort.outcome == FAILED) | cohort.broken_off, 1.0, 0.0)
        return np.where(cohort.settled & (~cohort.unknowable | cohort.broken_off), harm, bound)
    if metric == MISSED:
        harm = np.where(cohort.outcome == MISSING, 1.0, 0.0)
    elif metric == SAFETY:
        harm = cohort.violation
    elif metric == REWARD:
        harm = np.where(np.isnan(cohort.reward), cohort.centres[REWARD], 1 - cohort.reward)
    else:
        harm = np.where(np.isnan(cohort.latency), cohort.centres[LATENCY], cohort.latency)
    return np.where(cohort.settled & ~cohort.unknowable, harm, bound)


def for_promotion(cohort: Cohort, metric: str) -> Floats:
    """The metric's harms of trajectories before the watermark: nothing is pending there."""
    worst = np.where(cohort.canary, 1.0, 0.0)
    if metric in COSTS:
        return _cost_harm(cohort, metric, dearest=cohort.canary)
    missing = cohort.outcome == MISSING
    if metric == FAILURE:
        harm = np.where((cohort.outcome == FAILED) | missing, 1.0, 0.0)
    elif metric == REWARD:
        harm = np.where(np.isnan(cohort.reward) | missing, 1.0, 1 - cohort.reward)
    else:
        harm = np.where(cohort.timed, np.where(np.isnan(cohort.latency), worst, cohort.latency), 0.0)
    return np.where(cohort.unknowable, worst, harm)


def measured_latency(cohort: Cohort) -> Floats:
    """Relative latency for a difference of means: what no call had counts at the centre, so it favours no arm."""
    measured = np.where(np.isnan(cohort.latency), cohort.centres[LATENCY], cohort.latency)
    return np.where(cohort.unknowable, np.where(cohort.canary, 1.0, 0.0), measured)


def folded(canary: Flags, harm: Floats, margin: float) -> Floats:
    """The harm [0, 1] whose difference is compared with 0: a relative margin is taken off the canary's (see above)."""
    return np.where(canary, harm / (1 + margin), harm)


def _cost_harm(cohort: Cohort, metric: str, dearest: Flags) -> Floats:
    """Harm by cost; where `dearest`, one that is not known is taken for the cap, else for what is known of it."""
    costs = cohort.costs
    if costs is None:
        raise ValueError("cost is compared without a cap")
    spent = np.where(dearest & ~costs.known, np.inf, costs.spent)
    return (
        np.where(spent > 1, 1.0, 0.0)
        if metric == OVER_CAP
        else folded(cohort.canary, np.minimum(spent, 1.0), COST_MARGIN)
    )


def centre_for_promotion(cohort: Cohort, metric: str) -> Floats:
    """The centre for promotion: a missing reward is a loss of 1 there, so its centre is another."""
    return _centre(cohort, {REWARD: "loss", OVER_CAP: None}.get(metric, metric))


def _centre(cohort: Cohort, name: str | None) -> Floats:
    return np.zeros(cohort.weight.shape) if name is None else cohort.centres[name]


def units_settled(cohort: Cohort, k: int) -> Flags:
    """Whether the unit that a trajectory opened is settled [..., n]; True for one that opened none."""
    settled = cohort.settled if k == 1 or cohort.units is None else cohort.units.settled
    return settled | ~cohort.opens


def before_watermark(settled: Flags) -> Flags:
    """What comes before the first one that is pending."""
    return np.logical_and.accumulate(settled, axis=-1)


def _latency(trajectory: Trajectory, scale_ms: float | None) -> float:
    """Relative latency of a trajectory's calls; a call that hung, or a first one that never came, counts as 1."""
    if scale_ms is None or trajectory.outcome == PENDING:
        return float("nan")
    if trajectory.hung or (trajectory.calls == 0 and trajectory.failed_until is None and trajectory.outcome == MISSING):
        return 1.0
    if trajectory.calls == 0:
        return float("nan")
    mean_ms = trajectory.latency_ms / trajectory.calls
    return mean_ms / (mean_ms + scale_ms)
