"""How many tasks can teach an algorithm that compares their tries: those whose rewards differ."""

from __future__ import annotations

from collections.abc import Iterable
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

    def teaching(self) -> int:
        """Tries that differ from others of their task in reward, or are alone and have a baseline."""
        return sum(count for count, lowest, highest in self._tasks.values() if count == 1 or lowest < highest)

    def counts(self) -> RewardGroups:
        """What was counted so far."""
        groups = [(lowest, highest) for count, lowest, highest in self._tasks.values() if count > 1]
        return RewardGroups(
            groups=len(groups),
            mixed_groups=sum(lowest < highest for lowest, highest in groups),
            singletons=len(self._tasks) - len(groups),
        )
