"""The baseline of a trajectory's reward where its task was tried once: a running mean per task, shrunk to all.

For trajectory i of task k, with n earlier trajectories of k, their running mean m and the running mean c of all earlier
trajectories of the role:  b_i = (n m + s c) / (n + s),  where s is the weight of the cohort, counted in trajectories.
Both means turn into exponential averages once they have seen `window` values, so that they follow the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHRINKAGE = 2.0
"""The cohort weighs as much as this many trajectories of the task itself."""
TASK_WINDOW = 50
COHORT_WINDOW = 1000


@dataclass(frozen=True, slots=True)
class RunningMean:
    """The mean of the values so far, or of about the last `window` once there are more."""

    count: int = 0
    mean: float = 0.0

    def after(self, value: float, window: int) -> RunningMean:
        """The mean with one more value in it."""
        count = min(self.count + 1, window)
        return RunningMean(count, self.mean + (value - self.mean) / count)


def baseline(task: RunningMean, cohort: RunningMean) -> float | None:
    """The task's mean shrunk to the cohort's; None before the first trajectory of all."""
    if cohort.count == 0:
        return None
    return (task.count * task.mean + SHRINKAGE * cohort.mean) / (task.count + SHRINKAGE)


def baselines(history: Iterable[tuple[str, str, float]]) -> Mapping[str, float | None]:
    """Baseline by trajectory id, each from those before it. `history`: (id, task key, reward), oldest first."""
    tasks: dict[str, RunningMean] = {}
    cohort = RunningMean()
    by_id: dict[str, float | None] = {}
    for trajectory_id, task_key, reward in history:
        task = tasks.get(task_key, RunningMean())
        by_id[trajectory_id] = baseline(task, cohort)
        tasks[task_key] = task.after(reward, TASK_WINDOW)
        cohort = cohort.after(reward, COHORT_WINDOW)
    return by_id
