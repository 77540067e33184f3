"""Which calls of live traffic a candidate is asked as well: a share, drawn by trajectory and place, whatever became of
them. Of each trajectory one at most: answers to one conversation go together, and pairs count as independent. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ratchet.core.rules.arms import STABLE, draw

MOST_OPEN = 20_000
"""Trajectories whose calls are known at once: beyond them the oldest is forgotten, its later calls are not drawn."""
MOST_CALLS, MOST_BYTES = 200, 8 * 1024 * 1024
"""Of one trajectory, up to the call that is drawn: a longer or larger one is left out before it is read."""


@dataclass(frozen=True, slots=True)
class LiveCall:
    """A call as the stream's headers tell of it."""

    sequence: int
    size: int
    """Bytes of its turn, as it is stored."""
    trajectory_id: str
    index: int
    arm: str
    version: int
    answered: bool


@dataclass(slots=True)
class Known:
    """The calls of a trajectory that still may be drawn."""

    sequences: list[int] = field(default_factory=list[int])
    size: int = 0
    over: bool = False
    """It was decided on, or began unseen."""


@dataclass(slots=True)
class LiveSample:
    """Draws calls that stable answered. `salt`: each candidate draws calls of its own."""

    salt: str
    share: float
    stable_version: int
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Drawn calls that are not compared, by reason."""
    seen: int = 0
    """Calls that stable answered."""
    known: dict[str, Known] = field(default_factory=dict[str, Known])
    """By trajectory, oldest first."""

    def drawn(self, call: LiveCall) -> list[int] | None:
        """The sequences of the trajectory's calls up to this one, where this one is drawn."""
        known = self.known.get(call.trajectory_id)
        if known is None:
            known = self.known[call.trajectory_id] = Known(over=call.index > 0)
            if len(self.known) > MOST_OPEN:
                del self.known[next(iter(self.known))]
        is_stables = call.arm == STABLE and call.version == self.stable_version and call.answered
        self.seen += is_stables
        if known.over:
            return None
        known.sequences.append(call.sequence)
        known.size += call.size
        if not is_stables or draw(self.salt, f"{call.trajectory_id} {call.index}") >= self.share:
            return None
        sequences, known.sequences, known.over = known.sequences, [], True
        if len(sequences) > MOST_CALLS or known.size > MOST_BYTES:
            self.left_out["too_large"] += 1
            return None
        return sequences

    def forget(self) -> None:
        """The stream was made anew: no sequence means what it did."""
        for known in self.known.values():
            known.sequences, known.over = [], True
