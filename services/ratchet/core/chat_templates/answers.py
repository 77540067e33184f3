"""Where in a rendered conversation the policy's own words lie.

A template is judged by what it renders, never by its source: each answer lies between what asks for it (all before it,
with the generation prompt) and all up to its end. Rendering every beginning of a conversation costs the square of its
length, as much as encoding it at 30 calls; no quicker way is right for every template: searching for the
tokens around answers was wrong for those that render a chat of one turn otherwise than one of several (Qwen3).
"""

from __future__ import annotations

import os.path
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.messages import reasoning_of
from ratchet.core.chat_templates.template import ChatTemplate, Hidden
from ratchet.core.errors import BadRequest

_OPENED = re.compile(r"<think>\s*\Z")
"""What asks for an answer begins its reasoning."""
_CLOSED = re.compile(r"\s*</think>\n{0,2}")
_OTHER = "\ue000"
"""A character for private use."""
_EMPTY = re.compile(r"\s*<think>\s*</think>\n{0,2}")


class Unrenderable(Exception):
    """A template cannot show what the policy said; the reason is for people."""


@dataclass(slots=True)
class Answer:
    """One answer in a rendered text."""

    text: str
    begin: int
    end: int
    empty_thought: bool = False
    """The template wrote an empty reasoning before it, which is context."""
    lost: frozenset[str] = frozenset()
    """What of it the template does not show: `text`, `reasoning`."""


@dataclass(slots=True)
class Rendered:
    """A text with one or more answers in it."""

    text: str
    answers: list[Answer] = field(default_factory=list[Answer])


def rendered_answers(template: ChatTemplate, chat: Hidden, places: Sequence[int]) -> list[Rendered]:
    """Texts in which the answers at `places` lie, each in exactly one: as few as the template allows.

    One text where earlier answers look in it as they did when they were given. Raises `Unrenderable`.
    """
    if not template.form.renders_calls and any(chat.messages[place].get("tool_calls") for place in places):
        raise Unrenderable("the chat template renders no tool calls")
    candidates = [_answer(template, chat, place) for place in places]
    answers = [candidate for candidate in candidates if candidate is not None]
    if len(answers) < len(candidates):
        answers = _marked(template, chat, places)
    for answer, place in zip(answers, places, strict=True):
        answer.lost = _lost(answer, chat.messages[place])
    texts: list[Rendered] = []
    for answer in answers:
        if not texts or not answer.text.startswith(texts[-1].text):
            texts.append(Rendered(answer.text))
        texts[-1].text = answer.text
        texts[-1].answers.append(answer)
    return texts


def _answer(template: ChatTemplate, chat: Hidden, place: int) -> Answer | None:
    """The answer behind what asks for it; None where the template does not render it so."""
    message = chat.messages[place]
    before = _render(template, chat.messages[:place], chat.tools, ask=True)
    after = _render(template, [*chat.messages[:place], message], chat.tools, ask=False)
    text = after if after.startswith(before) else _continued(before, after, message)
    if text is None:
        others = _render(template, [*chat.messages[:place], _changed(message)], chat.tools, ask=False)
        known = os.path.commonprefix([after, others])  # noqa: RUF071 - of characters
        text = _spliced(before, known, after, chat.messages[place - 1 : place])
    if text is not None:
        return _without_empty_thought(text, len(before), message)
    if "reasoning_content" not in message:
        return None
    # A prompt that begins the answer proper, for models that are asked not to reason.
    silent = {name: value for name, value in message.items() if name != "reasoning_content"}
    return _answer(template, replace(chat, messages=[*chat.messages[:place], silent]), place)


def _render(template: ChatTemplate, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, ask: bool) -> str:
    try:
        return template.render(messages, tools, ask=ask)
    except BadRequest as error:
        raise Unrenderable(str(error)) from error


def _changed(message: JsonObject) -> JsonObject:
    """An answer of the same kind with other words: what stays in the rendered text is not its own."""
    changed = {name: _OTHER for name in ("content", "reasoning_content") if message.get(name)}
    calls: list[JsonObject] = message.get("tool_calls") or []
    other = [{**call, "function": {**call["function"], "name": _OTHER}} for call in calls]
    return {**message, **changed, **({"tool_calls": other} if other else {})}


def _spliced(before: str, known: str, after: str, last: Sequence[JsonObject]) -> str | None:
    """What asks for an answer, and the answer, where the template renders earlier messages otherwise behind it.

    Mistral's shows the system prompt only before the newest message. `known`: what of `after` does not depend on the
    answer; the answer begins behind the longest part of it with which the prompt ends, `last` message and all.
    """
    fits = bisect_left(range(1, len(before) + 1), x=True, key=lambda size: before[-size:] not in known)
    shared = before[len(before) - fits :]
    asked = str(last[0].get("content") or "").strip() if last else ""
    if not asked or asked not in shared:
        return None
    return before + after[known.rfind(shared) + len(shared) :]


def _continued(before: str, after: str, message: JsonObject) -> str | None:
    """The text of an answer whose reasoning the prompt begins, where the template forgets it in the history.

    DeepSeek R1's does: `<think>` stands in the prompt alone. The policy goes on there, with its reasoning if it is
    known, and closes it before what the template renders.
    """
    opened = _OPENED.search(before)
    if opened is None or not after.startswith(before[: opened.start()]):
        return None
    rest = after[opened.start() :]
    if rest.lstrip().startswith("<think>"):
        return before + rest.lstrip().removeprefix("<think>").lstrip("\n")
    thought, _ = _parted(message)
    return "".join((before, thought, "\n</think>\n\n", rest.lstrip("\n")))


def _without_empty_thought(text: str, begin: int, message: JsonObject) -> Answer:
    """An empty reasoning that the policy did not write is context: it does not learn to think nothing."""
    thought, _ = _parted(message)
    wrote = "</think>" in str(message.get("content") or "")
    empty = None
    if not thought and not wrote:
        empty = _EMPTY.match(text, begin)
        if empty is None and _OPENED.search(text, max(0, begin - 64), begin):
            empty = _CLOSED.match(text, begin)
    return Answer(text, begin if empty is None else empty.end(), len(text), empty is not None)


def _marked(template: ChatTemplate, chat: Hidden, places: Sequence[int]) -> list[Answer]:
    """Answers by the template's own marks, where rendering beginnings says nothing."""
    if not template.marks_answers:
        raise Unrenderable("the chat template renders an answer differently from what it asks for")
    try:
        text, spans = template.marked(chat.messages, chat.tools)
    except BadRequest as error:
        raise Unrenderable(str(error)) from error
    everywhere = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if len(spans) != len(everywhere):
        raise Unrenderable("the chat template does not mark each answer once")
    return [Answer(text, *spans[everywhere.index(place)]) for place in places]


def _lost(answer: Answer, message: JsonObject) -> frozenset[str]:
    """What the template left out. Raises `Unrenderable` when that is a call, or all of the answer."""
    shown = answer.text[answer.begin : answer.end]
    thought, texts = _parted(message)
    parts = {"text": texts, "reasoning": [thought]}
    lost = {name for name, some in parts.items() if any(text.strip() not in shown for text in some)}
    calls: list[JsonObject] = [call["function"] for call in message.get("tool_calls") or []]
    elsewhere = [text for name, some in parts.items() if name not in lost for text in some]
    elsewhere += [str(call["arguments"]) for call in calls]
    for name, count in Counter(call["name"] for call in calls).items():
        if shown.count(name) < count + sum(text.count(name) for text in elsewhere):
            raise Unrenderable("the chat template leaves out tool calls")
    if "text" in lost and not calls:
        raise Unrenderable("the chat template leaves out what the assistant says")
    return frozenset(lost)


def _parted(message: JsonObject) -> tuple[str, list[str]]:
    """The reasoning and the texts of an answer, also where one stands among the others in its content."""
    content, thought = str(message.get("content") or ""), reasoning_of(message).strip()
    before, closing, after = content.rpartition("</think>")
    if thought or not closing:
        return thought, [content]
    first, _, inside = before.rpartition("<think>")
    return inside.strip(), [first, after]
