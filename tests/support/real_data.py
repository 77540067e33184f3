"""Real trajectories: tau-bench's airline tasks 0 to 29, each played four times by gpt-4o.

They lie in a folder `shared/data` beside the checkout, or in the folder that `RATCHET_REAL_DATA` names. Where the
variable is unset and the folder is missing, tests that need them are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "RATCHET_REAL_DATA"
BESIDE = Path(__file__).parents[3] / "shared" / "data"
AIRLINE = Path(os.environ.get(VARIABLE) or BESIDE) / "tau-bench" / "gpt-4o-airline-tasks-00-29.json"
"""A list of `{task_id, trial, reward, traj, info}`, as tau-bench writes its runs."""

needs_real_data = pytest.mark.skipif(
    not os.environ.get(VARIABLE) and not AIRLINE.exists(),
    reason=f"no real trajectories: {VARIABLE} names no folder, and none lies beside this checkout",
)
