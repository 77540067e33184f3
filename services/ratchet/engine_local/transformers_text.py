"""Between chat messages and token ids: chat template, tokenizer, tool-call format of one policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from ratchet.bus.message import JsonObject
from ratchet.engine_local.domain.texts import ControlTokens, Marks, template_messages
from ratchet.engine_local.tool_formats import DEFAULT_TOOL_FORMAT, TOOL_FORMATS, Reply, ToolCall
from ratchet.errors import BadRequest, Rejected

_AS_JSON = re.compile(r"arguments\s*\|\s*tojson")
_AS_TEXT = re.compile(r"arguments\s+is\s+string")


class ChatText:
    """Renders, encodes and reads text as one tokenizer does. Encoding is thread-safe, nothing here changes it."""

    def __init__(self, tokenizer: Any, tool_format: str) -> None:
        if tool_format not in TOOL_FORMATS:
            raise Rejected(f"unknown ratchet_tool_format {tool_format!r}; known: {', '.join(sorted(TOOL_FORMATS))}")
        self._tokenizer = tokenizer  # transformers' tokenizers carry no usable types
        self._format = TOOL_FORMATS[tool_format]
        self._special = ControlTokens(tokenizer.all_special_tokens)
        self._control = ControlTokens([*tokenizer.all_special_tokens, *self._format.markers])
        template = str(tokenizer.chat_template or "")
        # A template that writes arguments as JSON, whatever they are, would quote a text a second time.
        self._arguments_as_objects = bool(_AS_JSON.search(template)) and not _AS_TEXT.search(template)
        self._end = {tokenizer.eos_token_id}

        @lru_cache(maxsize=65_536)
        def spell(token: int) -> str:
            return tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)

        self.spell = spell

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self._tokenizer)

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return frozenset(self._tokenizer.all_special_ids)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return frozenset(one for one in self._end if one is not None)

    def chat_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[int]:
        """Token ids of the prompt for the next answer. Raises `BadRequest`.

        A control token that was written as text is that text, spelled with ordinary tokens. Only in what the policy
        itself has said may the markers of a tool call stand: a malformed call is rendered as it was written.
        """
        shaped = template_messages(messages, arguments_as_objects=self._arguments_as_objects)
        try:
            marks = Marks(self._control, [*shaped, *tools])
            hidden = [marks.hide(one, self._format.markers if one["role"] == "assistant" else ()) for one in shaped]
            text = self._tokenizer.apply_chat_template(
                hidden, tools=marks.hide(list(tools)) or None, tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadRequest(f"the chat template refuses these messages: {error}") from error
        return self._encode(marks.parts(text))

    def text_ids(self, text: str) -> list[int]:
        """Token ids of a plain prompt, in which nothing is a control token. Raises `BadRequest`."""
        marks = Marks(self._control, text)
        return self._encode(marks.parts(marks.hide(text)))

    def text(self, ids: Sequence[int], ends: Container[int] = ()) -> str:
        """The text of generated ids, without the token that ended it. `ends`: more tokens that would."""
        body = ids[:-1] if ids and (ids[-1] in self._end or ids[-1] in ends) else ids
        return self._tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def plain(self, text: str) -> str:
        """A policy's text without control tokens."""
        return self._special.without(text)

    def reply(self, text: str, *, tools: bool) -> Reply:
        """A policy's text as content and tool calls; as content alone for an agent that has offered no tools.

        A call without a name, or with a control token in it, is no call. Content and arguments keep no control token.
        """
        if not tools:
            return Reply(self.plain(text))
        parsed = self._format.parse(text)
        if any(not call.name or self._special.within(call.name) for call in parsed.calls):
            return Reply(self.plain(text))
        calls = [ToolCall(call.name, self.plain(call.arguments)) for call in parsed.calls]
        content = self.plain(parsed.content or "")
        return Reply(content or (None if calls else ""), calls)

    def stop_finder(self, stops: Sequence[str]) -> Callable[[Sequence[int]], bool]:
        """Whether the newest of the generated tokens completes a stop text; how many there are costs nothing.

        A control token is no text: a stop text inside one does not count.
        """
        # A token is at least a byte, and a character at most four of them.
        window = 4 * (max(map(len, stops)) + self._control.longest) + 8

        def stopped(ids: Sequence[int]) -> bool:
            text = self.text(ids[-window:])
            # A window may begin inside a control token that is spelled with several.
            skip = self._control.longest if len(ids) > window else 0
            return self._stop_at(text[skip:], stops) is not None

        return stopped

    def until_stop(self, text: str, stops: Sequence[str]) -> str:
        """`text` up to the first stop text in it."""
        return text[: self._stop_at(text, stops)]

    def _stop_at(self, text: str, stops: Sequence[str]) -> int | None:
        for begin, end in self._control.plain_spans(text):
            places = [place for stop in stops if (place := text.find(stop, begin, end)) >= 0]
            if places:
                return min(places)
        return None

    def also_ends_with(self, ids: Sequence[int]) -> None:
        """More ids that end an answer: those of the model's generation config."""
        self._end.update(ids)

    def _encode(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Token ids of text in parts; the second of each says that a control token in it is plain text."""
        ids: list[int] = []
        for text, literal in parts:
            pieces: Sequence[str] = (text,)
            if literal:  # in pieces that hold no control token: no tokenizer can be relied on to spell it out itself
                halves = (text[:1], text[1:])
                pieces = list(text) if any(map(self._control.within, halves)) else halves
            for piece in pieces:
                ids += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        if not ids:
            raise BadRequest("the prompt is empty")
        return ids


def load_text(directory: Path) -> ChatText:
    """The tokenizer in `directory`. Raises `Rejected` when there is none that can be used."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise Rejected(f"no usable tokenizer: {error}") from error
    config = directory / "tokenizer_config.json"
    declared = json.loads(config.read_text()) if config.is_file() else {}
    text = ChatText(tokenizer, str(declared.get("ratchet_tool_format", DEFAULT_TOOL_FORMAT)))
    generation = directory / "generation_config.json"
    if generation.is_file():
        ends = json.loads(generation.read_text()).get("eos_token_id") or []
        text.also_ends_with([ends] if isinstance(ends, int) else ends)
    return text
