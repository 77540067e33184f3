"""From chat messages to training rows: which tokens of a rendered conversation the policy itself would write.

A template is judged by what it renders, never by its source. Where each assistant message begins and ends is seen by
rendering the conversation up to it, once with and once without the generation prompt. For templates whose assistant
messages lie between control tokens a quicker search is derived from the first conversations and used where it must
give the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import msgspec
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ratchet.bus.message import JsonObject
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.rows import Row

VERBATIM_TOOL_FORMAT = "call_token"
"""`ratchet_tool_format` of tokenizers whose template renders a call's arguments as the text that the policy wrote."""

MAX_LENGTH = 4096
"""Default length of a row in tokens."""

BLOCK = 256
"""Conversations that are rendered and encoded at a time."""

SAMPLES = 8
"""Conversations on which the quick search must agree with the careful one before it is used."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One logged conversation in OpenAI's form."""

    trajectory_id: str
    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] = ()
    learn_from: int = 0
    """Index of the first message that may learn; what the assistant said before it is context."""


@dataclass(slots=True)
class ChatCounts:
    """What became of the conversations, for the job's metrics."""

    conversations: int = 0
    quick: int = 0
    split: int = 0
    """Rendered differently as history than when written: one row per assistant message."""
    unrenderable: Counter[str] = field(default_factory=Counter[str])
    truncated: int = 0

    def metrics(self) -> dict[str, float]:
        """As a job reports them."""
        return {
            "split_conversations": self.split,
            "unrenderable_conversations": sum(self.unrenderable.values()),
            "truncated_rows": self.truncated,
        }


@dataclass(frozen=True, slots=True)
class _Frame:
    """Token ids that stand before, and the id that ends, every assistant message."""

    header: tuple[int, ...]
    end: int


class ChatRows:
    """Makes rows with one tokenizer. `counts` tells what happened."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        # transformers' tokenizers are only partly typed.
        self._tokenizer: Any = tokenizer
        self._max_length = max_length
        self._special = frozenset(cast("list[int]", self._tokenizer.all_special_ids)) | {
            index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special
        }
        self._verbatim = self._tokenizer.init_kwargs.get("ratchet_tool_format") == VERBATIM_TOOL_FORMAT
        self.counts = ChatCounts()
        if not self._tokenizer.chat_template:
            raise DataUnusable("the base model's tokenizer has no chat template, which training on chats needs")
        if not self._tokenizer.is_fast:
            raise DataUnusable("the base model's tokenizer cannot tell where its tokens lie in the text")

    def afresh(self) -> ChatRows:
        """The same, with counts of its own."""
        return ChatRows(self._tokenizer, self._max_length)

    def rows(self, conversations: Sequence[Conversation]) -> list[Row]:
        """Rows in which something learns, in order. Raises `DataUnusable` when there is none."""
        prepared = [
            replace(one, messages=[_shaped(message, self._verbatim) for message in one.messages])
            for one in conversations
        ]
        samples, rest = prepared[:SAMPLES], prepared[SAMPLES:]
        careful = [self._careful(one) for one in samples]
        frame = self._agreed_frame(list(zip(samples, careful, strict=True)))
        rows = [row for some in careful for row in some]
        rows += self._quick(rest, frame) if frame else [row for one in rest for row in self._careful(one)]
        self.counts.conversations += len(prepared)
        for row in rows:
            if len(row.token_ids) > self._max_length:
                self.counts.truncated += 1
                row.truncate(self._max_length)
        kept = [row for row in rows if any(row.loss_mask[1:])]
        if not kept:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in self.counts.unrenderable.most_common(3))
            raise DataUnusable(f"no conversation has an assistant message to learn from. {reasons}".strip())
        return kept

    def _render(
        self, conversations: Sequence[Sequence[JsonObject]], tools: Sequence[JsonObject], ask: bool
    ) -> list[str]:
        return self._tokenizer.apply_chat_template(
            [list(messages) for messages in conversations],
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=ask,
        )

    def _careful(self, one: Conversation) -> list[Row]:
        """Rows by rendering the conversation up to and with every assistant message that learns."""
        places = [index for index in _assistant_places(one) if index >= one.learn_from]
        if not places:
            self.counts.unrenderable["no assistant message"] += 1
            return []
        try:
            before = self._render([one.messages[:index] for index in places], one.tools, ask=True)
            after = self._render([one.messages[: index + 1] for index in places], one.tools, ask=False)
        except (TemplateError, TypeError, ValueError, RecursionError) as error:
            self.counts.unrenderable[str(error)] += 1
            return []
        whole = after[-1]
        if not all(longer.startswith(shorter) for shorter, longer in zip(before, after, strict=True)):
            return self._marked(one)
        spans = [(len(shorter), len(longer)) for shorter, longer in zip(before, after, strict=True)]
        if all(whole.startswith(text) for text in after):
            return [self._row_of(one.trajectory_id, whole, spans)]
        self.counts.split += 1
        return [self._row_of(one.trajectory_id, text, [span]) for text, span in zip(after, spans, strict=True)]

    def _marked(self, one: Conversation) -> list[Row]:
        """A row from the template's own `{% generation %}` marks, where rendering prefixes says nothing."""
        if (
            "{% generation" not in self._tokenizer.chat_template
            and "{%- generation" not in self._tokenizer.chat_template
        ):
            self.counts.unrenderable["the template renders an answer differently from what it asks for"] += 1
            return []
        encoded = self._tokenizer.apply_chat_template(
            list(one.messages), tools=list(one.tools) or None, return_dict=True, return_assistant_tokens_mask=True
        )
        skipped, begun, before = _answers_before(one), 0, False
        mask: list[bool] = []
        for learns in encoded["assistant_masks"]:  # runs of tokens, one for each answer
            begun += bool(learns) and not before
            before = bool(learns)
            mask.append(before and begun > skipped)
        return [_row(one.trajectory_id, encoded["input_ids"], mask)]

    def _row_of(self, trajectory_id: str, text: str, spans: Sequence[tuple[int, int]]) -> Row:
        """A row that learns the tokens which begin within `spans` of the text."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = encoded["input_ids"]
        mask = [False] * len(ids)
        starts = [start for start, _ in encoded["offset_mapping"]]
        for begin, end in spans:
            inside = [index for index, start in enumerate(starts) if begin <= start < end]
            # The white space that templates put after the token that ends a turn is theirs, not the policy's.
            last = next((n for n in range(len(inside) - 1, -1, -1) if ids[inside[n]] in self._special), None)
            if last is not None and not self._tokenizer.decode([ids[index] for index in inside[last + 1 :]]).strip():
                inside = inside[: last + 1]
            for index in inside:
                mask[index] = True
        return _row(trajectory_id, ids, mask)

    def _agreed_frame(self, samples: Sequence[tuple[Conversation, Sequence[Row]]]) -> _Frame | None:
        """The control tokens around assistant messages, if searching for them gives the very rows of `samples`."""
        frames = {self._frame(one, rows[0]) for one, rows in samples if len(rows) == 1}
        if len(frames) != 1 or any(len(rows) > 1 for _, rows in samples):
            return None
        frame = frames.pop()
        if frame is None or frame.header[0] not in self._special or frame.end not in self._special:
            return None
        alike = all(_search(row.token_ids, frame, one) == row.loss_mask for one, rows in samples for row in rows)
        return frame if alike else None

    def _frame(self, one: Conversation, row: Row) -> _Frame | None:
        first = _assistant_places(one)[0]
        asked, plain = (self._render([one.messages[:first]], one.tools, ask)[0] for ask in (True, False))
        header: list[int] = self._tokenizer(asked[len(plain) :], add_special_tokens=False)["input_ids"]
        learns = [*row.loss_mask, False]
        ends = {row.token_ids[index] for index, (now, then) in enumerate(pairwise(learns)) if now and not then}
        usable = asked.startswith(plain) and header and len(ends) == 1
        return _Frame(tuple(header), ends.pop()) if usable else None

    def _quick(self, conversations: Sequence[Conversation], frame: _Frame) -> list[Row]:
        """Rows by searching for the frame; a conversation with an unexpected number of frames is done with care."""
        rows: list[Row] = []
        for start in range(0, len(conversations), BLOCK):
            block = conversations[start : start + BLOCK]
            texts: list[str | None]
            try:
                if all(one.tools == block[0].tools for one in block):
                    texts = [*self._render([one.messages for one in block], block[0].tools, ask=False)]
                else:
                    texts = [self._render([one.messages], one.tools, ask=False)[0] for one in block]
            except (TemplateError, TypeError, ValueError, RecursionError):
                texts = [None] * len(block)
            encoded = self._tokenizer([text or "" for text in texts], add_special_tokens=False)["input_ids"]
            for one, text, ids in zip(block, texts, encoded, strict=True):
                mask = None if text is None else _search(ids, frame, one)
                self.counts.quick += mask is not None
                rows += self._careful(one) if mask is None else [_row(one.trajectory_id, ids, mask)]
        return rows


def chat_length(model: Any, requested: int | None) -> int:
    """The longest row: what a job asks for, at most the positions that the model (`Any`: wrapped or not) has."""
    positions = getattr(model.config, "max_position_embeddings", None) or MAX_LENGTH
    return min(requested or MAX_LENGTH, positions)


def _search(ids: Sequence[int], frame: _Frame, one: Conversation) -> list[bool] | None:
    """Mask of what lies between each header and its end, or None unless there is one for every assistant message."""
    mask = [False] * len(ids)
    skipped = _answers_before(one)
    width, headers, index = len(frame.header), 0, 0
    while index + width <= len(ids):
        if ids[index] != frame.header[0] or tuple(ids[index : index + width]) != frame.header:
            index += 1
            continue
        headers += 1
        index += width
        while index < len(ids):
            mask[index] = headers > skipped
            index += 1
            if ids[index - 1] == frame.end:
                break
        else:
            return None
    return mask if headers == len(_assistant_places(one)) else None


def _assistant_places(one: Conversation) -> list[int]:
    return [index for index, message in enumerate(one.messages) if message["role"] == "assistant"]


def _answers_before(one: Conversation) -> int:
    """How many assistant messages are context only."""
    return sum(index < one.learn_from for index in _assistant_places(one))


def _row(trajectory_id: str, ids: list[int], mask: list[bool]) -> Row:
    return Row(trajectory_id, ids, mask, [0.0] * len(ids), [1.0] * len(ids))


def _shaped(message: JsonObject, verbatim: bool) -> JsonObject:
    """A message as the engine gives it to the template: content as text, arguments as objects unless verbatim."""
    shaped = {name: value for name, value in message.items() if value is not None}
    content: Any = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in cast("list[JsonObject]", content))
    shaped["content"] = content
    calls: list[JsonObject] = []
    for call in cast("list[JsonObject]", message.get("tool_calls") or []):
        function: JsonObject = call["function"]
        arguments: Any = function.get("arguments")
        if not verbatim and isinstance(arguments, str):
            with suppress(msgspec.DecodeError, RecursionError):
                arguments = msgspec.json.decode(arguments)
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**shaped, "tool_calls": calls} if calls else shaped
