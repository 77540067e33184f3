"""A thousand simulated rollouts: how often the tests err, and how soon they notice a regression."""

from __future__ import annotations

import random

import pytest

from ratchet.canary_deployer.domain.rollout import Verdict
from ratchet.canary_deployer.domain.rules import FAILURE, LATENCY, REWARD, Rules, Stage
from ratchet.canary_deployer.domain.statistics import Finished, Statistics, e_values, observe
from tests.support import canary_simulation as simulation
from tests.support.canary_fallback import Faults, play, without_waiting
from tests.support.canary_simulation import Design, World, at_weight, simulate

ROLLOUTS = 1000


def test_the_simulation_computes_the_products_e_values():
    rules = Rules(stages=(Stage(0.5, 0, 0),), margin=0.05, latency_margin=0.1)
    draw = random.Random(3)
    statistics = Statistics()
    wealth = {name: simulation.MetricWealth.fresh(name, 1) for name in simulation.METRICS}
    for number in range(300):
        weight = (0.1, 0.25, 0.5, 0.95)[number // 75]
        canary, failed = draw.random() < weight, draw.random() < 0.3
        one = Finished(canary, weight, failed, reward=draw.random(), latency_ms=100.0)
        statistics = observe(statistics, one, rules)
        harms = {FAILURE: float(failed), REWARD: 1 - one.reward, LATENCY: 0.5}
        for name, test in wealth.items():
            if name != LATENCY or number > 0:
                margin = rules.margin_of(name)
                test.observe(
                    name, simulation.flags(canary), simulation.numbers(weight), simulation.numbers(harms[name]), margin
                )
    for name, test in wealth.items():
        assert statistics.tests[name].e_rollback == pytest.approx(float(test.e_rollback()[0]), rel=1e-9)
        assert statistics.tests[name].e_promotion == pytest.approx(float(test.e_promotion()[0]), rel=1e-9)
    assert e_values(statistics, rules)["rollback"]["combined"] >= 1


def test_at_most_5_percent_false_rollbacks_and_false_promotions_exactly_at_the_margin():
    """The worst case of both families: failures and rewards are worse by the margin and not a bit more."""
    world = World(stable_failure=0.2, canary_failure=0.25, reward_low=1.0, reward_high=1.0)
    outcome = simulate(world, Design(longest=1000), rollouts=ROLLOUTS, seed=11)
    assert outcome.rolled_back <= 0.05
    assert outcome.promoted <= 0.05


def test_an_equal_policy_is_rarely_rolled_back_and_usually_promoted_within_900_trajectories():
    outcome = simulate(World(0.1, 0.1), Design(margin=0.1, longest=900), rollouts=ROLLOUTS, seed=12)
    assert outcome.rolled_back <= 0.05
    assert outcome.promoted >= 0.9


def test_at_most_5_percent_false_promotions_when_only_the_reward_is_worse():
    """Failures alone prove the policy good; its rewards do not, and they have a say of their own."""
    world = World(0.2, 0.2, reward_low=0.8, reward_high=0.9, reward_floor=0.1, canary_reward_loss=0.1)
    outcome = simulate(world, Design(margin=0.1, longest=700), rollouts=ROLLOUTS, seed=13)
    assert outcome.promoted <= 0.05


@pytest.mark.parametrize(
    ("weight", "canary_failure", "mean_at_most"),
    [(0.1, 0.5, 350), (0.25, 0.5, 160), (0.5, 0.5, 120), (0.1, 0.75, 120), (0.25, 0.75, 60), (0.5, 0.75, 45)],
)
def test_planted_regressions_are_rolled_back(weight: float, canary_failure: float, mean_at_most: float):
    outcome = simulate(World(0.16, canary_failure), at_weight(Design(longest=1200), weight), rollouts=200, seed=14)
    assert outcome.rolled_back >= 0.99
    assert outcome.mean_rollback() <= mean_at_most


def test_a_much_better_policy_is_promoted_within_200_trajectories():
    design = Design(weights=(0.25, 0.5), min_canary=(10, 10), margin=0.05, longest=400)
    outcome = simulate(World(0.5, 0.18), design, rollouts=200, seed=15)
    assert outcome.promoted >= 0.99
    assert outcome.median_promotion() <= 100


def test_a_canary_whose_failing_calls_stable_answers_is_not_promoted():
    """4 % of its calls fail, below the trip wire's 5 %: what is left of its trajectories looks as good as stable."""
    faults = Faults(stable_calls=0.0, canary_calls=0.04, upstream=False)
    ends = [play(faults, without_waiting(0.1), longest=300, seed=seed) for seed in range(20)]
    assert ends.count(Verdict.PROMOTE) <= 1


@pytest.mark.parametrize("upstream", [False, True], ids=["stable's failures stay", "an upstream answers for stable"])
def test_arms_whose_calls_fail_equally_often_are_rarely_rolled_back(upstream: bool):
    faults = Faults(stable_calls=0.04, canary_calls=0.04, upstream=upstream)
    ends = [play(faults, without_waiting(0.1), longest=300, seed=seed) for seed in range(20)]
    assert ends.count(Verdict.ROLL_BACK) <= 1
