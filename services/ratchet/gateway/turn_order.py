"""Holds a call's record back until the other processes have recorded the earlier calls of its trajectory.

A record depends on the calls before it: which one it continues, its index, its attempt, and what it adds. The
process that answered them sends notes of their records a moment later, perhaps after the agent's next call. No answer
waits for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ratchet.gateway.domain.routing import Arm

WAIT_S = 20.0
"""Longest time that a record waits: another process may have died with its own."""

Work = Callable[[], None]


@dataclass(slots=True)
class _Waiting:
    arm: Arm
    timer: asyncio.TimerHandle
    works: deque[tuple[Mapping[str, int], Work]] = field(default_factory=deque[tuple[Mapping[str, int], Work]])
    """In their order, each with what other processes have recorded before it."""


class TurnOrder:
    """Does the work on calls of one trajectory in a role in their order, and after that of others.

    Work waits for the calls that other processes had answered when it came, and for no later ones: those wait for it.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    def do(self, arm: Arm, work: Work) -> None:
        """Do it now, or once the calls are recorded that other processes have answered by now."""
        key, earlier = (arm.trajectory_id, arm.role), arm.unrecorded_elsewhere()
        waiting = self._waiting.get(key)
        if waiting is None:
            if not earlier:
                return work()
            timer = asyncio.get_running_loop().call_later(WAIT_S, self._do_all, key)
            waiting = self._waiting[key] = _Waiting(arm, timer)
        waiting.works.append((earlier, work))
        return None

    def look(self, arm: Arm) -> None:
        """Another process has recorded a call."""
        key = (arm.trajectory_id, arm.role)
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        while waiting.works and arm.has_recorded(waiting.works[0][0]):
            waiting.works.popleft()[1]()
        if not waiting.works:
            self._do_all(key)

    def finish(self) -> None:
        """Wait for nothing any more."""
        for key in [*self._waiting]:
            self._do_all(key)

    def _do_all(self, key: tuple[str, str]) -> None:
        waiting = self._waiting.pop(key)
        waiting.timer.cancel()
        if waiting.works:
            waiting.arm.expect_no_more_records()
        for _, work in waiting.works:
            work()

    def __len__(self) -> int:
        return len(self._waiting)
