"""Cycles of coordinator, worker and deployer in memory: the simulation behind a figure, in its smallest form."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.contract.state import JobState
from tests.bench.simulate_cycles import Tally, simulate

pytestmark = pytest.mark.slow

TWICE_BROKEN = 31
"""A seed whose first job diverges, then loses its worker."""


async def test_a_training_that_breaks_twice_ends_with_a_policy_judged_rightly(tmp_path: Path) -> None:
    tally = await simulate(1, TWICE_BROKEN, tmp_path)
    assert tally.jobs == {JobState.COMPLETED: 1}
    assert tally.attempts == {"CONVERGENCE": 1, "worker vanished": 1, "completed": 1}
    assert tally.right == tally.rollouts.total() == 1
    assert tally.reaches_goals


def test_goals_need_more_than_their_share_of_right_ends() -> None:
    tally = Tally()
    tally.jobs.update({JobState.COMPLETED: 46, JobState.FAILED: 4})
    tally.rollouts.update({(False, "promoted"): 36, (True, "rolled_back"): 8, (False, "rolled_back"): 2})
    assert (tally.right, tally.reaches_goals) == (44, True)
    tally.rollouts[True, "promoted"] += 1
    assert not tally.reaches_goals
