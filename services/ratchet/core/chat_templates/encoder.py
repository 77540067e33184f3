"""From logged conversations to token ids, and which of them learn: those that the policy itself would write."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.answers import Answer, Rendered, Unrenderable, rendered_answers
from ratchet.core.chat_templates.control_tokens import Marks
from ratchet.core.chat_templates.conversations import ChatCounts, Conversation
from ratchet.core.chat_templates.template import ChatTemplate, Encoded
from ratchet.core.errors import BadRequest, Rejected

MAX_LENGTH = 4096
"""Default length of a row in tokens."""

BLOCK = 64
"""Conversations that are rendered and encoded at a time."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence."""

    trajectory_id: str
    token_ids: list[int]
    loss_mask: list[bool]
    """True for tokens that learn."""


class ChatEncoder:
    """Makes rows with one tokenizer. `counts` tells what happened."""

    def __init__(self, tokenizer: Any, max_length: int = MAX_LENGTH, *, keep_end: bool = False) -> None:
        """`tokenizer`: of transformers (`Any`: it carries no usable types). With `keep_end` rows that are too long lose
        their beginning, not their end. Raises `Rejected` for a tokenizer without a chat template, or one that cannot
        say where its tokens lie in a text.
        """
        if not tokenizer.chat_template:
            raise Rejected("the base model's tokenizer has no chat template, which training on chats needs")
        if not tokenizer.is_fast:
            raise Rejected("the base model's tokenizer cannot tell where its tokens lie in the text")
        self._template = ChatTemplate(tokenizer)
        self._max_length = max_length
        self._keep_end = keep_end
        self._special = frozenset(tokenizer.convert_tokens_to_ids(self._template.special.texts))
        self.counts = ChatCounts(max_length, keep_end)

    def rows(self, conversations: Iterable[Conversation]) -> Iterator[TokenRow]:
        """Rows in which something learns, in order; a few conversations are in memory at a time."""
        waiting = iter(conversations)
        while block := [conversation for _, conversation in zip(range(BLOCK), waiting, strict=False)]:
            rendered = [
                (conversation, marks, text) for conversation in block for marks, text in self._rendered(conversation)
            ]
            encoded = self._template.encode([(text.text, marks) for _, marks, text in rendered])
            for (conversation, _, text), tokens in zip(rendered, encoded, strict=True):
                row = self._row(conversation, text, tokens)
                if any(row.loss_mask[1:]):  # the first token has nothing before it that could predict it
                    self.counts.rows += 1
                    self.counts.trained_tokens += sum(row.loss_mask[1:])
                    yield row
                else:
                    self.counts.empty_rows += 1

    def _rendered(self, conversation: Conversation) -> list[tuple[Marks, Rendered]]:
        counts = self.counts
        counts.conversations += 1
        try:
            chat = self._template.hidden(conversation.messages, conversation.tools)
            places = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
            places = [index for index in places if index >= conversation.learn_from]
            if not places:
                raise Unrenderable("there is no assistant message")
            texts = rendered_answers(self._template, chat, places)
        except (BadRequest, Unrenderable) as error:
            counts.unrenderable[str(error)[:_REASON]] += 1
            return []
        counts.split += len(texts) > 1
        head = texts[0].text[: texts[0].answers[0].begin]
        counts.unshown_tools += any(_tool_name(tool) not in head for tool in chat.tools)
        for answer in (answer for text in texts for answer in text.answers):
            counts.answers += 1
            counts.empty_thoughts += answer.empty_thought
            counts.dropped_thoughts += "reasoning" in answer.lost
            counts.dropped_texts += "text" in answer.lost
        return [(chat.marks, text) for text in texts]

    def _row(self, conversation: Conversation, text: Rendered, tokens: Encoded) -> TokenRow:
        mask = [False] * len(tokens.ids)
        for answer in text.answers:
            for index in self._own(answer, tokens):
                mask[index] = True
        counts, limit = self.counts, self._max_length
        counts.longest = max(counts.longest, len(mask))
        if len(mask) > limit:
            counts.truncate(conversation.trajectory_id)
        kept = slice(-limit, None) if self._keep_end else slice(limit)
        counts.lost_tokens += sum(mask) - sum(mask[kept])
        return TokenRow(conversation.trajectory_id, tokens.ids[kept], mask[kept])

    def _own(self, answer: Answer, tokens: Encoded) -> range:
        """The tokens of an answer: those that begin in it, up to the token that ends it.

        A token of white space may have no width, at its end: it belongs to what comes before. The white space that
        templates put after the token that ends a turn is theirs, not the policy's.
        """
        first = max(bisect_left(tokens.begins, answer.begin), bisect_right(tokens.ends, answer.begin))
        after = bisect_left(tokens.begins, answer.end, lo=first)
        last = next((index for index in reversed(range(first, after)) if tokens.ids[index] in self._special), None)
        if last is None or self._template.tokenizer.decode(tokens.ids[last + 1 : after]).strip():
            self.counts.unended += 1
            return range(first, after)
        return range(first, last + 1)


def _tool_name(tool: object) -> str:
    """Of a tool as callers define it; empty where it has none."""
    members = cast("JsonObject", tool) if isinstance(tool, dict) else {}
    function: object = members.get("function")
    return str((cast("JsonObject", function) if isinstance(function, dict) else members).get("name", ""))


def explain(conversations: Iterable[Conversation], tokenizer: Any, max_length: int = MAX_LENGTH) -> ChatCounts:
    """What training on these conversations would make of them, without training. Raises `Rejected`.

    `tokenizer`: of transformers, as `load_tokenizer` gives it (`Any`: it carries no usable types). `max_length`: of a
    row in tokens. A few conversations are in memory at a time.
    """
    encoder = ChatEncoder(tokenizer, max_length)
    for _ in encoder.rows(conversations):
        pass
    return encoder.counts


_REASON = 300
"""Characters of a reason that are kept: templates quote what they refuse."""
