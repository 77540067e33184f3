"""Consecutive trajectories as arrays, and the value that each test takes for their harms, known or pending.

Arrays are [..., n]: n trajectories in the order of their starts. The product has one rollout; simulations put many
rollouts in front, through the same code. A harm that is pending is NaN until `for_rollback` puts the bound in its
place.

| harm | known failure | missing at the horizon | moved, unscored | pending |
|---|---|---|---|---|
| failure, rollback | 1 | 0; 1 when broken off | bound; 1 when broken off | bound |
| missing, rollback | 0 | 1 | bound | bound |
| reward, rollback | 1 - reward | its reward if any came, else the centre | bound | bound |
| latency, rollback | x / (x + scale); 1 when a call hung or none came | the same | bound | bound |
| failure, promotion | 1 | 1 | worst for the claim | behind the watermark |
| reward, promotion | 1 - reward | 1 | worst for the claim | behind the watermark |

The bound is 0 on the canary and 1 on stable for rollback; the worst value for promotion is the opposite.

Broken off: an engine broke over one of the calls. For a rollback's failures that is harm on both arms, also where an
agent of stable repaired it and the trajectory succeeded: an engine that restarts breaks the calls of both alike, and a
policy that breaks it does so alone. Promotion takes these trajectories as it takes any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.canary_deployer.domain.e_processes import Flags, Floats
from ratchet.canary_deployer.domain.rules import FAILURE, LATENCY, MISSED, REWARD
from ratchet.canary_deployer.domain.trajectories import FAILED, MISSING, MOVED, PENDING, UNSCORED, Chunk, Trajectory

FIRST_CALL, SAFETY = "first_call", "safety"


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
    centres: dict[str, Floats]
    """`reward` and `latency` for rollback, `failure`, `loss` and `latency` for promotion."""

    @property
    def settled(self) -> Flags:
        """Trajectories whose outcome is known, or never will be."""
        return self.outcome != PENDING

    @property
    def unknowable(self) -> Flags:
        """Trajectories whose outcome will never be known, through no fault of the arm."""
        return (self.outcome == MOVED) | (self.outcome == UNSCORED)


def cohort_of(chunk: Chunk) -> Cohort:
    """A chunk as arrays."""
    trajectories, terms = chunk.trajectories, chunk.terms
    place = np.array([trajectory.terms for trajectory in trajectories], dtype=np.intp)
    scales = np.array([term.scale_ms or np.nan for term in terms])
    names = ("reward", "loss", "failure", "latency")
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
        latency=np.array([_latency(trajectory, terms[trajectory.terms].scale_ms) for trajectory in trajectories]),
        timed=~np.isnan(scales[place]),
        violation=np.array([float(trajectory.violation) for trajectory in trajectories]),
        broken_off=np.array([trajectory.broken_off for trajectory in trajectories], dtype=np.bool_),
        centres={name: np.array([getattr(term, name) for term in terms])[place] for name in names},
    )


def for_rollback(cohort: Cohort, metric: str) -> Floats:
    """The metric's harms, pending ones at their bound."""
    bound = np.where(cohort.canary, 0.0, 1.0)
    if metric == FIRST_CALL:
        return np.where(np.isnan(cohort.first), bound, cohort.first)
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
    missing = cohort.outcome == MISSING
    if metric == FAILURE:
        harm = np.where((cohort.outcome == FAILED) | missing, 1.0, 0.0)
    elif metric == REWARD:
        harm = np.where(np.isnan(cohort.reward) | missing, 1.0, 1 - cohort.reward)
    else:
        harm = np.where(cohort.timed, np.where(np.isnan(cohort.latency), worst, cohort.latency), 0.0)
    return np.where(cohort.unknowable, worst, harm)


def centre_for_promotion(cohort: Cohort, metric: str) -> Floats:
    """The centre for promotion: a missing reward is a loss of 1 there, so its centre is another."""
    return cohort.centres["loss" if metric == REWARD else metric]


def before_watermark(cohort: Cohort) -> Flags:
    """Which trajectories started before the oldest one whose outcome is pending."""
    return np.logical_and.accumulate(cohort.settled, axis=-1)


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
