"""A baseline follows from the trajectories before this one: its task's mean, shrunk to that of all tasks."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from ratchet.core.datasets.domain.reward_groups import COHORT_WINDOW, SHRINKAGE, TASK_WINDOW, RunningMean, baselines

histories = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=40)


def numbered(rewards: list[tuple[str, float]]) -> list[tuple[str, str, float]]:
    return [(str(place), task, reward) for place, (task, reward) in enumerate(rewards)]


def recomputed(rewards: list[tuple[str, float]], place: int) -> float | None:
    """The definition, computed from scratch for one trajectory."""
    task = rewards[place][0]
    before = rewards[:place]
    if not before:
        return None
    own = [reward for key, reward in before if key == task]
    cohort = fmean(reward for _, reward in before)
    return (sum(own) + SHRINKAGE * cohort) / (len(own) + SHRINKAGE)


@given(histories)
def test_the_fold_equals_recomputing_every_baseline_from_its_past(rewards: list[tuple[str, float]]) -> None:
    by_id = baselines(numbered(rewards))
    for place in range(len(rewards)):
        assert by_id[str(place)] == pytest.approx(recomputed(rewards, place))


@given(histories, st.floats(0, 1))
def test_a_trajectory_does_not_move_its_own_baseline(rewards: list[tuple[str, float]], other: float) -> None:
    last = (rewards[-1][0], other) if rewards else ("a", other)
    changed = [*rewards[:-1], last]
    assert baselines(numbered(changed)).get(str(len(rewards) - 1)) == baselines(numbered(rewards)).get(
        str(len(rewards) - 1)
    )


def test_the_first_trajectory_of_all_has_no_baseline() -> None:
    assert baselines([("1", "task", 1.0)]) == {"1": None}


def test_a_new_task_starts_from_the_cohort_and_then_finds_its_own_level() -> None:
    history = [(f"old {n}", "hard", 0.0) for n in range(20)] + [(f"new {n}", "easy", 1.0) for n in range(20)]
    by_id = baselines(history)
    assert by_id["new 0"] == pytest.approx(0.0)
    later = by_id["new 19"]
    assert later is not None
    assert later > 0.9


def test_the_mean_follows_a_policy_that_changed() -> None:
    mean = RunningMean()
    for _ in range(500):
        mean = mean.after(0.0, TASK_WINDOW)
    for _ in range(3 * TASK_WINDOW):
        mean = mean.after(1.0, TASK_WINDOW)
    assert mean.mean > 0.9
    assert mean.count == TASK_WINDOW < COHORT_WINDOW
