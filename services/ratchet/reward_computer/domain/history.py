"""How many model calls trajectories of a task type took: a fold over RL_TRAJECTORIES, read as of any recent sequence.

A task type is the role and the task's domain (`task_context.domain`, `none` where there is none). A domain is free text
of an agent: the task types of a role share `SLOTS` states, so that their number has a bound, and every entry names its
domain, so that task types stay apart.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from hashlib import blake2b

from ratchet.bus.received import Received
from ratchet.core.contract import Message, Trajectory, Value
from ratchet.core.rules.effort import model_calls
from ratchet.reward_computer.domain.normalization import Stats, longer, stats_of

CAPACITY = 2000
"""Entries kept: a window of 1,000 can be read as of any of the last 1,000 trajectories of the slot."""
SLOTS = 256
"""States of a role: 16 MB when all are full."""
MARK = 4


class TurnHistory(Value, frozen=True, kw_only=True):
    """The newest trajectories of one slot in stream order, as columns."""

    sequences: list[int]
    calls: list[int]
    marks: bytes
    """Ends of their ids, `MARK` bytes each: the same trajectory published again does not count again."""
    domains: list[str]
    """Digests of their domains."""

    def before(self, trajectory: Trajectory, sequence: int, window: int) -> Stats:
        """Calls per trajectory among the last `window` of its task type that were published before `sequence`."""
        end, domain = bisect_left(self.sequences, sequence), _digest(trajectory)
        if self.domains.count(domain) == len(self.domains):  # most slots have one domain
            return stats_of(self.calls[max(0, end - window) : end])
        past = [calls for calls, of in zip(self.calls[:end], self.domains[:end], strict=True) if of == domain]
        return stats_of(past[-window:])


EMPTY = TurnHistory(sequences=[], calls=[], marks=b"", domains=[])


def task_type(received: Received[Message]) -> str | None:
    """The key of the state that a trajectory's history is in."""
    message = received.message
    return history_key(message) if isinstance(message, Trajectory) else None


def history_key(trajectory: Trajectory) -> str:
    """`<role>.slot-<number>`."""
    return f"{trajectory.role}.slot-{int(_digest(trajectory), 16) % SLOTS}"


def add_trajectory(history: TurnHistory | None, received: Received[Message]) -> TurnHistory:
    """The history with one more trajectory."""
    past, trajectory = history or EMPTY, received.message
    if not isinstance(trajectory, Trajectory):
        return past
    mark = bytes.fromhex(trajectory.trajectory_id[-2 * MARK :])
    if _has_mark(past.marks, mark):
        return past
    return TurnHistory(
        sequences=longer(past.sequences, received.sequence, CAPACITY),
        calls=longer(past.calls, model_calls(trajectory), CAPACITY),
        marks=(past.marks + mark)[-MARK * CAPACITY :],
        domains=longer(past.domains, _digest(trajectory), CAPACITY),
    )


def _has_mark(marks: bytes, mark: bytes) -> bool:
    place = marks.find(mark)
    while place >= 0 and place % MARK:
        place = marks.find(mark, place + 1)
    return place >= 0


def _digest(trajectory: Trajectory) -> str:
    """Interned: thousands of equal ones are compared by where they lie."""
    domain = trajectory.task_context.domain or "none"
    return sys.intern(blake2b(domain.encode(errors="replace"), digest_size=6).hexdigest())
