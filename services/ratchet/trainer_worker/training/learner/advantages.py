"""Advantages from rewards: of whole trajectories, in groups of any size; and of tokens, by GAE.

GAE (arXiv:1506.02438) runs over trained tokens only. Tokens that the environment wrote take no part: the value after
a policy's token is the value before its next one.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimator:
    """How rewards become advantages."""

    centred: Callable[[Sequence[float]], list[float]]
    """Rewards of two or more tries at one task -> what each has above what it is compared with."""
    standardised: bool = False
    """Divide it by the standard deviation of the group; of a lone try, by that within all groups."""


SAME = 1e-9
"""Rewards closer than this to what they are compared with are equal to it: they carry no signal."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A trajectory's reward, and what it is compared with."""

    trajectory_id: str
    task_key: str
    reward: float
    baseline: float | None = None
    """Persistent baseline of the task before this trajectory counted; used when it is alone in its group."""
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class Shaping:
    """Adjustments that keep small, repeated updates stable; the defaults change nothing."""

    floor: float | None = None
    """Successful trajectories get at least this advantage, so that groups that are all solved keep their skill."""
    negative_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Advantages:
    """Non-zero advantages by trajectory id, and how many groups had no signal."""

    values: dict[str, float]
    groups: int
    singletons: int
    zero_variance_groups: int


def trajectory_advantages(scored: Sequence[Scored], estimator: Estimator, shaping: Shaping) -> Advantages:
    """One advantage per trajectory. Groups of equal rewards are counted and, unless the floor lifts them, left out."""
    groups = groups_of(scored)
    cohort = statistics.fmean(trajectory.reward for trajectory in scored) if scored else 0.0
    plain = [_centred(members, estimator, cohort) for members in groups]
    if estimator.standardised:
        plain = _standardised(groups, plain)
    values = {
        trajectory.trajectory_id: shaped(trajectory, value, shaping)
        for members, advantages in zip(groups, plain, strict=True)
        for trajectory, value in zip(members, advantages, strict=True)
    }
    return Advantages(
        values={trajectory_id: value for trajectory_id, value in values.items() if value},
        groups=len(groups),
        singletons=sum(len(members) == 1 for members in groups),
        zero_variance_groups=sum(is_flat(members) for members in groups),
    )


def groups_of(scored: Sequence[Scored]) -> list[list[Scored]]:
    """Tries at the same task, in order of their first one."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for trajectory in scored:
        groups[trajectory.task_key].append(trajectory)
    return list(groups.values())


def is_flat(members: Sequence[Scored]) -> bool:
    """Whether several tries have equal rewards: there is nothing to tell apart."""
    rewards = [trajectory.reward for trajectory in members]
    return len(members) > 1 and max(rewards) - min(rewards) < SAME


def _centred(members: Sequence[Scored], estimator: Estimator, cohort: float) -> list[float]:
    if len(members) == 1:
        only = members[0]
        above = only.reward - (cohort if only.baseline is None else only.baseline)
        return [0.0 if abs(above) < SAME else above]
    if is_flat(members):
        return [0.0] * len(members)
    return estimator.centred([trajectory.reward for trajectory in members])


def _standardised(groups: Sequence[Sequence[Scored]], centred: Sequence[Sequence[float]]) -> list[list[float]]:
    """In units of the standard deviation of the own group.

    A lone try has no group; its unit is the standard deviation within all groups and around all baselines together.
    """
    squares, freedom = 0.0, 0
    for members, advantages in zip(groups, centred, strict=True):
        if not is_flat(members):
            squares += sum(value * value for value in advantages)
            freedom += max(1, len(members) - 1)
    pooled = math.sqrt(squares / freedom) if freedom else 0.0
    units = [
        statistics.stdev(trajectory.reward for trajectory in members) if len(members) > 1 else pooled
        for members in groups
    ]
    return [[value / (unit + 1e-4) for value in part] for part, unit in zip(centred, units, strict=True)]


def shaped(trajectory: Scored, advantage: float, shaping: Shaping) -> float:
    """`advantage` with the floor for successes and the scale for negatives."""
    if shaping.floor is not None and trajectory.reward > 0 and trajectory.success is not False:
        advantage = max(advantage, shaping.floor)
    return advantage * shaping.negative_scale if advantage < 0 else advantage


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean reward of the other tries."""
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def from_mean(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean."""
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


RLOO = Estimator(leave_one_out)
"""arXiv:2402.14740, eq. 6."""
GRPO = Estimator(from_mean, standardised=True)
"""arXiv:2402.03300, section 4.1.2."""
REINFORCE = Estimator(from_mean)
"""Also that of Dr. GRPO (arXiv:2503.20783, section 3.2)."""


def gae(values: Sequence[float], reward: float, gamma: float, gae_lambda: float) -> list[float]:
    """Advantages of one row's trained tokens; `reward` is paid on the last of them."""
    advantages = [0.0] * len(values)
    running, following, paid = 0.0, 0.0, reward
    for index in range(len(values) - 1, -1, -1):
        delta = paid + gamma * following - values[index]
        running = delta + gamma * gae_lambda * running
        advantages[index] = running
        following, paid = values[index], 0.0
    return advantages


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Shift and scale all tokens of all rows together to mean 0 and standard deviation 1."""
    flat = [value for row in advantages for value in row]
    if len(flat) < 2:
        return [list(row) for row in advantages]
    mean, spread = statistics.fmean(flat), statistics.stdev(flat)
    return [[(value - mean) / (spread + 1e-6) for value in row] for row in advantages]
