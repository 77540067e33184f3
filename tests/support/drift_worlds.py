"""Rewards of a role as a seeded generator draws them, with or without a change that is planted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ratchet.core.contract import Reward, named_id
from ratchet.core.contract.reward import Effort, RewardComponent, RewardFunction, RewardMetadata
from ratchet.reward_computer.domain.drift import Watch, watch_reward
from tests.support.messages import AT
from tests.support.rewards import received

WEIGHTS: Mapping[str, float] = {"task_completion": 0.5, "efficiency": 0.25, "user_feedback": 0.25, "judge": 0.0}


Draw = Callable[[Random, float], float]
"""A score in 0..1, from what is planted in it."""


def done_or_not(random: Random, planted: float) -> float:
    """Done in half of the trajectories: no score of this mean spreads more."""
    return float(random.random() < 0.5 + planted)


def wide(random: Random, planted: float) -> float:
    """Around one half, with a standard deviation of about .3."""
    return min(1.0, max(0.0, random.gauss(0.5 + planted, 0.33)))


@dataclass(frozen=True)
class Planted:
    """From the trajectory `at` on, every score named is larger by its number, and `length` longer by that share."""

    at: int = 0
    by: Mapping[str, float] = field(default_factory=dict[str, float])

    def of(self, name: str, number: int) -> float:
        return self.by.get(name, 0.0) if number >= self.at else 0.0


def rewards(
    seed: int, trajectories: int, planted: Planted = Planted(), *, alone: Draw | None = None
) -> Iterator[Reward]:
    """First rewards of tasks of differing difficulty. `alone`: nothing but `task_completion` is scored, and so."""
    random = Random(seed)
    for number in range(trajectories):
        ease = random.gauss(0, 0.12)

        def score(name: str, mean: float, noise: float, ease: float = ease, number: int = number) -> float:
            return min(1.0, max(0.0, mean + ease + random.gauss(0, noise) + planted.of(name, number)))

        scores = {
            "task_completion": score("task_completion", 0.55, 0.2),
            "efficiency": score("efficiency", 0.5, 0.2),
            "judge": score("judge", 0.5, 0.15),
        }
        if random.random() < 0.3:
            scores["user_feedback"] = score("user_feedback", 0.55, 0.25)
        if alone is not None:
            scores = {"task_completion": alone(random, planted.of("task_completion", number))}
        characters = random.lognormvariate(6, 0.6) * (1 + planted.of("length", number))
        calls = 1 + int(random.expovariate(0.4)) + round(planted.of("calls", number))
        yield reward(number, scores, Effort(model_calls=calls, characters=int(characters)))


def reward(number: int, scores: Mapping[str, float], effort: Effort | None = None, **changes: Any) -> Reward:
    """The reward of the trajectory `number`, its total the weighted mean of the scores."""
    mass = sum(WEIGHTS[name] for name in scores)
    fields: dict[str, Any] = {
        "reward_id": named_id("reward", number, changes.get("revision", 0)),
        "trajectory_id": named_id("trajectory", number),
        "session_id": "s",
        "timestamp": AT,
        "reward_components": {
            name: RewardComponent(score=score, weight=WEIGHTS[name] / mass if mass else 0.0, source="automated")
            for name, score in scores.items()
        },
        "total_reward": sum(score * WEIGHTS[name] for name, score in scores.items()) / mass if mass else 0.0,
        "reward_type": "sparse",
        "metadata": RewardMetadata(evaluator="test", evaluation_method="automated"),
        "role": "support",
        "reward_function": RewardFunction(name="standard", version="1"),
        "effort": effort,
    }
    return Reward(**(fields | changes))


def alerts(stream: Iterator[Reward]) -> Iterator[tuple[int, str, Watch]]:
    """The alerts of a stream, raised and cleared: number of the trajectory, metric, and what is known then."""
    drift: dict[str, Watch] = {}
    for number, scored in enumerate(stream):
        before, drift = drift, watch_reward(drift, received(scored, number + 1))
        for metric, watch in drift.items():
            if watch.alert is not None and watch.alert is not before.get(metric, Watch()).alert:
                yield number, metric, watch
