"""Between chat messages and token ids: chat template, tokenizer, tool-call format of one policy."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.control_tokens import Marks
from ratchet.core.chat_templates.template import ChatTemplate
from ratchet.core.chat_templates.tool_formats import Reply, ToolCall
from ratchet.core.errors import BadRequest, RatchetError, Rejected
from ratchet.core.grammars.compiler import Tokens
from ratchet.local.engine_local.domain.shown_text import (
    BeforeCalls,
    Detokenizer,
    ShownText,
    TextFilter,
    UntilWords,
    WithoutControl,
)

OF_THE_MACHINE = {errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
"""Errors of reading that are no fault of the files."""
_LONE_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token of a vocabulary with byte fallback that is one byte."""


class ChatText:
    """Renders, encodes and reads text as one tokenizer does. Encoding is thread-safe, nothing here changes it."""

    def __init__(self, tokenizer: Any, tool_format: str | None = None) -> None:
        """`tool_format`: else what the tokenizer declares, or its template shows."""
        self._tokenizer = tokenizer  # transformers' tokenizers carry no usable types
        self._template = ChatTemplate(tokenizer, tool_format)
        self._format = self._template.format
        self._special = self._template.special
        self._control = self._template.control
        self._end = {tokenizer.eos_token_id}
        self._lone_bytes = {number for token, number in tokenizer.get_vocab().items() if _LONE_BYTE.fullmatch(token)}

        self._tokens: Tokens | None = None

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
        return frozenset(token for token in self._end if token is not None)

    @property
    def known_tokens(self) -> Tokens | None:
        """What `tokens` gave last."""
        return self._tokens

    def tokens(self, logits: int) -> Tokens:
        """The tokens as grammars see them, among so many logits. Raises `Rejected`; called from one thread."""
        if self._tokens is None or self._tokens.size != logits:
            self._tokens = Tokens(self._tokenizer, logits, [*self.end_ids], self._template.tool_format)
        return self._tokens

    def chat_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[int]:
        """Token ids of the prompt for the next answer. Raises `BadRequest`.

        A control token that was written as text is that text, spelled with ordinary tokens. Only in what the policy
        itself has said may the markers of a tool call stand: a malformed call is rendered as it was written.
        """
        chat = self._template.hidden(messages, tools)
        return self._encode(self._template.render(chat.messages, chat.tools, ask=True), chat.marks)

    def text_ids(self, text: str) -> list[int]:
        """Token ids of a plain prompt, in which nothing is a control token. Raises `BadRequest`."""
        marks = Marks(self._control, text)
        return self._encode(marks.hide(text), marks)

    def text(self, ids: Sequence[int], ends: Container[int] = ()) -> str:
        """The text of generated ids, without the token that ended it. `ends`: more tokens that would."""
        return self._decode(ids[:-1] if ids and (ids[-1] in self._end or ids[-1] in ends) else ids)

    def shown(self, stops: Sequence[str], *, tools: bool) -> ShownText:
        """What can be shown of an answer while its tokens come: the beginning of its `reply`, or of its `plain` text.

        `tools`: it may call tools.
        """
        filters: list[TextFilter] = [UntilWords(stops)] if stops else []
        if tools:
            filters.append(BeforeCalls(self._format.openings, keeps_space=self._format.keeps_space))
        return ShownText(
            Detokenizer(self._decode, self._lone_bytes.__contains__), [*filters, WithoutControl(self._special)]
        )

    def plain(self, text: str) -> str:
        """A policy's text without control tokens."""
        return self._special.without(text)

    def reply(self, text: str, tools: Sequence[JsonObject]) -> Reply:
        """A policy's text as content and tool calls; as content alone for an agent that has offered no tools.

        A call without a name, or with a control token in it, is no call. Content and arguments keep no control token.
        """
        if not tools:
            return Reply(self.plain(text))
        parsed = self._format.parse(text, tools)
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

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode(self, text: str, marks: Marks) -> list[int]:
        ids = self._template.ids(text, marks)
        if not ids:
            raise BadRequest("the prompt is empty")
        return ids


def load_text(directory: Path) -> ChatText:
    """The tokenizer in `directory`. Raises `Rejected` when there is none that can be used."""
    with refusing("use the tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        text = ChatText(tokenizer)
        generation = directory / "generation_config.json"
        if generation.is_file():
            ends = json.loads(generation.read_text()).get("eos_token_id") or []
            text.also_ends_with([ends] if isinstance(ends, int) else ends)
    return text


@contextmanager
def refusing(purpose: str) -> Iterator[None]:
    """Take what libraries raise over files whose digests are right for the files' fault: `Rejected`, in one line.

    Their errors have no common class. Too little memory, and a disk that fails, are no fault of files.
    """
    try:
        yield
    except (MemoryError, RatchetError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            raise
        raise Rejected(f"cannot {purpose}: {' '.join(str(error).split()) or type(error).__name__}") from error
