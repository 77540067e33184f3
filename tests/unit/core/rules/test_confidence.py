"""Confidence sequences of the differences: they hold the truth at every look, and shrink."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ratchet.canary_deployer.domain.e_processes import Floats
from ratchet.core.rules.confidence import Limits, ShareArms, ShareCosts, limits_of, mean_limits_of, share_difference

WEIGHTS = (0.1, 0.5)
"""The canary's share of the first half of the trajectories, and of the second."""


def share(weight: float, stable: tuple[int, float], canary: tuple[int, float]) -> ShareArms:
    """`stable`, `canary`: trajectories, and the sum of their harms."""
    return ShareArms(weight, (stable[0], canary[0]), (stable[1], canary[1]))


def of_look(is_canary: NDArray[np.bool_], failed: NDArray[np.bool_], weight: Floats, share: float) -> ShareArms:
    """Both arms of one share, as far as they have come."""
    arms = [(weight == share) & arm for arm in (~is_canary, is_canary)]
    return ShareArms(share, tuple(float(of.sum()) for of in arms), tuple(float((failed & of).sum()) for of in arms))


@pytest.mark.parametrize(
    ("stable", "canary"),
    [(0.2, 0.2), pytest.param(0.05, 0.15, marks=pytest.mark.slow), pytest.param(0.6, 0.4, marks=pytest.mark.slow)],
)
def test_all_looks_at_a_rollout_hold_the_true_difference_in_95_of_100(stable: float, canary: float) -> None:
    rng, rollouts, steps = np.random.default_rng(7), 300, 2_000
    weight = np.where(np.arange(steps) < steps // 2, *WEIGHTS)
    is_canary = rng.random((rollouts, steps)) < weight
    failed = rng.random((rollouts, steps)) < np.where(is_canary, canary, stable)
    missed = np.zeros(rollouts, dtype=bool)
    for look in range(50, steps + 1, 50):
        for rollout in range(rollouts):
            shares = [of_look(is_canary[rollout, :look], failed[rollout, :look], weight[:look], one) for one in WEIGHTS]
            known = [one for one in shares if all(one.count)]
            limits = limits_of(known) if known else Limits(-1, 1)
            missed[rollout] |= not limits.low <= canary - stable <= limits.high
    assert missed.mean() <= 0.05


@pytest.mark.parametrize(("weight", "harm"), [(0.01, 0.5), (0.05, 0.2)])
def test_a_small_share_of_traffic_misses_no_more_often(weight: float, harm: float) -> None:
    rng, rollouts, steps = np.random.default_rng(7), 150, 2_000
    missed = 0
    for _ in range(rollouts):
        is_canary = rng.random(steps) < weight
        failed = rng.random(steps) < harm
        counts = [np.cumsum(arm)[9::10] for arm in (~is_canary, is_canary, ~is_canary & failed, is_canary & failed)]
        looks = [
            share(weight, (int(s), float(bad)), (int(c), float(worse)))
            for s, c, bad, worse in zip(*counts, strict=True)
            if s and c
        ]
        limits = [limits_of([one]) for one in looks]
        missed += any(not one.low <= 0 <= one.high for one in limits)
    assert missed / rollouts <= 0.05


def test_interval_shrinks_as_trajectories_come_and_stays_possible() -> None:
    few, many = share(0.5, (5, 1), (5, 4)), share(0.5, (5_000, 1_000), (5_000, 1_500))
    assert limits_of([few]) == Limits(-1.0, 1.0)
    limits = limits_of([many])
    assert limits.low < many.difference < limits.high
    assert limits.high - limits.low < 0.08


def test_arms_without_any_harm_are_not_known_to_be_equal() -> None:
    limits = limits_of([share(0.1, (90, 0), (10, 0))])
    assert limits.low < -0.1
    assert limits.high > 0.1


def test_shares_of_traffic_are_compared_each_by_itself() -> None:
    # Harm grew over time for both arms: pooled, the canary would look worse by what its later share had more of.
    early, late = share(0.1, (900, 90), (100, 10)), share(0.5, (500, 200), (500, 200))
    limits = limits_of([early, late])
    assert limits.low == pytest.approx(-limits.high)
    shown = share_difference(late)
    assert (shown.weight, shown.difference, shown.stable, shown.canary) == (0.5, 0.0, 500, 500)
    assert shown.low < 0 < shown.high


def test_limits_of_means_hold_the_true_difference_at_all_looks() -> None:
    rng, rollouts, steps = np.random.default_rng(11), 100, 1_000
    missed = 0
    for _ in range(rollouts):
        is_canary = rng.random(steps) < 0.3
        value = rng.gamma(2.0, np.where(is_canary, 3.0, 2.0))
        arms = [(np.cumsum(arm), np.cumsum(value * arm), np.cumsum(value**2 * arm)) for arm in (~is_canary, is_canary)]
        limits = [
            mean_limits_of([ShareCosts(0.3, *(tuple(float(arm[n][look]) for arm in arms) for n in range(3)))], 250.0)[1]
            for look in range(49, steps, 25)
        ]
        missed += any(not each.low <= 2.0 <= each.high for each in limits)
        assert limits[-1].high - limits[-1].low < limits[0].high - limits[0].low
    assert missed <= 5
