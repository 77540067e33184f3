"""Between chat messages and token ids: chat template, tokenizer, tool-call format of one policy."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from ratchet.engine_local.domain.texts import ControlTokens, template_messages
from ratchet.engine_local.tool_formats import DEFAULT_TOOL_FORMAT, TOOL_FORMATS, Reply
from ratchet.kernel.asgi import HttpError
from ratchet.kernel.errors import Rejected
from ratchet.messages.base import JsonObject

_AS_JSON = re.compile(r"arguments\s*\|\s*tojson")
_AS_TEXT = re.compile(r"arguments\s+is\s+string")


class ChatText:
    """Renders, encodes and reads text as one tokenizer does. Encoding is thread-safe, nothing here changes it."""

    def __init__(self, tokenizer: Any, tool_format: str) -> None:
        if tool_format not in TOOL_FORMATS:
            raise Rejected(f"unknown ratchet_tool_format {tool_format!r}; known: {', '.join(sorted(TOOL_FORMATS))}")
        self._tokenizer = tokenizer  # transformers' tokenizers carry no usable types
        self._format = TOOL_FORMATS[tool_format]
        self._control = ControlTokens([*tokenizer.all_special_tokens, *self._format.markers])
        template = str(tokenizer.chat_template or "")
        # A template that writes arguments as JSON, whatever they are, would quote a text a second time.
        self._arguments_as_objects = bool(_AS_JSON.search(template)) and not _AS_TEXT.search(template)
        self._end = {tokenizer.eos_token_id}
        self.spell = lru_cache(maxsize=65_536)(self._spell)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self._tokenizer)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return frozenset(one for one in self._end if one is not None)

    def chat_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[int]:
        """Token ids of the prompt for the next answer. Raises `HttpError` 400."""
        shaped = template_messages(messages, arguments_as_objects=self._arguments_as_objects)
        self._control.refuse_in(shaped, tools)
        try:
            text = self._tokenizer.apply_chat_template(
                shaped, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
            raise HttpError(400, f"the chat template refuses these messages: {error}") from error
        return self._encode(text)

    def text_ids(self, text: str) -> list[int]:
        """Token ids of a plain prompt. Raises `HttpError` 400."""
        self._control.refuse(text, "prompt")
        return self._encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """The text of generated ids, without the token that ended it."""
        body = ids[:-1] if ids and ids[-1] in self._end else ids
        return self._tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def reply(self, text: str) -> Reply:
        """A policy's text as content and tool calls."""
        return self._format.parse(text)

    def also_ends_with(self, ids: Sequence[int]) -> None:
        """More ids that end an answer: those of the model's generation config."""
        self._end.update(ids)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise HttpError(400, "the prompt is empty")
        return ids

    def _spell(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)


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
