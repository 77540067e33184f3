"""Advantages of trajectories in groups of any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.contract.snapshot import Call
from ratchet.trainer_worker.training.learner.advantages import (
    Scored,
    Shaping,
    grpo,
    reinforce,
    rloo,
    trajectory_advantages,
)
from ratchet.trainer_worker.training.learner.rows import is_fresh
from ratchet.trainer_worker.training.learner.start import effective_sample_size
from tests.support.snapshot_rows import call

PLAIN = Shaping()
REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def group(key: str, *rewards: float, **changes: object) -> list[Scored]:
    return [Scored(f"{key}{n}", key, reward, **changes) for n, reward in enumerate(rewards)]  # type: ignore[arg-type]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert rloo([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


def test_grpo_divides_by_the_spread_of_the_group() -> None:
    assert grpo([1.0, 0.0]) == pytest.approx([0.70701, -0.70701], abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(REWARDS)
def test_estimators_are_centred(rewards: list[float]) -> None:
    for estimator in (rloo, grpo, reinforce):
        assert sum(estimator(rewards)) == pytest.approx(0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(REWARDS)
def test_rloo_is_reinforce_scaled_by_the_group_size(rewards: list[float]) -> None:
    n = len(rewards)
    assert rloo(rewards) == pytest.approx([n / (n - 1) * value for value in reinforce(rewards)])


def test_a_lone_try_is_compared_with_its_stored_baseline() -> None:
    estimated = trajectory_advantages(group("a", 1.0, baseline=0.3), rloo, PLAIN)
    assert estimated.values == pytest.approx({"a0": 0.7})
    assert estimated.singletons == 1


def test_a_lone_try_without_a_baseline_is_compared_with_everybody() -> None:
    estimated = trajectory_advantages([*group("a", 1.0), *group("b", 0.0), *group("c", 0.5)], rloo, PLAIN)
    assert estimated.values == pytest.approx({"a0": 0.5, "b0": -0.5})


def test_groups_of_equal_rewards_are_dropped_and_counted() -> None:
    estimated = trajectory_advantages([*group("a", 1.0, 1.0, 1.0), *group("b", 1.0, 0.0)], rloo, PLAIN)
    assert set(estimated.values) == {"b0", "b1"}
    assert (estimated.groups, estimated.zero_variance_groups) == (2, 1)


def test_the_floor_keeps_solved_groups_and_spares_failures() -> None:
    shaping = Shaping(floor=0.25, negative_scale=0.3)
    estimated = trajectory_advantages([*group("a", 1.0, 1.0), *group("b", 0.0, 0.0)], rloo, shaping)
    assert estimated.values == {"a0": 0.25, "a1": 0.25}
    assert estimated.zero_variance_groups == 2


def test_a_failure_with_some_reward_gets_no_floor() -> None:
    estimated = trajectory_advantages(group("a", 0.4, 0.4, success=False), rloo, Shaping(floor=0.25))
    assert estimated.values == {}


def test_negative_advantages_are_scaled() -> None:
    estimated = trajectory_advantages(group("a", 1.0, 0.0), rloo, Shaping(negative_scale=0.3))
    assert estimated.values == pytest.approx({"a0": 1.0, "a1": -0.3})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), min_size=1, max_size=20))
def test_ragged_groups_give_each_trajectory_at_most_one_advantage(logged: list[tuple[str, float]]) -> None:
    scored = [Scored(f"t{n}", key, reward) for n, (key, reward) in enumerate(logged)]
    estimated = trajectory_advantages(scored, rloo, PLAIN)
    assert set(estimated.values) <= {one.trajectory_id for one in scored}
    assert estimated.groups == len({key for key, _ in logged})
    sizes = {key: sum(k == key for k, _ in logged) for key, _ in logged}
    for key, size in sizes.items():
        if size > 1:
            inside = [estimated.values.get(one.trajectory_id, 0.0) for one in scored if one.task_key == key]
            assert sum(inside) == pytest.approx(0, abs=1e-6)


def test_calls_more_than_eight_versions_behind_are_stale() -> None:
    def calls(version: int | None) -> list[Call]:
        return [call([1], [2], [-0.1], policy_version=version)]

    assert is_fresh(calls(2), 10)
    assert not is_fresh(calls(1), 10)
    assert not is_fresh([*calls(10), *calls(1)], 10)
    assert is_fresh(calls(None), 10)
    assert is_fresh(calls(1), None)


def test_effective_sample_size_is_one_on_policy_and_small_when_one_token_dominates() -> None:
    assert effective_sample_size([0.0] * 10) == pytest.approx(1.0)
    assert effective_sample_size([5000.0] + [0.0] * 9) == pytest.approx(0.1)
    assert effective_sample_size([]) == 1.0
