"""One tokenizer's chat template: messages in, token ids out, and where in the text each of them begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jinja2
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.control_tokens import ControlTokens, Marks
from ratchet.core.chat_templates.messages import (
    PROBE,
    PROBE_ARGUMENTS,
    PROBE_CALL,
    PROBE_TOOLS,
    form_of,
    template_messages,
)
from ratchet.core.chat_templates.tool_formats import DEFAULT_TOOL_FORMAT, TOOL_FORMATS
from ratchet.core.errors import BadRequest, Rejected
from ratchet.core.rules.model_hub import why_not_loaded

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""As transformers looks for a template's own marks around answers."""
_REFUSALS = (jinja2.TemplateError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What a template raises for messages that it cannot render."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Messages fit for the template, in which control tokens written as text are hidden."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject]
    marks: Marks


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, and where in it each of them begins and ends."""

    ids: list[int]
    begins: list[int]
    ends: list[int]


class ChatTemplate:
    """Renders and encodes as one tokenizer does. Thread-safe: nothing here changes it."""

    def __init__(self, tokenizer: Any, tool_format: str | None = None) -> None:
        """`tokenizer`: of transformers (`Any`: it carries no usable types). `tool_format`: else what it declares as
        `ratchet_tool_format`, else the format in which the template writes a call.

        Raises `Rejected` for an unknown tool format.
        """
        self.tokenizer = tokenizer
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.special = ControlTokens([*tokenizer.all_special_tokens, *special])
        self.form = form_of(self._plain)
        self.tool_format = tool_format or tokenizer.init_kwargs.get("ratchet_tool_format") or self._rendered_format()
        if self.tool_format not in TOOL_FORMATS:
            known = ", ".join(sorted(TOOL_FORMATS))
            raise Rejected(f"unknown ratchet_tool_format {self.tool_format!r}; known: {known}")
        self.format = TOOL_FORMATS[self.tool_format]
        self.control = ControlTokens([*self.special.texts, *self.format.markers])
        self.marks_answers = bool(_GENERATION.search(str(tokenizer.chat_template or "")))
        """The template says itself which text is the policy's."""

    def hidden(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Hidden:
        """Messages for `render`. Raises `BadRequest`.

        A control token that was written as text is that text, spelled with ordinary tokens. Only in what the policy
        itself has said may the markers of a tool call stand: a malformed call is rendered as it was written.
        """
        shaped = template_messages(messages, self.form)
        try:
            marks = Marks(self.control, [*shaped, *tools])
            hidden = [
                marks.hide(message, self.format.markers if message["role"] == "assistant" else ()) for message in shaped
            ]
            return Hidden(hidden, marks.hide(list(tools)), marks)
        except RecursionError as error:
            raise BadRequest("the messages are nested too deeply") from error

    def render(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, ask: bool) -> str:
        """The text of hidden messages; `ask`: with what asks for the next answer. Raises `BadRequest`."""
        try:
            return self.tokenizer.apply_chat_template(
                [list(messages)], tools=list(tools) or None, tokenize=False, add_generation_prompt=ask
            )[0]
        except _REFUSALS as error:
            raise BadRequest(f"the chat template refuses these messages: {error}") from error

    def marked(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> tuple[str, list[tuple[int, int]]]:
        """The text of hidden messages, and the parts of it that the template marks as the policy's."""
        try:
            texts, places = cast(
                "tuple[list[str], list[list[tuple[int, int]]]]",
                render_jinja_template(
                    [[{name: value for name, value in message.items() if value is not None} for message in messages]],
                    tools=list(tools) or None,
                    chat_template=self.tokenizer.get_chat_template(None, list(tools) or None),
                    return_assistant_tokens_mask=True,
                    **self.tokenizer.special_tokens_map,
                ),
            )
        except _REFUSALS as error:
            raise BadRequest(f"the chat template refuses these messages: {error}") from error
        return texts[0], places[0]

    def ids(self, text: str, marks: Marks) -> list[int]:
        """Token ids of a rendered text."""
        pieces = [piece for part in marks.parts(text) for piece in self._pieces(*part)]
        return [index for piece in pieces for index in self.tokenizer(piece, add_special_tokens=False)["input_ids"]]

    def encode(self, texts: Sequence[tuple[str, Marks]]) -> list[Encoded]:
        """Token ids of rendered texts with their places; many at once are encoded on several processors."""
        parts = [marks.parts(text) for text, marks in texts]
        plain = [text for some in parts for text, literal in some if not literal]
        known: list[Any] = []
        if plain:
            encoded = self.tokenizer(plain, add_special_tokens=False, return_offsets_mapping=True)
            known = list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
        places = iter(known)
        return [self._joined(some, places) for some in parts]

    def _joined(self, parts: Sequence[tuple[str, bool]], known: Any) -> Encoded:
        joined, place = Encoded([], [], []), 0
        for text, literal in parts:
            if literal:  # one character in the rendered text stands for all of it
                pieces = self._pieces(text, literal)
                ids = [index for piece in pieces for index in self.tokenizer(piece, add_special_tokens=False).input_ids]
                offsets, width = [(0, 1)] * len(ids), 1
            else:
                (ids, offsets), width = next(known), len(text)
            joined.ids.extend(ids)
            joined.begins.extend(place + begin for begin, _ in offsets)
            joined.ends.extend(place + end for _, end in offsets)
            place += width
        return joined

    def _pieces(self, text: str, literal: bool) -> Sequence[str]:
        """Texts to encode one by one. In those of a hidden control token there is none: no tokenizer can be relied on
        to spell it out itself."""
        if not literal:
            return (text,)
        halves = (text[:1], text[1:])
        return list(text) if any(map(self.control.within, halves)) else halves

    def _rendered_format(self) -> str:
        """The first format that reads the template's own rendering of a call as that call; the default without any."""
        if not (self.tokenizer.chat_template and self.form.renders_calls):
            return DEFAULT_TOOL_FORMAT
        *before, called = template_messages(PROBE, self.form)
        framed = self._plain([*before, {"role": "assistant", "content": PROBE_CALL}], PROBE_TOOLS)
        begin = framed.rfind(PROBE_CALL)
        answer = self.special.without(self._plain([*before, called], PROBE_TOOLS)[begin:])
        for name, tool_format in TOOL_FORMATS.items():
            calls = tool_format.parse(answer, PROBE_TOOLS).calls
            if [(call.name, "".join(call.arguments.split())) for call in calls] == [(PROBE_CALL, PROBE_ARGUMENTS)]:
                return name
        return DEFAULT_TOOL_FORMAT

    def _plain(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> str:
        return self.render(messages, tools, ask=False) if self.tokenizer.chat_template else ""


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a model's directory, or of a name that transformers finds (`Any`: it carries no usable types).

    Raises `Rejected` when there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        raise Rejected(f"cannot load the tokenizer of {source}: {why_not_loaded(source, error)}") from error


def positions_of(source: str | Path) -> int | None:
    """The most tokens that the model there has positions for; None where its configuration does not say."""
    try:
        config: Any = AutoConfig.from_pretrained(str(source))
    except (OSError, ValueError):
        return None
    return getattr(config, "max_position_embeddings", None)
