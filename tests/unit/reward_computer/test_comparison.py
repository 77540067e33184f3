"""Totals under two functions: the mean difference with its interval, the ranks, the largest changes."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import Reward
from ratchet.core.contract.reward import RewardComponent, RewardMetadata
from ratchet.reward_computer.domain.comparison import SHOWN, Compared, compared
from tests.support.messages import AT, trajectory

totals = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60)


def reward(name: str, total: float, **scores: float) -> Reward:
    parts = {part: RewardComponent(score=score, weight=1.0, source="automated") for part, score in scores.items()}
    return Reward(
        reward_id=trajectory(name).trajectory_id,
        trajectory_id=trajectory(name).trajectory_id,
        session_id="s",
        timestamp=AT,
        reward_components=parts,
        total_reward=total,
        reward_type="sparse",
        metadata=RewardMetadata(evaluator="test", evaluation_method="automated"),
        role="support",
    )


@given(totals)
def test_interval_holds_the_mean_difference(pairs: list[tuple[float, float]]) -> None:
    made = compared("support", [before for before, _ in pairs], [after for _, after in pairs])
    assert -1.0 <= made.low <= made.after - made.before + 1e-9
    assert made.after - made.before - 1e-9 <= made.high <= 1.0
    assert made.rank_correlation is None or -1.0 - 1e-9 <= made.rank_correlation <= 1.0 + 1e-9
    assert 0 <= made.changed <= made.trajectories == len(pairs)


def test_interval_covers_the_mean_difference_nearly_always() -> None:
    """Of 400 samples of 60 trajectories whose totals rise by .1 on average, at most 8 % lie beside it."""
    draw = Random(3)

    def covers() -> bool:
        before = [draw.random() for _ in range(60)]
        after = [total + draw.choice([0.0, 0.2]) for total in before]
        made = compared("support", before, after)
        return made.low <= 0.1 <= made.high

    assert sum(covers() for _ in range(400)) >= 0.92 * 400


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0.1, 0.2, 0.9], [0.2, 0.3, 0.4], 1.0),
        ([0.1, 0.2, 0.9], [0.9, 0.2, 0.1], -1.0),
        ([0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], 1.0),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0], 0.8),
        ([0.5, 0.5], [0.1, 0.9], None),
        ([0.5], [0.9], None),
    ],
)
def test_ranks_are_compared_by_spearmans_correlation(
    before: list[float], after: list[float], expected: float | None
) -> None:
    assert compared("support", before, after).rank_correlation == (
        None if expected is None else pytest.approx(expected)
    )


def test_one_trajectory_shows_no_difference() -> None:
    made = compared("support", [0.1], [0.9])
    assert (made.low, made.high) == (-1.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_largest_changes_are_shown_largest_first(afters: list[float]) -> None:
    made = Compared()
    for number, after in enumerate(afters):
        made.add(reward(str(number), 0.0, quality=0.0), reward(str(number), after, quality=after))
    sizes = [change.after - change.before for change in made.changes()]
    assert sizes == sorted((after for after in afters if after > 1e-9), reverse=True)[:SHOWN]


def test_change_names_the_components_that_differ() -> None:
    made = Compared()
    made.add(reward("one", 0.2, quality=0.2, speed=1.0), reward("one", 0.9, quality=0.9, speed=1.0, judge=0.5))
    (change,) = made.changes()
    assert change.components == {"quality": (0.2, 0.9), "judge": (None, 0.5)}
    assert math.isclose(change.after - change.before, 0.7)
