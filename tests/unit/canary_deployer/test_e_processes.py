"""The factors, prefixes and wires by themselves: the proof's statements, checked by sums over all cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ratchet.canary_deployer.domain import e_processes, failure_streak
from ratchet.canary_deployer.domain.e_processes import (
    MIN_WEIGHT,
    RISK_RATIOS,
    Floats,
    promotion_factors,
    ratio_factors,
    rollback_factors,
    thinning_factors,
)
from ratchet.canary_deployer.domain.failure_streak import Run

WEIGHTS = (MIN_WEIGHT, 0.1, 0.25, 0.5, 0.95, 1 - MIN_WEIGHT)
BOTH = np.array([False, True])


def rollback(weight: Floats, harm: Floats, centre: Floats, margin: float) -> Floats:
    """Rollback factors of one harm, [arm, stakes]."""
    gain = e_processes.weighted_difference(BOTH, weight, harm, centre) - margin
    return rollback_factors(weight, centre, gain, margin)


def promotion(weight: Floats, harm: Floats, centre: Floats, margin: float) -> Floats:
    """Promotion factors of one harm, [arm, stakes]."""
    gain = margin - e_processes.weighted_difference(BOTH, weight, harm, centre)
    return promotion_factors(weight, centre, gain, margin)


def thinning(weight: Floats, harm: Floats, margin: float) -> Floats:
    """Thinning's factors of one harm, [arm, stakes]."""
    gain = e_processes.weighted_difference(BOTH, weight, harm, np.zeros(2)) - margin
    return thinning_factors(weight, gain, margin)


def expected(factors: Floats, weight: float) -> Floats:
    """The mean over the arm, [stakes], of factors [arm, stakes]."""
    return (1 - weight) * factors[0] + weight * factors[1]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("centre", [0.0, 0.2, 1.0])
def test_factors_are_positive_with_mean_at_most_1_under_their_null(weight: float, margin: float, centre: float) -> None:
    """Rollback: the canary is worse by the margin and no more. Promotion: by the margin and no less."""
    w, m = np.full(2, weight), np.full(2, centre)
    for stable in (0.0, 0.4, 1 - margin):
        harm = np.array([stable, stable + margin])
        for factors in (rollback(w, harm, m, margin), promotion(w, harm, m, margin)):
            assert (factors > 0).all()
            assert expected(factors, weight) == pytest.approx(np.ones(factors.shape[-1]), abs=1e-9)
        thinned = thinning(w, harm, margin)
        assert (thinned > 0).all()
        assert (expected(thinned, weight) <= 1 + 1e-9).all()


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_worst_trajectory_leaves_a_part_of_the_wealth(weight: float) -> None:
    w = np.full(2, weight)
    for centre, harms in itertools.product((0.0, 0.5, 1.0), itertools.product((0.0, 1.0), repeat=2)):
        m, harm = np.full(2, centre), np.array(harms)
        assert rollback(w, harm, m, 0.05).min() >= 0.05 - 1e-9
        assert promotion(w, harm, m, 0.05).min() >= 0.05 - 1e-9
        assert thinning(w, harm, 0.05).min() >= 0.05 - 1e-9


def test_rollback_factors_rise_with_the_canarys_harm_and_fall_with_stables() -> None:
    """The bounds of pending trajectories rest on this."""
    for weight, margin in itertools.product(WEIGHTS, (0.0, 0.1)):
        w, m = np.full(2, weight), np.full(2, 0.3)
        for make in (
            lambda h, w=w, m=m, d=margin: rollback(w, h, m, d),
            lambda h, w=w, d=margin: thinning(w, h, d),
        ):
            low, high = make(np.zeros(2)), make(np.ones(2))
            assert (low[1] < high[1]).all()
            assert (low[0] > high[0]).all()


def test_without_a_margin_thinning_is_the_likelihood_ratio_of_the_arm() -> None:
    w = np.full(2, 0.25)
    assert thinning(w, np.ones(2), 0.0)[1] == pytest.approx(RISK_RATIOS / (0.25 * RISK_RATIOS + 0.75))
    assert thinning(w, np.ones(2), 0.0)[0] == pytest.approx(1 / (0.25 * RISK_RATIOS + 0.75))
    assert thinning(w, np.zeros(2), 0.0) == pytest.approx(np.ones((2, len(RISK_RATIOS))))


def test_the_sample_ratio_test_has_mean_1_when_arms_get_their_weights() -> None:
    for weight in WEIGHTS:
        assert expected(ratio_factors(BOTH, np.full(2, weight)), weight) == pytest.approx(np.ones(6))


def test_all_capital_is_put_in_and_no_more() -> None:
    total = e_processes.FIRST_CAPITAL + sum(e_processes.put_in(block) for block in range(1, 5000))
    assert total == pytest.approx(1.0, abs=1e-3)
    assert all(
        e_processes.reserve(block) + e_processes.FIRST_CAPITAL + sum(e_processes.put_in(m) for m in range(1, block + 1))
        == pytest.approx(1.0)
        for block in (0, 1, 7, 100)
    )


def test_losses_of_a_good_time_do_not_protect_a_canary_that_turns_bad_late() -> None:
    """After 70 quiet blocks a stake has lost all; what was put in since needs 2 m (m + 1) times as much, no more."""
    capital = np.array([e_processes.FIRST_CAPITAL])
    for block in range(70):
        capital = e_processes.grown_capital(capital, np.array([1e-6]), block)
    gained = np.array([[1e4], [1e5]])
    values = e_processes.prefix_values(gained, capital, np.ones((1, 1)), 70)
    assert values[1, 0] > 10 > values[0, 0]


def test_promotions_wealth_is_cut_after_every_trajectory() -> None:
    factors = np.array([[2.0], [3.0], [2.0], [0.5], [0.5]])
    wealth, cut = np.array([1.0]), 1.0
    for factor in factors[:, 0]:
        cut = min(cut * factor, 10.0)
    assert e_processes.capped_wealth(wealth, factors, 10.0) == pytest.approx([cut])
    assert cut == 2.5


def walked(canary: list[int], failed: list[int], cuts: list[int]) -> tuple[float, Run]:
    """The wire over the same trajectories, in parts."""
    smallest, run = 1.0, Run()
    for first, after in itertools.pairwise([0, *cuts, len(canary)]):
        arm, bad = np.array(canary[first:after], dtype=bool), np.array(failed[first:after], dtype=bool)
        spent, run = failure_streak.runs(run, arm, bad, ~bad, 0.05)
        smallest = min(smallest, spent)
    return smallest, run


def test_run_of_failures_counts_stable_trajectories_within_it() -> None:
    canary = [0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    failed = [1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1]
    smallest, run = walked(canary, failed, [])
    assert run == Run(begun=4, length=4, stable=6, failed=2)
    assert smallest == failure_streak.spent(Run(4, 4, 4, 1), 0.05)


@pytest.mark.parametrize("cut", range(12))
def test_the_wire_gives_the_same_result_in_parts(cut: int) -> None:
    canary = [0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1]
    failed = [1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1]
    assert walked(canary, failed, [cut])[1] == walked(canary, failed, [])[1]
    assert walked(canary, failed, [cut])[0] <= 1.0


def test_a_success_or_a_pending_trajectory_of_the_canary_ends_the_run() -> None:
    assert walked([1, 1, 1, 1, 1], [1, 1, 0, 1, 1], [])[1].length == 2
    assert walked([1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [])[1].length == 0


@pytest.mark.parametrize(("length", "stable", "failed"), [(3, 20, 0), (5, 40, 2), (4, 10, 5), (6, 0, 0)])
def test_the_bound_is_above_the_chance_for_every_rate_of_stable(length: int, stable: int, failed: int) -> None:
    bound = math.exp(failure_streak.log_bound(Run(length, length, stable, failed), 0.05))
    for rate in np.linspace(0, 1, 501):
        tail = sum(math.comb(stable, f) * rate**f * (1 - rate) ** (stable - f) for f in range(failed + 1))
        assert min(1.0, rate + 0.05) ** length * tail <= bound + 1e-12


def test_the_shares_of_all_runs_add_up_to_at_most_1() -> None:
    total = sum(
        1 / (2**octave * (octave + 1) * (octave + 2) * length * (length + 1)) * 2**octave
        for octave in range(200)
        for length in range(1, 200)
    )
    assert total <= 1.0


def test_an_outage_of_both_arms_does_not_touch_the_wire() -> None:
    rng = np.random.default_rng(1)
    canary = rng.random(2000) < 0.5
    failed = (rng.random(2000) < 0.05) | (np.arange(2000) // 100 == 7)
    assert failure_streak.runs(Run(), canary, failed, ~failed, 0.05)[0] == 1.0


def test_canary_trajectories_that_all_fail_touch_the_wire_within_a_few() -> None:
    lengths = [k for k in range(4, 40) if failure_streak.spent(Run(10 + k, k, 9 * k, int(0.05 * 9 * k)), 0.05) <= 0.005]
    assert lengths[0] <= 10
