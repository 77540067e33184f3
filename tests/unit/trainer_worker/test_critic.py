"""The critic of PPO explains rewards from the first train step, and no advantage is biased by its own reward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from ratchet.trainer_worker.training.learner.advantages import Scored
from ratchet.trainer_worker.training.learner.critic import FEATURES, Features, baselines_of, fit_values
from ratchet.trainer_worker.training.learner.rows import Row

WIDTH = 6


def row(name: str, tokens: int) -> Row:
    return Row.of(name, range(tokens + 1), [False] + [True] * tokens)


def world(tasks: int, tries: int, *, noise: float, seed: int = 0) -> tuple[list[Row], list[torch.Tensor], list[Scored]]:
    """Rewards are a task's own level, plus what the first hidden dimension says from the second token on."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[Row] = []
    features: list[torch.Tensor] = []
    scored: list[Scored] = []
    for task in range(tasks):
        level = float(torch.rand(1, generator=generator))
        for attempt in range(tries):
            name, tokens = f"{task}-{attempt}", 2 + attempt % 4
            hidden = torch.randn(tokens, WIDTH, generator=generator)
            luck = float(torch.randn(1, generator=generator))
            hidden[1:, 0] = luck
            rows.append(row(name, tokens))
            features.append(hidden)
            scored.append(
                Scored(name, f"task {task}", level + luck + noise * float(torch.randn(1, generator=generator)))
            )
    return rows, features, scored


def test_it_explains_what_hidden_states_hold_beyond_the_tasks_baseline() -> None:
    values = fit_values(*world(80, 4, noise=0.2))
    assert values.baseline_explained_variance < 0.0
    assert values.explained_variance > 0.4


def test_it_is_no_worse_than_the_baseline_where_hidden_states_hold_nothing() -> None:
    rows, features, scored = world(40, 4, noise=0.2)
    blank = [torch.randn(part.shape, generator=torch.Generator().manual_seed(n)) for n, part in enumerate(features)]
    values = fit_values(rows, blank, scored)
    assert values.explained_variance > values.baseline_explained_variance - 0.05


@pytest.mark.parametrize("tasks", [1, 2])
def test_with_too_few_tasks_for_a_fit_the_values_are_the_baselines(tasks: int) -> None:
    rows, features, scored = world(tasks, 4, noise=0.2)
    baselines = baselines_of(scored)
    for one, values in zip(rows, fit_values(rows, features, scored).rows, strict=True):
        assert values.tolist() == pytest.approx([baselines[one.trajectory_id]] * one.trained, abs=1e-6)


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("tasks", [1, 2, 3, 12])
def test_no_value_depends_on_the_trajectorys_own_reward(tasks: int, tries: int) -> None:
    """Not through the fit, its penalty, baselines, means or bounds. Those of the other tries do."""
    rows, features, scored = world(tasks, tries, noise=0.2)
    before = fit_values(rows, features, scored)
    changed = [Scored(one.trajectory_id, one.task_key, 9.0) if one.trajectory_id == "0-0" else one for one in scored]
    after = fit_values(rows, features, changed)
    own = [index for index, one in enumerate(rows) if one.trajectory_id == "0-0"]
    assert all(torch.equal(before.rows[index], after.rows[index]) for index in own)
    if len(rows) > 1:
        assert not all(map(torch.equal, before.rows, after.rows))


@pytest.mark.parametrize("tries", [1, 4])
def test_rewards_that_are_chance_are_not_explained(tries: int) -> None:
    """A critic that saw a trajectory's reward on some way would explain it."""
    rows, features, scored = world(60, tries, noise=0.0)
    generator = torch.Generator().manual_seed(9)
    chance = [Scored(one.trajectory_id, one.task_key, float(torch.randn(1, generator=generator))) for one in scored]
    assert fit_values(rows, features, chance).explained_variance < 0.05


def test_every_trajectory_counts_the_same_however_long_it_is() -> None:
    """Saying each thing ten times makes no difference to the others."""
    rows, features, scored = world(30, 2, noise=0.2)
    longer = [row("3-1", 10 * one.trained) if one.trajectory_id == "3-1" else one for one in rows]
    repeated = [
        part.repeat_interleave(10, 0) if one.trajectory_id == "3-1" else part
        for one, part in zip(rows, features, strict=True)
    ]
    short, long = fit_values(rows, features, scored), fit_values(longer, repeated, scored)
    for one, before, after in zip(rows, short.rows, long.rows, strict=True):
        if one.trajectory_id != "3-1":
            assert after.tolist() == pytest.approx(before.tolist(), abs=1e-5)


def test_a_stored_baseline_counts_as_one_more_try() -> None:
    scored = [Scored("a", "k", 1.0, 0.1), Scored("b", "k", 0.4, 0.1), Scored("c", "l", 0.7, 0.2), Scored("d", "m", 1.0)]
    expected = baselines_of(scored)
    assert expected.pop("d") is None
    assert expected == pytest.approx({"a": 0.25, "b": 0.55, "c": 0.2})


def test_a_lone_try_without_a_baseline_is_compared_with_the_other_tasks() -> None:
    """The mean of those that the fit saw, beside what its hidden states tell."""
    rows, features, scored = world(40, 1, noise=0.0)
    blank = [torch.zeros_like(part) for part in features]
    values = torch.cat(fit_values(rows, blank, scored).rows)
    mean = sum(one.reward for one in scored) / len(scored)
    assert values.tolist() == pytest.approx([mean] * len(values), abs=0.4)
    assert fit_values(rows, features, scored).explained_variance > 0.3


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(18)))
def test_the_order_of_the_data_makes_no_difference(order: list[int]) -> None:
    rows, features, scored = world(6, 3, noise=0.2)
    straight = fit_values(rows, features, scored)
    mixed = fit_values([rows[n] for n in order], [features[n] for n in order], [scored[n] for n in order])
    for place, index in enumerate(order):
        assert mixed.rows[place].tolist() == pytest.approx(straight.rows[index].tolist(), abs=1e-4)


def test_wide_hidden_states_are_projected_and_narrow_ones_kept() -> None:
    narrow, wide = torch.randn(3, WIDTH), torch.randn(3, 4 * FEATURES)
    assert torch.equal(Features(WIDTH)(narrow), narrow)
    projected = Features(4 * FEATURES)(wide)
    assert projected.shape == (3, FEATURES)
    assert torch.equal(projected, Features(4 * FEATURES)(wide))
