"""The table of few real pairs: tasks are the observations, as the file of what was measured holds them."""

from __future__ import annotations

import pytest

from tools.learning.pairs import task_interval


def test_pairs_of_one_task_are_one_observation() -> None:
    apart = [(f"t{number}", float(number % 4 > 0)) for number in range(40)]
    together = [(task, right) for task, right in apart for _ in range(5)]
    assert task_interval(together) == task_interval(apart)
    low, high = task_interval(apart)
    # Wilson's interval of 30 of 40 is 0.60 to 0.86.
    assert (low, high) == (pytest.approx(0.60, abs=0.03), pytest.approx(0.86, abs=0.03))
