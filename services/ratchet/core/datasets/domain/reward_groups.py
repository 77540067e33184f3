"""The rewards of one task's tries: how many tasks can teach an algorithm that compares them, and their baselines.

The baseline of a trajectory's reward where its task was tried once is a running mean per task, shrunk to all. For
trajectory i of task k, with n earlier trajectories of k, their running mean m and the running mean c of all earlier
trajectories of the role:  b_i = (n m + s c) / (n + s),  where s is the weight of the cohort, counted in trajectories.
Both means turn into exponential averages once they have seen `window` values, so that they follow the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ratchet.core.contract.snapshot import RewardGroups


@dataclass(slots=True)
class RewardTally:
    """Tries counted as they come. Of a task it keeps how many it has, its lowest reward and its highest."""

    _tasks: dict[str, tuple[int, float, float]] = field(default_factory=dict[str, tuple[int, float, float]])

    def update(self, tries: Iterable[tuple[str, float]]) -> None:
        """Count tries: the key of the task and the reward of each."""
        for task_key, reward in tries:
            count, lowest, highest = self._tasks.get(task_key, (0, reward, reward))
            self._tasks[task_key] = (count + 1, min(lowest, reward), max(highest, reward))

    def alike(self) -> frozenset[str]:
        """Tasks with several tries that all have one reward."""
        return frozenset(task for task, (count, low, high) in self._tasks.items() if count > 1 and low == high)

    def counts(self) -> RewardGroups:
        """What was counted so far."""
        groups = [(lowest, highest) for count, lowest, highest in self._tasks.values() if count > 1]
        return RewardGroups(
            groups=len(groups),
            mixed_groups=sum(lowest < highest for lowest, highest in groups),
            singletons=len(self._tasks) - len(groups),
        )


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
