"""Many simulated rollouts at once: the product's e-processes in numpy, checked against them by a unit test.

Shape suffixes: _R rollouts, _K stakes. One step of the loop finishes one trajectory in every rollout.
"""

# ruff: noqa: N803, N815 - names of arrays end in their shape

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ratchet.canary_deployer.domain import e_processes as product

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
METRICS = ("failure", "reward", "latency")
LARGEST = 1e100
"""Wealth is multiplied here, not added up in logarithms: that is faster, and beyond this it decides nothing."""


@dataclass(frozen=True)
class World:
    """What the two policies do: failure rates, rewards of successes, and how slow the canary is."""

    stable_failure: float
    canary_failure: float
    reward_low: float = 0.75
    reward_high: float = 0.92
    canary_reward_loss: float = 0.0
    """Taken from every reward of the canary; keep `reward_floor` at least as large."""
    reward_floor: float = 0.0
    """Reward of a failure."""
    slowdown: float = 1.0


@dataclass(frozen=True)
class Design:
    """How a rollout is run: the defaults of the deployer's settings."""

    weights: tuple[float, ...] = (0.1, 0.25, 0.5)
    min_canary: tuple[int, ...] = (20, 20, 20)
    margin: float = 0.05
    latency_margin: float = 0.1
    threshold: float = 20.0
    caution: float = 4.0
    metrics: tuple[str, ...] = METRICS
    promotion_metrics: tuple[str, ...] = ("failure", "reward")
    longest: int = 3000


@dataclass
class Outcome:
    """Per rollout: the trajectory that decided it, 0 for none."""

    rolled_back_at: NDArray[np.int64]
    promoted_at: NDArray[np.int64]

    @property
    def rolled_back(self) -> float:
        return float((self.rolled_back_at > 0).mean())

    @property
    def promoted(self) -> float:
        return float((self.promoted_at > 0).mean())

    def median_rollback(self) -> float:
        return float(np.median(self.rolled_back_at[self.rolled_back_at > 0])) if self.rolled_back else float("nan")

    def mean_rollback(self) -> float:
        return float(self.rolled_back_at[self.rolled_back_at > 0].mean()) if self.rolled_back else float("nan")

    def median_promotion(self) -> float:
        return float(np.median(self.promoted_at[self.promoted_at > 0])) if self.promoted else float("nan")


@dataclass
class MetricWealth:
    """Both e-processes of one metric in all rollouts."""

    rollback_KR: Floats
    promotion_KR: Floats
    count_2R: Floats = field(repr=False)
    total_2R: Floats = field(repr=False)

    @classmethod
    def fresh(cls, metric: str, rollouts: int) -> MetricWealth:
        one = product.fresh_failure_test() if metric == "failure" else product.fresh_harm_test()
        wealth = (np.ones((len(stakes), rollouts)) for stakes in (one.rollback, one.promotion))
        return cls(*wealth, np.zeros((2, rollouts)), np.zeros((2, rollouts)))

    def observe(self, metric: str, canary: Bools, weight: Floats, harm: Floats, margin: float) -> None:
        """One more trajectory in every rollout."""
        shrunk = (self.total_2R + 0.5) / (self.count_2R + 1)
        centre = (1 - weight) * shrunk[1] + weight * shrunk[0]
        thinning = metric == "failure"
        self._grow(product.ROLLBACK, np.zeros_like(centre) if thinning else centre, (canary, weight, harm), margin)
        self._grow(product.PROMOTION, centre, (canary, weight, harm), margin)
        for arm, chosen in enumerate((~canary, canary)):
            self.count_2R[arm] += chosen
            self.total_2R[arm] += np.where(chosen, harm, 0.0)

    def _grow(self, family: str, centre: Floats, look: tuple[Bools, Floats, Floats], margin: float) -> None:
        canary, weight, harm = look
        z = np.where(canary, (harm - centre) / weight, -(harm - centre) / (1 - weight))
        rollback = family == product.ROLLBACK
        wealth = self.rollback_KR if rollback else self.promotion_KR
        stakes = np.minimum(_stakes(wealth, weight), _largest(family, weight, centre, margin))
        wealth *= 1 + stakes * (z - margin if rollback else margin - z)
        np.clip(wealth, 1 / LARGEST, LARGEST, out=wealth)

    def e_rollback(self) -> Floats:
        return self.rollback_KR.mean(0)

    def e_promotion(self) -> Floats:
        return self.promotion_KR.mean(0)

    def difference(self) -> Floats:
        mean = self.total_2R / np.maximum(self.count_2R, 1)
        return np.where((self.count_2R > 0).all(0), mean[1] - mean[0], 0.0)


def simulate(world: World, design: Design, *, rollouts: int, seed: int) -> Outcome:
    """Run `rollouts` independent rollouts of `design` in `world` until promotion, rollback or `longest`."""
    rng = np.random.default_rng(seed)
    wealth = {metric: MetricWealth.fresh(metric, rollouts) for metric in METRICS}
    stage = np.zeros(rollouts, dtype=np.int64)
    in_stage = np.zeros(rollouts, dtype=np.int64)
    outcome = Outcome(np.zeros(rollouts, dtype=np.int64), np.zeros(rollouts, dtype=np.int64))
    weights, minimum = np.array(design.weights), np.array(design.min_canary)
    for step in range(1, design.longest + 1):
        open_ = (outcome.rolled_back_at == 0) & (outcome.promoted_at == 0)
        if not open_.any():
            break
        weight = weights[stage]
        canary = rng.random(rollouts) < weight
        _observe_all(wealth, world, design, canary, weight, rng)
        in_stage += canary
        rollback = np.mean([wealth[m].e_rollback() for m in design.metrics], axis=0)
        outcome.rolled_back_at[open_ & (rollback >= design.threshold)] = step
        ready = open_ & (outcome.rolled_back_at == 0) & (in_stage >= minimum[stage]) & (rollback < design.caution)
        last = stage == len(weights) - 1
        proven = np.all([wealth[m].e_promotion() >= design.threshold for m in design.promotion_metrics], axis=0)
        within = np.all([wealth[m].difference() <= _margin(design, m) for m in design.metrics], axis=0)
        outcome.promoted_at[ready & last & proven & within] = step
        advance = ready & ~last
        stage = np.where(advance, stage + 1, stage)
        in_stage = np.where(advance, 0, in_stage)
    return outcome


def at_weight(design: Design, weight: float) -> Design:
    """The design with one stage of one weight."""
    return replace(design, weights=(weight,), min_canary=(0,))


def _observe_all(
    wealth: dict[str, MetricWealth],
    world: World,
    design: Design,
    canary: Bools,
    weight: Floats,
    rng: np.random.Generator,
) -> None:
    size = len(canary)
    failed = rng.random(size) < np.where(canary, world.canary_failure, world.stable_failure)
    reward = np.where(failed, world.reward_floor, rng.uniform(world.reward_low, world.reward_high, size))
    reward -= np.where(canary, world.canary_reward_loss, 0.0)
    latency = rng.lognormal(0.0, 0.4, size) * np.where(canary, world.slowdown, 1.0)
    harms = {"failure": failed.astype(float), "reward": 1 - reward, "latency": latency / (latency + 1.083)}
    for metric, test in wealth.items():
        if metric in design.metrics or metric in design.promotion_metrics:
            test.observe(metric, canary, weight, harms[metric], _margin(design, metric))


def _margin(design: Design, metric: str) -> float:
    return design.latency_margin if metric == "latency" else design.margin


def _stakes(wealth_KR: Floats, weight: Floats) -> Floats:
    spread = weight * (1 - weight)
    if len(wealth_KR) == len(product.RISK_RATIOS):
        theta = np.array(product.RISK_RATIOS)[:, None]
        return spread * (theta - 1) / (1 + weight * (theta - 1))
    return np.array(product.SHARPNESS)[:, None] * spread


def _largest(family: str, weight: Floats, centre: Floats, margin: float) -> Floats:
    if family == product.ROLLBACK:
        worst = np.maximum(centre / weight, (1 - centre) / (1 - weight)) + margin
    else:
        worst = np.maximum((1 - centre) / weight, centre / (1 - weight)) - margin
    return product.LARGEST_STAKE / worst


def flags(value: bool) -> Bools:
    """One rollout's flag."""
    return np.array([value])


def numbers(value: float) -> Floats:
    """One rollout's number."""
    return np.array([value])
