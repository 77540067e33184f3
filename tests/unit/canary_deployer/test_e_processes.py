"""The tests themselves: fair under their nulls, whatever the weight, the margin and the history."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.canary_deployer.domain.e_processes import (
    LARGEST_STAKE,
    PROMOTION,
    RISK_RATIOS,
    ROLLBACK,
    ArmMean,
    Look,
    MetricTest,
    average,
    best_centre,
    fresh_failure_test,
    fresh_harm_test,
    harm_stakes,
    mixture,
    observe_failure,
    observe_harm,
    thinning_stakes,
)

weights = st.floats(0.01, 0.99)
rates = st.floats(0.0, 1.0)
margins = st.floats(0.0, 0.4)


def history(stable: tuple[int, float], canary: tuple[int, float]) -> MetricTest:
    """A test whose arms have seen so many trajectories with such a mean harm."""
    fresh = fresh_harm_test()
    arms = [ArmMean(count, count * mean) for count, mean in (stable, canary)]
    return MetricTest(fresh.rollback, fresh.promotion, *arms)


@given(weights, st.sampled_from(RISK_RATIOS))
def test_without_a_margin_a_failure_counts_with_the_likelihood_ratio_of_its_arm(weight: float, theta: float):
    place = RISK_RATIOS.index(theta)
    for canary, ratio in ((True, theta), (False, 1.0)):
        after = observe_failure(fresh_failure_test(), Look(canary, weight, 1.0), margin=0.0)
        assert math.exp(after.rollback[place]) == pytest.approx(ratio / (weight * theta + 1 - weight))
    assert observe_failure(fresh_failure_test(), Look(True, weight, 0.0), 0.0).rollback[place] == 0.0


@given(weights, rates, rates, margins)
def test_failures_are_a_fair_bet_exactly_at_the_margin(weight: float, stable: float, canary: float, margin: float):
    """Expected wealth after one trajectory is 1 + stake (D - margin): at most 1 under the null, above it otherwise."""
    gain = 0.0
    for arm, chance, rate in ((True, weight, canary), (False, 1 - weight, stable)):
        for harm, share in ((1.0, rate), (0.0, 1 - rate)):
            after = observe_failure(fresh_failure_test(), Look(arm, weight, harm), margin)
            gain += chance * share * math.exp(after.rollback[3])
    stake = thinning_stakes(weight, margin)[3]
    assert gain == pytest.approx(1 + stake * (canary - stable - margin), abs=1e-9)


@given(weights, rates, rates, margins, st.tuples(st.integers(0, 50), rates), st.tuples(st.integers(0, 50), rates))
def test_harms_are_a_fair_bet_whatever_was_seen_before(
    weight: float, stable: float, canary: float, margin: float, seen_stable: tuple[int, float], seen: tuple[int, float]
):
    test = history(seen_stable, seen)
    rollback = promotion = 0.0
    for arm, chance, harm in ((True, weight, canary), (False, 1 - weight, stable)):
        after = observe_harm(test, Look(arm, weight, harm), margin)
        rollback += chance * math.exp(after.rollback[2])
        promotion += chance * math.exp(after.promotion[2])
    centre = best_centre(test, weight)
    beyond = canary - stable - margin
    assert rollback == pytest.approx(1 + harm_stakes(ROLLBACK, weight, centre, margin)[2] * beyond, abs=1e-9)
    assert promotion == pytest.approx(1 - harm_stakes(PROMOTION, weight, centre, margin)[2] * beyond, abs=1e-9)


@given(weights, rates, margins, st.booleans(), st.tuples(st.integers(0, 50), rates))
def test_no_trajectory_takes_more_than_the_allowed_share_of_the_wealth(
    weight: float, harm: float, margin: float, canary: bool, seen: tuple[int, float]
):
    for observe, test in ((observe_harm, history(seen, seen)), (observe_failure, fresh_failure_test())):
        after = observe(test, Look(canary, weight, round(harm)), margin)
        assert min(*after.rollback, *after.promotion) >= math.log(1 - LARGEST_STAKE) - 1e-9


def test_evidence_grows_in_the_right_direction():
    worse = better = fresh_failure_test()
    for number in range(200):
        canary = number % 2 == 0
        worse = observe_failure(worse, Look(canary, 0.5, float(canary and number % 4 == 0)), 0.05)
        better = observe_failure(better, Look(canary, 0.5, float(not canary and number % 4 == 1)), 0.05)
    assert worse.e_rollback > 20 > worse.e_promotion
    assert better.e_promotion > 20 > better.e_rollback
    assert worse.difference == pytest.approx(0.5)


def test_a_mixture_is_the_mean_wealth_and_survives_extremes():
    assert mixture([0.0, math.log(3.0)]) == pytest.approx(2.0)
    assert mixture([-1e6, 0.0]) == pytest.approx(0.5)
    assert math.isfinite(mixture([1e6, 0.0]))


def test_an_average_of_nothing_is_no_evidence():
    assert average({}) == 1.0
    assert average({"failure": 1.0, "reward": 3.0}) == 2.0
