"""What a recorder remembers of a trajectory in a role between its calls: bounded, and lost with its process."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

REMEMBERED_CALLS = 8
"""Calls of one trajectory that a next call may continue: the last one, and a few that are retried or branched from."""

CONVERSATION_BYTES, CALL_BYTES, TRY_BYTES = 2048, 768, 256
"""What one costs beside its token ids, measured and rounded up: a conversation, a call that may be continued, and the
number of a place's tries."""

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
    token_ids: array[int]
    """Prompt and output; empty when they are not known or not to be published."""
    tools_digest: str | None
    redacted: bool
    """Something was taken out of this call, or of one that it continues."""


@dataclass(slots=True)
class Conversation:
    """One trajectory in one role."""

    key: tuple[str, str]
    """Trajectory and role."""
    calls: list[PastCall] = field(default_factory=list[PastCall])
    tries: dict[tuple[str | None, int], int] = field(default_factory=dict[tuple[str | None, int], int])
    """Calls by parent and index: the second one at a place is attempt 2."""
    counted: int = 0
    """Bytes that `Conversations` counts for it."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        ids = sum(len(call.token_ids) * call.token_ids.itemsize for call in self.calls)
        return CONVERSATION_BYTES + CALL_BYTES * len(self.calls) + TRY_BYTES * len(self.tries) + ids

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
    """The most recently used trajectories, in at most `limit_bytes`; the newest one is kept whatever it takes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._known: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self.size = 0
        """Bytes of all that are remembered."""

    def open(self, trajectory_id: str, role: str) -> Conversation:
        """The trajectory in a role, new or remembered; it is now the most recently used one."""
        key = (trajectory_id, role)
        conversation = self._known.setdefault(key, Conversation(key))
        self._known.move_to_end(key)
        self._count(conversation)
        return conversation

    def remember(self, conversation: Conversation, call: PastCall) -> None:
        """Keep a finished call; the least recently used trajectories make room."""
        conversation.remember(call)
        if self._known.get(conversation.key) is conversation:
            self._count(conversation)

    def _count(self, conversation: Conversation) -> None:
        size = conversation.size
        self.size += size - conversation.counted
        conversation.counted = size
        while self.size > self._limit and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            self.size -= dropped.counted

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
