"""A drop counts when it is large, and when chance does not make it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratchet.rl_coordinator.triggers.domain import Sample, compare


def sample(n: int, mean: float) -> Sample:
    """Of successes and failures."""
    return Sample(n, mean, mean * (1 - mean))


@pytest.mark.parametrize(
    ("before", "recent", "fires"),
    [
        (sample(2000, 0.8), sample(500, 0.6), True),
        (sample(2000, 0.8), sample(500, 0.71), False),  # too small a drop
        (sample(2000, 0.8), sample(100, 0.69), False),  # chance may make it
        (sample(2000, 0.8), sample(99, 0.1), False),  # too few
        (sample(99, 0.8), sample(2000, 0.1), False),
        (sample(2000, 0.5), sample(500, 0.9), False),
        (Sample(0, 0.0, 0.0), Sample(0, 0.0, 0.0), False),
        (Sample(200, math.nan, math.nan), Sample(200, 0.7, 0.1), False),
        (Sample(200, 1.0, 0.0), Sample(200, 0.7, 0.0), True),
    ],
)
def test_when_a_policy_counts_as_worse(before: Sample, recent: Sample, fires: bool) -> None:
    assert (compare(before, recent).problem(0.1, 100) is not None) == fires


def test_the_reason_names_both_means_and_the_least_drop() -> None:
    problem = compare(sample(2000, 0.8), sample(500, 0.6)).problem(0.1, 100)
    assert problem is not None
    assert "its mean reward fell by 0.200 (at least 0.1" in problem
    assert "0.800 of 2000 tasks, now 0.600 of 500" in problem


def test_looking_at_an_unchanged_policy_all_day_for_a_year_fires_almost_never() -> None:
    """365 days with windows of 150 trajectories, one of which is looked at after every tenth trajectory."""
    random = np.random.default_rng(7)
    before = sample(3000, 0.7)
    outcomes = (random.random((365, 300)) < 0.7).astype(float)
    fired = 0
    for day in outcomes:
        windows = (day[end - 150 : end].mean() for end in range(150, 301, 10))
        fired += any(compare(before, sample(150, float(mean))).problem(0.1, 100) for mean in windows)
    assert fired <= 1
