"""Spans of one trace, put together from their parts, and what lies within what.

Nothing here trusts a sender: parents may be missing, go round in a circle, or be a million levels deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.contract.spans import AGENT, INFERENCE, OTHER, Span, SpanMessage, Spans

Key = tuple[str, str]
"""Service and span id."""
MOST_EVENTS = 1000
"""Of one span: a chat has as many messages at most."""
MOST_ANSWERS = 16
"""Of one call: each becomes a turn and a trajectory, which repeat the prompt. A megabyte with hundreds of answers would
be hundreds of megabytes."""
_RANK = {None: 0, OTHER: 1}
"""What says less of a span's kind gives way."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans of a trace."""

    spans: Mapping[Key, Span]
    parents: Mapping[Key, Key]
    conflicts: int = 0
    """Parts that say something else of a span that had ended: its id was used twice. The first counts."""

    def enclosing(self, holds: Callable[[Span], bool]) -> Mapping[Key, Key | None]:
        """By span, the nearest one around it, itself left out, of which `holds` is true."""
        nearest: dict[Key, Key | None] = {}
        for start in self.spans:
            line: dict[Key, None] = {}
            key: Key | None = start
            while key is not None and key not in nearest and key not in line:
                line[key] = None
                key = self.parents.get(key)
            around = None
            if key is not None and key not in line:
                around = key if holds(self.spans[key]) else nearest[key]
            for inner in reversed(line):
                nearest[inner] = around
                around = inner if holds(self.spans[inner]) else around
        return nearest


def tree_of(batches: Iterable[Spans]) -> Tree:
    """The spans of these batches, oldest batch first."""
    spans: dict[Key, Span] = {}
    conflicts = 0
    for batch in batches:
        for part in batch.spans:
            key = batch.service, part.span_id
            known = spans.get(key)
            if known is None:
                spans[key] = part
            elif known.ended_at and part.ended_at and (known.name, known.started_at) != (part.name, part.started_at):
                conflicts += 1
            else:
                spans[key] = merged(known, part)
    by_id: dict[str, Key] = {}
    for key, span in spans.items():
        if span.ended_at is not None:
            by_id.setdefault(key[1], key)
    for key in [key for key, span in spans.items() if span.ended_at is None and key[1] in by_id]:
        own = by_id[key[1]]  # an evaluator, say, tells something of another service's span
        spans[own] = merged(spans[own], spans.pop(key))
    parents: dict[Key, Key] = {}
    for key, span in spans.items():
        own = key[0], span.parent_span_id or ""
        parent = own if own in spans else by_id.get(own[1])
        if parent is not None and parent != key:
            parents[key] = parent
    return Tree(spans, parents, conflicts)


def merged(first: Span, second: Span) -> Span:
    """A span of two parts: what the first does not say, the second does; events of both count, each once."""
    missing = {
        name: value
        for name in first.__struct_fields__
        if getattr(first, name) in (None, "", False) and (value := getattr(second, name)) not in (None, "", False)
    }
    if _RANK.get(second.kind, 2) > _RANK.get(first.kind, 2):
        missing["kind"] = second.kind
    for name in ("messages", "evaluations"):
        mine, other = getattr(first, name) or [], getattr(second, name) or []
        if mine and other:
            each = {msgspec.json.encode(event): event for event in (*mine, *other)}
            missing[name] = [*each.values()][:MOST_EVENTS]
    return msgspec.structs.replace(first, **missing)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a call got and gave back."""

    prompt: Sequence[JsonObject]
    answers: Sequence[JsonObject]
    left_out: int = 0
    """Answers beyond `MOST_ANSWERS`."""

    @property
    def is_whole(self) -> bool:
        """Whether something of both is there."""
        return any(message.get("content") for message in self.prompt) and any(map(_speaks, self.answers))


def exchange_of(span: Span) -> Exchange:
    """What a span says: as a whole, or message by message."""
    ordered: list[SpanMessage] = sorted(span.messages or (), key=lambda event: event.at)
    prompt = span.prompt or [event.message for event in ordered if not event.is_answer]
    answers = span.answers or [event.message for event in ordered if event.is_answer]
    return Exchange(prompt, answers[:MOST_ANSWERS], max(len(answers) - MOST_ANSWERS, 0))


def _speaks(answer: JsonObject) -> bool:
    return bool(answer.get("content") or answer.get("tool_calls") or answer.get("reasoning_content"))


@dataclass(frozen=True, slots=True)
class Calls:
    """The model calls of a trace."""

    whole: Mapping[Key, Span]
    """Those whose content is there, or which failed."""
    silent: int
    """Those of which nothing was exchange."""
    recorded: int
    """Those that the gateway has recorded itself."""


def calls_of(tree: Tree, marked: Set[Key]) -> Calls:
    """The calls, each once: instrumentations of a framework and of a provider's SDK both report it, one span within
    the other or beside it, and the innermost with content counts. `marked`: spans of calls that the gateway recorded.

    Where no call of an agent was reported, the agent's own span counts, if it says what was exchange.
    """
    around = tree.enclosing(lambda span: span.kind == INFERENCE)
    inferences = [key for key, span in tree.spans.items() if span.kind == INFERENCE]
    recorded = marked | _upwards(marked, around)
    speaking = {key for key in inferences if _counts(tree.spans[key])}
    outer = _upwards(speaking, around)
    counted = speaking - outer - recorded
    whole = {key: tree.spans[key] for key in inferences if key in counted}
    by_answer = {answer: key for key, span in reversed(whole.items()) if (answer := _answer_id(span))}
    whole = {key: span for key, span in whole.items() if by_answer.get(_answer_id(span) or "", key) == key}
    silent = 0
    for key in inferences:
        if key in speaking or key in outer:
            continue
        shell = around[key] or by_answer.get(_answer_id(tree.spans[key]) or "")
        if shell is None:
            silent += key not in recorded
        elif shell in whole:
            whole[shell] = merged(whole[shell], tree.spans[key])
    agents = tree.enclosing(lambda span: span.kind == AGENT)
    reported = _upwards([*inferences], agents)
    alone = {key for key, span in tree.spans.items() if span.kind == AGENT and exchange_of(span).is_whole} - reported
    whole |= {key: tree.spans[key] for key in alone - _upwards(alone, agents)}
    return Calls(whole, silent, sum(key in recorded for key in inferences if around[key] is None))


def _answer_id(span: Span) -> str | None:
    return span.provider.id if span.provider else None


def _counts(span: Span) -> bool:
    exchange = exchange_of(span)
    return exchange.is_whole or (span.error is not None and bool(exchange.prompt))


def _upwards(keys: Iterable[Key], around: Mapping[Key, Key | None]) -> set[Key]:
    """What lies around these, at any distance."""
    outer: set[Key] = set()
    for key in keys:
        above = around[key]
        while above is not None and above not in outer:
            outer.add(above)
            above = around[above]
    return outer
