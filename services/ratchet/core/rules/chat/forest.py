"""Which call of a trajectory id continues which: the links, made anew from what the calls say.

A gateway says which call each turn continues, as far as it remembers: it may have been restarted, and several may have
served one run. So the links are made again here, from all turns. A call continues the newest of these; an agent that
compacts its history keeps some of them:

1. the call with whose conversation its prompt begins, the longest one, compared in the normal form of `links`;
2. the call that its turn names, if it names the call alone;
3. the call that handed out the newest tool call in its prompt;
4. the call whose answer ends the longest run of answers that its prompt repeats.

By 2 to 4 only a call with the same system prompt counts, or one that made a tool call whose results end the prompt: a
judge reads a conversation and is no part of it. A call that continues none begins a conversation: of a sub-agent, of
another sample, of a question aside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from ratchet.bus.message import JsonObject
from ratchet.core.contract.turn import Turn
from ratchet.core.rules.chat.format import ChatError, Messages
from ratchet.core.rules.chat.links import (
    EMPTY,
    answer_digest,
    call_ids,
    extended,
    is_system,
    normal_form,
    open_calls,
    prefix_digests,
    repeated_ids,
)

SHORT = 60
"""Bytes up to which an answer, in its normal form, is no evidence by itself: anyone may have said it."""
COMMON = 32
"""Calls that gave the same answer, beyond which it is no evidence at all."""
EXPLICIT = "previous_response"
"""`trajectory_by` of a call whose agent names the call that it continues."""


@dataclass(slots=True, eq=False)
class Node:
    """An answered call in the forest."""

    turn: Turn
    before: Node | None = None
    """The call on whose own messages its recorded ones follow."""
    kept: int = 0
    """How many messages of that conversation stand before its own."""
    missing: str | None = None
    """The call on which it follows, if that one is not there."""
    digests: list[bytes] = field(default_factory=list[bytes])
    """Of its prompt up to each of its own messages: of what stands before the first one, ... of the whole prompt."""
    answered: bytes = EMPTY
    """Digest of prompt and answer."""
    answer_digest: bytes = EMPTY
    """Digest of the answer alone."""
    systems: Messages = field(default_factory=list[JsonObject])
    """The system prompt: the messages before the first of another role."""
    system: bytes | None = EMPTY
    """Digest of them; None when they are not there."""
    parent: Node | None = None
    """The call that it continues."""
    continues: bool = False
    """Its prompt begins with the conversation of its parent."""
    total: int = 0
    """Messages of the whole branch up to its answer."""

    @property
    def length(self) -> int:
        """Number of messages of its prompt."""
        return self.kept + len(self.turn.messages)

    @property
    def answer(self) -> JsonObject:
        """The assistant message."""
        return {"role": "assistant", **(self.turn.response or {})}

    @property
    def age(self) -> tuple[datetime, int, int, str]:
        """The order of calls in time."""
        turn = self.turn
        return turn.timestamp, turn.index, turn.attempt, turn.turn_id

    def digest_at(self, length: int) -> bytes | None:
        """The digest of the first messages of its conversation; None beyond its end."""
        node: Node | None = self
        if length == self.length + 1:
            return self.answered
        while node is not None:
            if node.kept <= length <= node.length:
                return node.digests[length - node.kept]
            node = node.before
        return None

    def prompt(self, since: int = 0) -> Messages:
        """The prompt from a message on, as it was recorded. Raises `ChatError` when a part of it is not there."""
        parts: list[Messages] = []
        node, length = self, self.length
        while True:
            if node.missing is not None:
                raise ChatError(f"turn {node.turn.turn_id} continues turn {node.missing}, which is not there")
            conversation = [*node.turn.messages, node.answer]
            parts.append(conversation[max(0, since - node.kept) : length - node.kept])
            if node.before is None or node.kept <= since:
                return [message for part in reversed(parts) for message in part]
            node, length = node.before, min(length, node.kept)


def recorded(turns: Sequence[Turn]) -> list[Node]:
    """The answered calls with the prompts that their turns record, each after the one on which it follows."""
    answered = {turn.turn_id: turn for turn in turns if turn.response is not None}
    following: dict[str | None, list[Turn]] = {}
    for turn in answered.values():
        follows = turn.parent_turn_id if turn.parent_messages != 0 else None
        following.setdefault(follows if follows in answered else None, []).append(turn)
    nodes = [_first(turn) for turn in following.pop(None, ())]
    for node in nodes:  # grows
        nodes += [_next(turn, node) for turn in following.pop(node.turn.turn_id, ())]
    circle = [turn for part in following.values() for turn in part]  # turns that name each other
    return [*nodes, *map(_first, circle)]


def _first(turn: Turn) -> Node:
    """A call whose turn holds its whole prompt, or follows on one that is not there."""
    follows = turn.parent_turn_id if turn.parent_messages != 0 else None
    start = extended(EMPTY, {"role": "missing", "content": follows}) if follows else EMPTY
    return _with_digests(Node(turn, missing=follows), start)


def _next(turn: Turn, before: Node) -> Node:
    """A call whose turn holds what follows on another one."""
    kept = before.length + 1 if turn.parent_messages is None else turn.parent_messages
    start = before.digest_at(kept)
    while before.before is not None and before.kept >= kept:
        before = before.before
    return _first(turn) if start is None else _with_digests(Node(turn, before, kept), start)


def _with_digests(node: Node, start: bytes) -> Node:
    messages = node.turn.messages
    node.digests = prefix_digests(messages, start)
    node.answered = extended(node.digests[-1], node.answer)
    node.answer_digest = answer_digest(node.answer)
    before = node.before
    if before is not None and node.kept > len(before.systems):
        node.systems, node.system = before.systems, before.system
    elif node.missing is None:
        own = list(takewhile(is_system, messages))
        node.systems = [*before.systems[: node.kept], *own] if before else own
        node.system = node.digests[len(own)]
    else:
        node.system = None
    return node


def linked(turns: Sequence[Turn]) -> list[Node]:
    """All answered calls with their parents, each after its parent."""
    nodes = sorted(recorded(turns), key=lambda node: node.age)
    index = _Index(nodes)
    for node in nodes:
        begun = index.begun(node)
        candidates = [begun, *(older for older in index.repeated(node, begun) if older.age < node.age)]
        node.parent = max((call for call in candidates if call), key=lambda call: call.age, default=None)
        node.continues = node.parent is not None and node.parent is begun
    return _parents_first(nodes)


class _Index:
    """Finds the calls that a prompt repeats."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """`nodes` in the order of their age."""
        self._by_id = {node.turn.turn_id: node for node in nodes}
        self._by_conversation: dict[bytes, list[Node]] = {}
        self._by_answer: dict[bytes, list[Node]] = {}
        self._by_call: dict[str, list[Node]] = {}
        self._continued: dict[tuple[bytes, bytes], int] = {}
        """By conversation and prompt: how many calls have continued that conversation with that prompt."""
        for node in nodes:
            self._by_conversation.setdefault(node.answered, []).append(node)
            self._by_answer.setdefault(node.answer_digest, []).append(node)
            for call_id in call_ids(node.answer):
                self._by_call.setdefault(call_id, []).append(node)

    def begun(self, node: Node) -> Node | None:
        """The call with whose whole conversation the prompt begins: the longest one.

        Runs that are word for word the same each have their own next call.
        """
        for digest in reversed(node.digests):
            same = self._by_conversation.get(digest)
            if same:
                named = self._by_id.get(node.turn.parent_turn_id or "")
                if named is not None and named.answered == digest:
                    return named
                number = self._continued.get((digest, node.digests[-1]), 0)
                self._continued[digest, node.digests[-1]] = number + 1
                older = bisect_left(same, node.age, key=lambda call: call.age)
                return same[max(0, min(number, older - 1))]
        kept, before = node.kept, node.before
        while before is not None and before.length >= kept:
            kept, before = min(kept, before.kept), before.before
        return before

    def repeated(self, node: Node, begun: Node | None) -> Iterator[Node]:
        """Calls that a prompt repeats which does not begin with their conversation: named, called, answered."""
        named = self._by_id.get(node.turn.parent_turn_id or "") if node.turn.parent_messages == 0 else None
        if named is not None and node.turn.trajectory_by == EXPLICIT:
            yield named
        waiting = open_calls(node.turn.messages)
        for parent in (named, self._caller(node), self._answerer(node, begun)):
            if parent is None:
                continue
            is_alike = parent.system == node.system or None in {parent.system, node.system}  # as far as it is known
            if is_alike or not waiting.isdisjoint(call_ids(parent.answer)):
                yield parent

    def _caller(self, node: Node) -> Node | None:
        """The call that handed out the newest tool call in the prompt; None if several did."""
        for message in reversed(node.turn.messages):
            givers = [self._by_call.get(repeated_id, ()) for repeated_id in repeated_ids(message)]
            if any(givers):
                return next((each[0] for each in reversed(givers) if len(each) == 1), None)
        return None

    def _answerer(self, node: Node, begun: Node | None) -> Node | None:
        """The call whose answer ends the longest run of answers that the prompt repeats."""
        answers = [message for message in node.turn.messages if message.get("role") == "assistant"]
        digests = [answer_digest(message) for message in answers]
        for place in range(len(digests) - 1, -1, -1):
            same = self._by_answer.get(digests[place])
            if same:
                return _longest_run(same, digests[: place + 1], begun, answers[place])
        return None


def _longest_run(same: Sequence[Node], digests: Sequence[bytes], begun: Node | None, answer: JsonObject) -> Node | None:
    """Of calls with the same answer the one whose earlier answers the prompt repeats as well; None if several do."""
    if len(same) > COMMON:
        return begun if begun is not None and begun.answer_digest == digests[-1] else None
    runs: list[tuple[int, Node]] = []
    for node in same:
        run, current = 0, node
        while current is not None and run < len(digests) and current.answer_digest == digests[-1 - run]:
            run, current = run + 1, current.parent
        runs.append((run, node))
    longest = max(run for run, _ in runs)
    best = [node for run, node in runs if run == longest]
    if begun in best:
        return begun
    is_telling = longest > 1 or len(normal_form({**answer, "role": "assistant"})) > SHORT
    return best[0] if len(best) == 1 and is_telling else None


def _parents_first(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, each after its parent; where parents go round in a circle, the oldest begins."""
    ordered: dict[str, Node] = {}
    for node in nodes:
        line: dict[str, Node] = {}
        current: Node | None = node
        while current is not None and current.turn.turn_id not in ordered:
            if current.turn.turn_id in line:
                keys = list(line)
                circle = [line[key] for key in keys[keys.index(current.turn.turn_id) :]]
                min(circle, key=lambda call: call.age).parent = None
                line, current = {}, node
                continue
            line[current.turn.turn_id] = current
            current = current.parent
        for earlier in reversed(line.values()):
            parent = earlier.parent
            new = (
                earlier.length - parent.length if parent and earlier.continues else 2 if parent else earlier.length + 1
            )
            earlier.total = (parent.total if parent else 0) + new
            ordered[earlier.turn.turn_id] = earlier
    return list(ordered.values())
