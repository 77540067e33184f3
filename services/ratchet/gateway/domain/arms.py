"""Which arm each trajectory met in each role, as this process remembers it: bounded, most recently used first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ratchet.rules.arms import Assignment

ARM_BYTES = 1024
"""What one costs, measured and rounded up."""


@dataclass(slots=True)
class Arm:
    """One trajectory in one role."""

    trajectory_id: str
    role: str
    assignment: Assignment | None = None
    """The policy that its first call met."""
    mixed: bool = False
    """Its policy changed in flight."""
    turns: int = 0
    """Turns that were published, or are on their way to it."""
    ended: bool = False
    """Its agent has said that it is over."""
    has_outcome: bool = False
    """And how it went: that stands, whatever is said later."""


class Arms:
    """The most recently used ones, in at most `limit_bytes`; the newest one is kept whatever it takes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(1, limit_bytes // ARM_BYTES)
        self._known: OrderedDict[tuple[str, str], Arm] = OrderedDict()
        self._roles: dict[str, list[str]] = {}

    def open(self, trajectory_id: str, role: str) -> Arm:
        """The trajectory in a role, new or remembered; it is now the most recently used one."""
        key = (trajectory_id, role)
        arm = self._known.get(key)
        if arm is None:
            arm = self._known[key] = Arm(trajectory_id, role)
            self._roles.setdefault(trajectory_id, []).append(role)
            if len(self._known) > self._limit:
                self._forget_oldest()
        self._known.move_to_end(key)
        return arm

    def of(self, trajectory_id: str) -> list[Arm]:
        """A trajectory in all roles that it is known to have met, the first one first."""
        return [self._known[trajectory_id, role] for role in self._roles.get(trajectory_id, ())]

    def _forget_oldest(self) -> None:
        (trajectory_id, role), _ = self._known.popitem(last=False)
        roles = self._roles[trajectory_id]
        roles.remove(role)
        if not roles:
            del self._roles[trajectory_id]

    def __len__(self) -> int:
        return len(self._known)
