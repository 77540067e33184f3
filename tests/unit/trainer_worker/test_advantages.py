"""Advantages of trajectories in groups of any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.trainer_worker.training.learner.advantages import (
    GRPO,
    REINFORCE,
    RLOO,
    Estimator,
    Scored,
    Shaping,
    from_mean,
    gae,
    leave_one_out,
    trajectory_advantages,
    whitened,
)
from ratchet.trainer_worker.training.learner.start import effective_sample_size

PLAIN = Shaping()
REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def group(key: str, *rewards: float, **changes: object) -> list[Scored]:
    return [Scored(f"{key}{n}", key, reward, **changes) for n, reward in enumerate(rewards)]  # type: ignore[arg-type]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert leave_one_out([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


def test_grpo_divides_by_the_spread_of_the_group() -> None:
    estimated = trajectory_advantages(group("a", 1.0, 0.0), GRPO, PLAIN)
    assert estimated.values == pytest.approx({"a0": 0.70701, "a1": -0.70701}, abs=1e-4)


def test_grpo_divides_lone_tries_as_well() -> None:
    """Beside a group whose unit is .7071 a lone try half a point above its baseline is .5 / .6124, not .5."""
    scored = [*group("a", 1.0, 0.0), *group("lone", 0.8, baseline=0.3)]
    pooled = ((0.5**2 + 0.5**2 + 0.5**2) / 2) ** 0.5
    estimated = trajectory_advantages(scored, GRPO, PLAIN)
    assert estimated.values["lone0"] == pytest.approx(0.5 / pooled, abs=1e-3)
    assert estimated.values["a0"] == pytest.approx(0.5 / 0.70711, abs=1e-3)


def test_grpo_takes_no_unit_from_groups_that_say_nothing() -> None:
    alone = trajectory_advantages(group("lone", 0.8, baseline=0.3), GRPO, PLAIN)
    beside = trajectory_advantages([*group("a", 1.0, 1.0, 1.0), *group("lone", 0.8, baseline=0.3)], GRPO, PLAIN)
    assert beside.values == alone.values == pytest.approx({"lone0": 1.0}, abs=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 1)), min_size=1, max_size=20), st.floats(0.1, 10))
def test_grpo_is_the_same_in_every_unit_of_reward(logged: list[tuple[str, float]], unit: float) -> None:
    def values(scale: float) -> dict[str, float]:
        scored = [
            Scored(f"t{n}", key, scale * round(reward, 2), 0.25 * scale) for n, (key, reward) in enumerate(logged)
        ]
        return trajectory_advantages(scored, GRPO, PLAIN).values

    assert values(unit) == pytest.approx(values(1.0), rel=0.2)


@settings(max_examples=40, deadline=None)
@given(REWARDS)
def test_estimators_are_centred(rewards: list[float]) -> None:
    for estimator in (RLOO, GRPO, REINFORCE):
        estimated = trajectory_advantages(group("a", *rewards), estimator, PLAIN)
        assert sum(estimated.values.values()) == pytest.approx(0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(REWARDS)
def test_rloo_is_reinforce_scaled_by_the_group_size(rewards: list[float]) -> None:
    n = len(rewards)
    assert leave_one_out(rewards) == pytest.approx([n / (n - 1) * value for value in from_mean(rewards)])


def test_a_lone_try_is_compared_with_its_stored_baseline() -> None:
    estimated = trajectory_advantages(group("a", 1.0, baseline=0.3), RLOO, PLAIN)
    assert estimated.values == pytest.approx({"a0": 0.7})
    assert estimated.singletons == 1


def test_a_lone_try_without_a_baseline_is_compared_with_everybody() -> None:
    estimated = trajectory_advantages([*group("a", 1.0), *group("b", 0.0), *group("c", 0.5)], RLOO, PLAIN)
    assert estimated.values == pytest.approx({"a0": 0.5, "b0": -0.5})


@pytest.mark.parametrize("estimator", [RLOO, GRPO, REINFORCE], ids=["rloo", "grpo", "reinforce"])
def test_a_lone_try_whose_reward_is_its_baseline_carries_no_signal(estimator: Estimator) -> None:
    """A mean of equal rewards is one of them but for its rounding, which no division may blow up."""
    alike = [one for key in "abcdefghij" for one in group(key, 0.11)]
    stored = [one for key in "abc" for one in group(key, 0.7, baseline=0.7000000000000001)]
    assert trajectory_advantages(alike, estimator, PLAIN).values == {}
    assert trajectory_advantages(stored, estimator, PLAIN).values == {}


def test_groups_of_equal_rewards_are_dropped_and_counted() -> None:
    estimated = trajectory_advantages([*group("a", 1.0, 1.0, 1.0), *group("b", 1.0, 0.0)], RLOO, PLAIN)
    assert set(estimated.values) == {"b0", "b1"}
    assert (estimated.groups, estimated.zero_variance_groups) == (2, 1)


def test_the_floor_keeps_solved_groups_and_spares_failures() -> None:
    shaping = Shaping(floor=0.25, negative_scale=0.3)
    estimated = trajectory_advantages([*group("a", 1.0, 1.0), *group("b", 0.0, 0.0)], RLOO, shaping)
    assert estimated.values == {"a0": 0.25, "a1": 0.25}
    assert estimated.zero_variance_groups == 2


def test_a_failure_with_some_reward_gets_no_floor() -> None:
    estimated = trajectory_advantages(group("a", 0.4, 0.4, success=False), RLOO, Shaping(floor=0.25))
    assert estimated.values == {}


def test_negative_advantages_are_scaled() -> None:
    estimated = trajectory_advantages(group("a", 1.0, 0.0), RLOO, Shaping(negative_scale=0.3))
    assert estimated.values == pytest.approx({"a0": 1.0, "a1": -0.3})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), min_size=1, max_size=20))
def test_ragged_groups_give_each_trajectory_at_most_one_advantage(logged: list[tuple[str, float]]) -> None:
    scored = [Scored(f"t{n}", key, reward) for n, (key, reward) in enumerate(logged)]
    estimated = trajectory_advantages(scored, RLOO, PLAIN)
    assert set(estimated.values) <= {one.trajectory_id for one in scored}
    assert estimated.groups == len({key for key, _ in logged})
    sizes = {key: sum(k == key for k, _ in logged) for key, _ in logged}
    for key, size in sizes.items():
        if size > 1:
            inside = [estimated.values.get(one.trajectory_id, 0.0) for one in scored if one.task_key == key]
            assert sum(inside) == pytest.approx(0, abs=1e-6)


def test_effective_sample_size_is_one_on_policy_and_small_under_one_token() -> None:
    assert effective_sample_size([0.0] * 10) == pytest.approx(1.0)
    assert effective_sample_size([5000.0] + [0.0] * 9) == pytest.approx(0.1)
    assert effective_sample_size([]) == 1.0


def test_gae_against_hand_computed_values() -> None:
    """values .2 .5 .1, reward 1, gamma .9, lambda .8: deltas .25, -.41, .9, folded from the end by .72."""
    advantages = gae([0.2, 0.5, 0.1], 1.0, 0.9, 0.8)
    last = 0.9
    middle = -0.41 + 0.72 * last
    first = 0.25 + 0.72 * middle
    assert advantages == pytest.approx([first, middle, last])
    assert advantages == pytest.approx([0.42136, 0.238, 0.9])


def test_without_discounting_every_token_is_credited_with_the_reward() -> None:
    assert gae([0.3, 0.6], 1.0, 1.0, 1.0) == pytest.approx([0.7, 0.4])


def test_lambda_zero_is_the_one_step_error() -> None:
    assert gae([0.2, 0.5, 0.1], 1.0, 1.0, 0.0) == pytest.approx([0.3, -0.4, 0.9])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(-1, 1))
def test_returns_are_the_discounted_reward_when_lambda_is_one(values: list[float], reward: float) -> None:
    advantages = gae(values, reward, 0.9, 1.0)
    returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    expected = [reward * 0.9 ** (len(values) - 1 - n) for n in range(len(values))]
    assert returns == pytest.approx(expected, abs=1e-9)


def test_whitening_is_over_all_tokens_of_all_rows() -> None:
    white = whitened([[1.0, 2.0], [3.0]])
    assert [value for row in white for value in row] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert whitened([[2.0]]) == [[2.0]]
