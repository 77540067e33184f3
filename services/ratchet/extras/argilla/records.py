"""What a record of Argilla says: a prompt, and of two answers the better one.

Three shapes are read: a row that names the chosen and the rejected answer; a record as the SDK writes it (`to_json`,
`to_list`), with fields and responses; and its flat form (`to_datasets`, `to_list(flatten=True)`), whose answers to a
question stand in `<question>.responses`. Where a record holds two answers, its judges decide: the majority of those
whose response was submitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ratchet.bus.message import JsonObject
from ratchet.core.rules.chat.format import ChatError, normal, text_of

PROMPTS = ("prompt", "instruction", "question", "input", "messages", "conversation")
"""Fields that may hold the prompt, the first that is there."""
MEMBERS = ("role", "content", "reasoning_content", "reasoning", "thinking", "tool_calls", "tool_call_id", "name")
"""Members of a message that a template may read. Others, a writer's id or time, are no part of a conversation."""
_ANSWER = re.compile(r"(?:response|answer|completion|generation|output)s?[-_ ]?([ab12])", re.IGNORECASE)
_PLACE = re.compile(r"(?:.*[-_ ])?([ab12])", re.IGNORECASE)
_SUBMITTED = "submitted"

Reason = Literal["malformed", "unjudged", "empty", "identical", "too_short", "too_long", "duplicate"]
"""Why a record makes no row: members of `Dropped`."""


class Unusable(Exception):
    """A record that makes no pair."""

    def __init__(self, reason: Reason, problem: str) -> None:
        """`problem`: what is wrong with the record, in words that quote no text of it."""
        super().__init__(f"{reason}: {problem}")
        self.reason: Reason = reason
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Pair:
    """Messages in OpenAI's form."""

    prompt: list[JsonObject]
    chosen: list[JsonObject]
    rejected: list[JsonObject]


def pair_of(record: object) -> Pair:
    """Raises `Unusable` with `malformed`, `unjudged`, `empty` or `identical`."""
    if not isinstance(record, dict):
        raise Unusable("malformed", "it is not a JSON object")
    document = cast("JsonObject", record)
    fields: object = document.get("fields")
    values = cast("JsonObject", fields) if isinstance(fields, dict) else document
    if values.get("chosen") is None and values.get("rejected") is None:
        chosen, rejected = _judged(values, document)
    else:
        chosen, rejected = values.get("chosen"), values.get("rejected")
    sides = (("chosen", chosen), ("rejected", rejected))
    given = next((values[name] for name in PROMPTS if values.get(name) is not None), None)
    answers = [_messages(side, "assistant", f"the {name} answer") for name, side in sides]
    pair = _of_messages(given, *answers)
    if not _has_text(pair.prompt):
        raise Unusable("empty", f"the prompt has no text: it is looked for in {', '.join(PROMPTS)}")
    written = ([message for message in side if message["role"] == "assistant"] for side in (pair.chosen, pair.rejected))
    if not all(map(_has_text, written)):
        raise Unusable("empty", "an answer has no text")
    if pair.chosen == pair.rejected:
        raise Unusable("identical", "both answers are equal")
    return pair


def _of_messages(given: object, chosen: list[JsonObject], rejected: list[JsonObject]) -> Pair:
    """Without a prompt of their own both conversations begin with it."""
    prompt = None if given is None else _messages(given, "user", "the prompt")
    if prompt is None or (prompt and chosen[: len(prompt)] == prompt == rejected[: len(prompt)]):
        shared = next((n for n, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other), None)
        shared = min(len(chosen), len(rejected)) if shared is None else shared
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if any(message["role"] not in ("assistant", "tool") for side in (chosen, rejected) for message in side):
        raise Unusable("malformed", "an answer holds a message that is neither the assistant's nor a tool's")
    return Pair(prompt, chosen, rejected)


def _messages(value: object, role: str, what: str) -> list[JsonObject]:
    """Text is one message of that role. `what`: the value, for people. Raises `Unusable`."""
    if isinstance(value, str):
        return [{"role": role, "content": value.strip()}]
    if not isinstance(value, list):
        raise Unusable("malformed", f"{what} is neither a text nor a list of messages")
    messages: list[JsonObject] = []
    for index, message in enumerate(cast("list[object]", value)):
        if not isinstance(message, dict):
            raise Unusable("malformed", f"message {index} of {what} is not a JSON object")
        try:
            members = normal(cast("JsonObject", message), index)
        except ChatError as error:
            raise Unusable("malformed", f"in {what}, {error}") from error
        kept = {name: members[name] for name in MEMBERS if members.get(name) is not None}
        odd = [name for name, part in kept.items() if name != "tool_calls" and not isinstance(part, str)]
        if odd:
            raise Unusable("malformed", f"{odd[0]} of message {index} of {what} is not a text")
        messages.append(kept)
    return messages


def _has_text(messages: Sequence[JsonObject]) -> bool:
    return any(text_of(message.get("content")).strip() or message.get("tool_calls") for message in messages)


def _judged(values: Mapping[str, object], document: Mapping[str, Any]) -> tuple[object, object]:
    """The better and the worse of two answers. Raises `Unusable`."""
    answers = {match[1].lower(): value for name, value in values.items() if (match := _ANSWER.fullmatch(name))}
    if len(answers) != 2 or None in answers.values():
        raise Unusable(
            "malformed", "it has no chosen and rejected answer, and not two to judge: response_a, response_b"
        )
    votes = Counter(place for judgement in _judgements(document) if (place := _place(judgement)) in answers)
    if not votes:
        raise Unusable("unjudged", "no submitted response names one of the answers")
    (best, count), *others = votes.most_common()
    if others and others[0][1] == count:
        raise Unusable("unjudged", f"each answer has {count} of the votes")
    (worse,) = set(answers) - {best}
    return answers[best], answers[worse]


def _judgements(document: Mapping[str, Any]) -> Iterator[object]:
    """What judges answered. The nested form does not say who only saved a draft."""
    nested: object = document.get("responses")
    if isinstance(nested, dict):
        for answered in cast("dict[str, object]", nested).values():
            for response in cast("list[object]", answered) if isinstance(answered, list) else []:
                members = cast("JsonObject", response) if isinstance(response, dict) else {}
                if members.get("status", _SUBMITTED) == _SUBMITTED:
                    yield members.get("value")
        return
    for name, value in document.items():
        if name.endswith(".responses") and isinstance(value, list):
            values = cast("list[object]", value)
            states: object = document.get(f"{name}.status")
            known = cast("list[object]", states) if isinstance(states, list) else [_SUBMITTED] * len(values)
            yield from (answer for answer, state in zip(values, known, strict=False) if state == _SUBMITTED)


def _place(judgement: object) -> str | None:
    """The answer that a label names, or that a ranking has first: `a`, `response_b`, `["response-2", "response-1"]`."""
    if isinstance(judgement, list):
        ranking = cast("list[object]", judgement)
        members = [cast("JsonObject", entry) for entry in ranking if isinstance(entry, dict)]
        if members:
            ranks = [rank if isinstance(rank := member.get("rank"), int) else len(members) for member in members]
            first = min(ranks)
            return _place(members[ranks.index(first)].get("value")) if ranks.count(first) == 1 else None
        return _place(ranking[0]) if ranking else None
    match = _PLACE.fullmatch(judgement.strip()) if isinstance(judgement, str) else None
    return match[1].lower() if match else None
