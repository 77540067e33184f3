"""What the gateway remembers of a trajectory between its calls: bounded, and rebuilt as good as possible when lost."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from ratchet.messages.routing import Assignment

REMEMBERED_CALLS = 8
"""Calls of one trajectory that a next call may continue: the last one, and a few that are retried or branched from."""

_KEPT = ("role", "content", "name", "tool_calls", "tool_call_id")


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that a later one may continue."""

    turn_id: str
    index: int
    messages: int
    """How many messages its conversation has, its answer included."""
    digest: bytes
    """Of those messages."""
    token_ids: Sequence[int]
    """Prompt and output; empty when they are not known or not to be published."""
    tools_digest: str | None
    redacted: bool
    """Something was taken out of this call, or of one that it continues."""


@dataclass(slots=True)
class Conversation:
    """One trajectory."""

    trajectory_id: str
    first_call_at: datetime
    assignment: Assignment | None = None
    """The arm that the first call met."""
    mixed: bool = False
    """Its arm changed in flight."""
    published: int = 0
    """Turns handed over for publishing."""
    role: str | None = None
    calls: list[PastCall] = field(default_factory=list[PastCall])
    tries: dict[tuple[str | None, int], int] = field(default_factory=dict[tuple[str | None, int], int])
    """Calls by parent and index: the second one at a place is attempt 2."""

    def parent_of(self, digests: Sequence[bytes]) -> PastCall | None:
        """The longest earlier call whose conversation begins this one; `digests[n]` is of the first n messages."""
        fitting = [c for c in self.calls if c.messages < len(digests) and digests[c.messages] == c.digest]
        return max(fitting, key=lambda call: call.messages, default=None)

    def remember(self, call: PastCall) -> None:
        """Keep a finished call, and forget the oldest beyond the bound."""
        self.calls = [*self.calls[-(REMEMBERED_CALLS - 1) :], call]

    def next_attempt(self, parent_turn_id: str | None, index: int) -> int:
        """1 for the first call at this place, then 2, 3, ..."""
        place = (parent_turn_id, index)
        self.tries[place] = self.tries.get(place, 0) + 1
        return self.tries[place]


class Conversations:
    """The most recently used trajectories, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Conversation] = OrderedDict()

    def get(self, trajectory_id: str) -> Conversation | None:
        """A remembered trajectory."""
        return self._known.get(trajectory_id)

    def open(self, trajectory_id: str, first_call_at: datetime) -> Conversation:
        """The trajectory, new or remembered; it is now the most recently used one."""
        conversation = self._known.get(trajectory_id)
        if conversation is None:
            conversation = self._known[trajectory_id] = Conversation(trajectory_id, first_call_at)
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        self._known.move_to_end(trajectory_id)
        return conversation

    def __len__(self) -> int:
        return len(self._known)


def prefix_digests(messages: Sequence[Mapping[str, object]]) -> list[bytes]:
    """Digest of the first 0, 1, ... n messages: each covers all before it.

    Members that mean nothing are left out, and the order of members means nothing: clients send an answer back in an
    order of their own.
    """
    running = hashlib.sha256()
    digests = [running.digest()]
    for message in messages:
        kept = {key: message[key] for key in _KEPT if message.get(key) is not None}
        running.update(msgspec.json.encode(kept, order="deterministic"))
        digests.append(running.digest())
    return digests
