"""From the gateway's turns of one trajectory id to the conversations that they hold, their chats and entries.

A conversation is a line of calls that continue one another (`forest`). Where several continue the same call, the branch
with the longest conversation goes on with it, and each other branch is a conversation of its own, which begins with the
history that they share: workers that get the planner's history, a question aside, a way that the agent gave up. Only
calls with equal prompts may be attempts of one call: those that nothing continues give way to the one that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from ratchet.core.contract.trajectory import Action, TrajectoryTurn, TurnResult
from ratchet.core.contract.turn import Turn
from ratchet.core.rules.chat.forest import Node, linked, recorded
from ratchet.core.rules.chat.format import ChatError, Messages, normal
from ratchet.core.rules.chat.links import answer_digest
from ratchet.core.rules.chat.to_entries import Call, trajectory_turns

SHARED = 50
"""Messages of a shared history that a branch repeats in its entries, the last ones; the conversation that it left has
all of them, and so has the branch's chat."""


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """A conversation as it was assembled before: its calls stay in it."""

    calls: frozenset[str]
    """Their ids."""
    is_final: bool = False
    """No call is added to it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A chat that a policy has seen as a whole: of a conversation, or of its part since its agent compacted it."""

    messages: Messages
    calls: Mapping[int, Turn]
    """The calls by the index of their answer in `messages`. Other answers come from elsewhere."""

    @property
    def own_from(self) -> int:
        """Index of the first answer that is its own: those before it stand in an earlier segment, or in the prompt."""
        return min(self.calls)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Calls that continue one another, first to last."""

    calls: Sequence[Turn]
    prompt_digest: str
    """Of the first prompt, in its normal form: equal for several samples of one question."""
    last: Node
    earlier: Earlier | None = None
    """What it was when it was assembled before."""
    is_branch: bool = False
    """It begins with the history of another one."""

    @property
    def root(self) -> Turn:
        """The call that began it."""
        return self.calls[0]

    def segments(self, shared: int | None = None) -> list[Segment]:
        """Every call's answer stands in exactly one of them. Raises `ChatError` when a part is not there.

        `shared`: how much the first one has at most of the history that a branch shares with another conversation.
        """
        segments: list[Segment] = []
        line = [self.last]
        while len(line) < len(self.calls) and line[-1].parent is not None:
            line.append(line[-1].parent)
        is_cut = shared is not None and self.is_branch and all(node.continues for node in line[:-1])
        since = line[-1].length - shared if shared is not None and is_cut else 0
        own = {turn.turn_id for turn in self.calls}
        last: Node | None = self.last
        while last is not None and last.turn.turn_id in own:
            segment, last = _segment(last, own, since)
            segments.append(segment)
        return segments[::-1]


@dataclass(frozen=True, slots=True)
class Split:
    """What the turns of one trajectory id in one role add up to."""

    conversations: Sequence[Conversation]
    """First the one that spans the most time, of those that begin by themselves: an orchestrator's begins before and
    ends after those of its sub-agents."""
    repeated: Sequence[Turn]
    """Answered calls that are in none: another answer to the same prompt counts."""


def split(turns: Sequence[Turn], earlier: Iterable[Earlier] = ()) -> Split:
    """The conversations among these turns. `earlier`: those that were assembled before, the trajectory's own first."""
    tree = _Tree(linked(turns), tuple(earlier))

    def importance(conversation: Conversation) -> tuple[bool, timedelta, _Rank]:
        times = [turn.timestamp for turn in conversation.calls]
        return not conversation.is_branch, max(times) - min(times), _rank(conversation.last)

    every = sorted(map(tree.conversation, filter(tree.begins, tree.nodes)), key=importance, reverse=True)
    return Split(every, [node.turn for node in tree.nodes if node.turn.turn_id in tree.repeated])


def conversations(turns: Sequence[Turn]) -> Sequence[Conversation]:
    """The conversations of turns of which none was assembled before."""
    return split(turns).conversations


def beginnings(turns: Sequence[Turn]) -> list[str]:
    """Ids of the calls that may have begun a conversation when fewer of these turns were known."""
    nodes = linked(turns)
    following = Counter(node.parent.turn.turn_id for node in nodes if node.parent)
    return [node.turn.turn_id for node in nodes if not node.parent or following[node.parent.turn.turn_id] > 1]


class _Tree:
    """Calls, and which of those that continue it goes on with the conversation of each."""

    def __init__(self, nodes: Sequence[Node], earlier: Sequence[Earlier]) -> None:
        """`nodes`: each after its parent."""
        self.nodes = nodes
        self._first = earlier[0] if earlier else None
        self._held = {call: turn for turn in reversed(earlier) for call in turn.calls}
        self._following: dict[str, list[Node]] = {}
        for node in nodes:
            if node.parent is not None:
                self._following.setdefault(node.parent.turn.turn_id, []).append(node)
        self._best: dict[str, _Rank] = {}
        for node in reversed(nodes):
            key = node.turn.turn_id
            self._best[key] = max([_rank(node), *(self._best[later.turn.turn_id] for later in self._after(node))])
        self.repeated = {node.turn.turn_id for siblings in self._following.values() for node in self._spare(siblings)}
        self._next = {node.turn.turn_id: self._successor(node) for node in nodes}

    def begins(self, node: Node) -> bool:
        """Whether a conversation begins with this call."""
        if node.turn.turn_id in self.repeated:
            return False
        return node.parent is None or self._next[node.parent.turn.turn_id] is not node

    def conversation(self, first: Node) -> Conversation:
        """The conversation that begins with this call."""
        line = [first]
        while (following := self._next[line[-1].turn.turn_id]) is not None:
            line.append(following)
        calls = [node.turn for node in line]
        held = next((self._held[call.turn_id] for call in calls if call.turn_id in self._held), None)
        return Conversation(calls, first.digests[-1].hex(), line[-1], held, first.parent is not None)

    def _after(self, node: Node) -> Sequence[Node]:
        return self._following.get(node.turn.turn_id, ())

    def _spare(self, siblings: Sequence[Node]) -> Iterator[Node]:
        """Of calls with equal prompts after one answer those that nothing continues, but for the one that counts."""
        attempts: dict[bytes, list[Node]] = {}
        for node in siblings:
            attempts.setdefault(node.digests[-1], []).append(node)
        for same in attempts.values():
            used = [node for node in same if self._after(node) or node.turn.turn_id in self._held]
            kept = used or [max(same, key=_rank)]
            yield from (node for node in same if node not in kept)

    def _successor(self, node: Node) -> Node | None:
        """Of the calls that continue this one the one that goes on with its conversation."""
        held = self._held.get(node.turn.turn_id)
        after = [later for later in self._after(node) if later.turn.turn_id not in self.repeated]
        among = [later for later in after if held is not None and self._held.get(later.turn.turn_id) is held]
        if not among and (held is None or not held.is_final):
            among = [later for later in after if later.turn.turn_id not in self._held]
        if not among and held is None and self._first is not None and not self._first.is_final:
            among = [later for later in after if self._held.get(later.turn.turn_id) is self._first]
        return max(among, key=lambda later: self._best[later.turn.turn_id], default=None)


def chain_of_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The calls of the conversation that is the trajectory, first to last.

    Raises `ChatError` when a call that it continues is not there.
    """
    every = conversations(turns)
    if not every:
        return []
    every[0].segments()
    return list(every[0].calls)


def chat_of_turns(turns: Sequence[Turn], last: str) -> Messages:
    """The chat up to the answer of the call `last`: since its agent compacted it. Raises `ChatError`."""
    return readable(next(([*node.prompt(), node.answer] for node in recorded(turns) if node.turn.turn_id == last), []))


def conversation_of(turns: Sequence[Turn], calls: Sequence[str]) -> Conversation | None:
    """The conversation that was assembled of these calls, first to last; None when the last one has no answer.

    `turns`: all that were recorded with them.
    """
    own = set(calls)
    line = [node for node in linked(turns) if calls and node.turn.turn_id == calls[-1]]
    while line and line[-1].parent is not None and line[-1].parent.turn.turn_id in own:
        line.append(line[-1].parent)
    if not line:
        return None
    first = line[-1]
    called = [node.turn for node in reversed(line)]
    return Conversation(called, first.digests[-1].hex(), line[0], is_branch=first.parent is not None)


def readable(chat: Messages) -> Messages:
    """The chat itself. Raises `ChatError` when it holds an invalid message."""
    for index, message in enumerate(chat):
        normal(message, index)
    return chat


def prompt_of_turn(turns: Sequence[Turn], turn_id: str) -> Messages:
    """The whole prompt of an answered call among these. Raises `ChatError` when a part of it is not there."""
    return next(node for node in recorded(turns) if node.turn.turn_id == turn_id).prompt()


def assembled_turns(turns: Sequence[Turn]) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions and entries of a trajectory known only by its gateway turns. Raises `ChatError`."""
    every = conversations(turns)
    return entries_of(every[0]) if every else ("", [])


def entries_of(conversation: Conversation) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions and the entries of a conversation, part by part. Raises `ChatError`."""
    instructions: list[str] = []
    entries: list[TrajectoryTurn] = []
    for segment in conversation.segments(SHARED):
        calls = {place: Call(turn.turn_id, turn.timestamp) for place, turn in segment.calls.items()}
        first = segment.calls[min(segment.calls)]
        before = len(entries)
        text, new = trajectory_turns(segment.messages, started_at=first.timestamp, calls=calls, entries_before=before)
        instructions.append(text)
        entries += new
    return instructions[0], entries


def failed_entries(turn: Turn, error: str) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions and the only entry of a run whose call was not answered, as far as its prompt can be read."""
    prompt = [*turn.messages, {"role": "assistant", "content": ""}]
    calls = {len(turn.messages): Call(turn.turn_id, turn.timestamp)}
    try:
        instructions, entries = trajectory_turns(prompt, started_at=turn.timestamp, calls=calls)
    except ChatError:
        last = {0: Call(turn.turn_id, turn.timestamp)}
        instructions, entries = trajectory_turns(prompt[-1:], started_at=turn.timestamp, calls=last)
    result = TurnResult(success=False, error=error)
    return instructions, [msgspec.structs.replace(entries[-1], action=Action(type="response"), result=result)]


_Rank = tuple[int, int, int, datetime, str]


def _rank(node: Node) -> _Rank:
    """The longest branch counts; of equal ones the later."""
    turn = node.turn
    return node.total, turn.index, turn.attempt, turn.timestamp, turn.turn_id


def _segment(last: Node, own: Set[str], since: int) -> tuple[Segment, Node | None]:
    """The chat that ends with this call, and the newest call before it whose answer is not in it.

    `own`: the calls of its conversation; answers of others in the chat come from elsewhere. `since`: from which message
    on the chat is asked for, beside the system prompt.
    """
    is_cut = since > len(last.systems)
    messages = [*(last.systems if is_cut else ()), *last.prompt(since if is_cut else 0), last.answer]
    calls = {len(messages) - 1: last.turn}
    earlier, place = last.parent, len(messages) - 2
    while earlier is not None and earlier.turn.turn_id in own:
        while place >= 0 and not (
            messages[place].get("role") == "assistant" and answer_digest(messages[place]) == earlier.answer_digest
        ):
            place -= 1
        if place < 0:
            break
        calls[place] = earlier.turn
        earlier, place = earlier.parent, place - 1
    return Segment(messages, calls), earlier
