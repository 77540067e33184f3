"""Advantages from rewards: of whole trajectories, in groups of any size; and of tokens, by GAE.

GAE (arXiv:1506.02438) runs over trained tokens only. Tokens that the environment wrote take no part: the value after
a policy's token is the value before its next one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Estimator = Callable[[Sequence[float]], list[float]]
"""Rewards of two or more tries at one task -> their advantages."""

SAME = 1e-9
"""Rewards closer than this are equal: the group carries no signal."""


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
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[one.task_key].append(one)
    cohort = statistics.fmean(one.reward for one in scored) if scored else 0.0
    values: dict[str, float] = {}
    flat = 0
    for members in groups.values():
        rewards = [one.reward for one in members]
        if len(members) == 1:
            only = members[0]
            plain = [only.reward - (cohort if only.baseline is None else only.baseline)]
        elif max(rewards) - min(rewards) < SAME:
            plain = [0.0] * len(members)
        else:
            plain = estimator(rewards)
        flat += len(members) > 1 and not any(plain)
        values |= {one.trajectory_id: shaped(one, value, shaping) for one, value in zip(members, plain, strict=True)}
    return Advantages(
        values={trajectory_id: value for trajectory_id, value in values.items() if value},
        groups=len(groups),
        singletons=sum(len(members) == 1 for members in groups.values()),
        zero_variance_groups=flat,
    )


def shaped(one: Scored, advantage: float, shaping: Shaping) -> float:
    """`advantage` with the floor for successes and the scale for negatives."""
    if shaping.floor is not None and one.reward > 0 and one.success is not False:
        advantage = max(advantage, shaping.floor)
    return advantage * shaping.negative_scale if advantage < 0 else advantage


def rloo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean reward of the other tries (leave-one-out; arXiv:2402.14740, eq. 6)."""
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def grpo(rewards: Sequence[float]) -> list[float]:
    """Reward standardised within the group (arXiv:2402.03300, section 4.1.2)."""
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (spread + 1e-4) for reward in rewards]


def reinforce(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean."""
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def gae(values: Sequence[float], reward: float, gamma: float, gae_lambda: float) -> tuple[list[float], list[float]]:
    """(advantages, returns) of one row's trained tokens; `reward` is paid on the last of them."""
    advantages = [0.0] * len(values)
    running, following, paid = 0.0, 0.0, reward
    for index in range(len(values) - 1, -1, -1):
        delta = paid + gamma * following - values[index]
        running = delta + gamma * gae_lambda * running
        advantages[index] = running
        following, paid = values[index], 0.0
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Shift and scale all tokens of all rows together to mean 0 and standard deviation 1."""
    flat = [value for row in advantages for value in row]
    if len(flat) < 2:
        return [list(row) for row in advantages]
    mean, spread = statistics.fmean(flat), statistics.stdev(flat)
    return [[(value - mean) / (spread + 1e-6) for value in row] for row in advantages]
