"""What a process remembers between calls, each kind bounded in bytes, and lost with its process."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec

from ratchet.bus.recent import Recent
from ratchet.core.contract import JsonObject
from ratchet.core.contract.gateway_notes import CallNote
from ratchet.core.contract.turn import Sampling
from ratchet.core.rules.redaction import Redacted

ANSWER_SHARE = 8
"""The cache does not keep an answer larger than this part (one eighth) of itself."""
REMEMBERED_CALLS = 8
"""Calls of one trajectory that a next call may continue: the last one, and a few that agents retry or branch from."""
CONVERSATION_BYTES, CALL_BYTES, ATTEMPT_BYTES = 2048, 768, 256
"""Costs beside the token ids, measured and rounded up: of a conversation, of a call that a later one may continue, and
of the number of attempts at one place."""
NOTE_BYTES, ID_BYTES = 1536, 128
"""Costs of a call that another process recorded, and of the id of each of its tool calls, measured and rounded up."""
TOOL_SET_BYTES = 1024
"""Cost of a set of tools beside its text, measured and rounded up."""


class AnswerCache(Recent[bytes, bytes]):
    """Answers that need no engine: the same policy gives the same answer to the same request at temperature 0.

    The policy's digest is part of the key, so a promotion never returns an old policy's answer.
    """

    def may_serve(self, digest: str, sampling: Sampling) -> bool:
        """Whether the cache is on, the policy is registered, and the answer does not depend on chance."""
        return bool(self.limit and digest) and sampling.temperature <= 0

    def put_answer(self, key: bytes, answer: bytes) -> None:
        """Keep an answer unless it is too large."""
        if len(answer) <= self.limit // ANSWER_SHARE:
            self.put_value(key, answer, len(answer))


def cache_key(digest: str, path: str, body: Mapping[str, Any]) -> bytes:
    """The key of a policy's answer to a request; the order of members means nothing, nor whether the answer streams."""
    asked = {name: value for name, value in body.items() if name not in {"stream", "stream_options"}}
    return hashlib.sha256(msgspec.json.encode([digest, path, asked], order="deterministic")).digest()


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that a later one may continue."""

    turn_id: str
    index: int
    messages: int
    """Number of messages of its conversation, its answer included."""
    digest: bytes
    """Of those messages."""
    token_ids: array[int]
    """Prompt and output; empty when they are unknown or must not be published."""
    tools_digest: str | None
    redacted: bool
    """The recorder took something out of this call, or out of one that it continues."""
    applied: str | None = None
    """Digest of what the policy's bundle made of its request."""
    system: bytes = b""
    """Digest of its system prompt as it was sent; that of the messages leaves digits out."""
    call_ids: frozenset[str] = frozenset()
    """Ids of the tool calls of its answer."""
    ids_elsewhere: tuple[int, str] | None = None
    """Number and digest of the token ids of a call that another process recorded, which alone has the ids."""


@dataclass(slots=True)
class Conversation:
    """One trajectory in one role."""

    key: tuple[str, str]
    """Trajectory and role."""
    calls: list[PastCall] = field(default_factory=list[PastCall])
    attempts: dict[tuple[str | None, int], int] = field(default_factory=dict[tuple[str | None, int], int])
    """Number of calls by parent and index: the second one at a place is attempt 2."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        ids = sum(len(call.token_ids) * call.token_ids.itemsize for call in self.calls)
        return CONVERSATION_BYTES + CALL_BYTES * len(self.calls) + ATTEMPT_BYTES * len(self.attempts) + ids

    def parent_of(self, digests: Sequence[bytes]) -> PastCall | None:
        """The longest earlier call whose conversation begins this one; `digests[n]` is of the first n messages."""
        fitting = [c for c in self.calls if c.messages < len(digests) and digests[c.messages] == c.digest]
        return max(fitting, key=lambda call: call.messages, default=None)

    def repeated_by(self, turn_id: str | None, call_ids: Container[str]) -> PastCall | None:
        """The newest earlier call that a prompt names, or one of whose tool calls it repeats."""
        named = (
            c
            for c in reversed(self.calls)
            if c.turn_id == turn_id or any(call_id in call_ids for call_id in c.call_ids)
        )
        return next(named, None)

    def learn(self, note: CallNote) -> None:
        """Take over a call that another process has recorded."""
        place = (note.parent_turn_id, note.index)
        self.attempts[place] = max(self.attempts.get(place, 0), note.attempt)
        if note.messages and note.digest:
            call = PastCall(
                turn_id=note.turn_id,
                index=note.index,
                messages=note.messages,
                digest=bytes.fromhex(note.digest),
                token_ids=array("i"),
                tools_digest=note.tools_digest,
                applied=note.applied,
                redacted=note.redacted,
                system=bytes.fromhex(note.system or ""),
                call_ids=frozenset(note.call_ids),
                ids_elsewhere=(note.ids, note.ids_digest) if note.ids and note.ids_digest else None,
            )
            self.remember(call)

    def remember(self, call: PastCall) -> None:
        """Keep a finished call, and forget the oldest beyond the bound."""
        self.calls = [*self.calls[-(REMEMBERED_CALLS - 1) :], call]

    def next_attempt(self, parent_turn_id: str | None, index: int) -> int:
        """1 for the first call at this place, then 2, 3, ..."""
        place = (parent_turn_id, index)
        self.attempts[place] = self.attempts.get(place, 0) + 1
        return self.attempts[place]


class Conversations(Recent[tuple[str, str], Conversation]):
    """The conversations that a next call may continue."""

    def open(self, trajectory_id: str, role: str) -> Conversation:
        """The trajectory in a role, new or remembered."""
        key = (trajectory_id, role)
        conversation = self.get_value(key) or Conversation(key)
        self.put_value(key, conversation, conversation.size)
        return conversation

    def remember(self, conversation: Conversation, call: PastCall) -> None:
        """Keep a finished call, also of a conversation that was forgotten in between: that one stays forgotten."""
        conversation.remember(call)
        if self.get_value(conversation.key) is conversation:
            self.put_value(conversation.key, conversation, conversation.size)


class CallsElsewhere(Recent[tuple[str, str], tuple[CallNote, ...]]):
    """Calls that other processes have recorded, until a recorder of this one needs them."""

    def learn(self, note: CallNote) -> None:
        """Keep a call, and forget the oldest one of its trajectory beyond the bound."""
        key = (note.trajectory_id, note.role)
        calls = (*(self.get_value(key) or ())[1 - REMEMBERED_CALLS :], note)
        self.put_value(key, calls, sum(NOTE_BYTES + ID_BYTES * len(call.call_ids) for call in calls))

    def take(self, trajectory_id: str, role: str) -> tuple[CallNote, ...]:
        """Those of a trajectory in a role; from now on its recorder remembers them."""
        return self.take_value((trajectory_id, role)) or ()


def system_digest(messages: Sequence[Mapping[str, object]]) -> bytes:
    """Digest of the messages before the first one of a person or a tool, as they were sent."""
    head = list(takewhile(lambda message: message.get("role") in ("system", "developer"), messages))
    return hashlib.blake2b(msgspec.json.encode(head, order="deterministic"), digest_size=16).digest() if head else b""


class ToolSets(Recent[str, tuple[bytes, dict[str, int]]]):
    """What the redaction of each set of tools gave, by the set's digest: sets are long and nearly always the same."""

    def get_redacted(self, digest: str, tools: list[JsonObject]) -> Redacted | None:
        """What redacting `tools` gave; None when it is not remembered."""
        entry = self.get_value(digest)
        if entry is None:
            return None
        text, counts = entry
        return Redacted(msgspec.json.decode(text), counts) if counts else Redacted(tools)

    def put_redacted(self, digest: str, redacted: Redacted) -> None:
        """Keep what a redaction gave unless it is larger than all room; of an unchanged set, no text."""
        # A copy: what the encoder returns holds on to a buffer of up to twice the length.
        text = bytes(memoryview(msgspec.json.encode(redacted.value))) if redacted.counts else b""
        size = TOOL_SET_BYTES + len(text)
        if size <= self.limit:
            self.put_value(digest, (text, redacted.counts), size)
