"""Chunks of streamed completions in vLLM's form; joined, they are the whole answer of `domain/answers.py`."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats import Reply
from ratchet.local.engine_local.domain.answers import (
    LOGPROBS_MODE,
    Completion,
    Drawn,
    Given,
    chat_logprobs,
    finish_reason,
    text_logprobs,
    usage,
)

CHAT_CHUNK, TEXT_CHUNK = "chat.completion.chunk", "text_completion"


class ChatChunks:
    """The chunks of one choice of a chat."""

    def __init__(self, given: Given, index: int) -> None:
        self._given = given
        self._index = index

    def opening(self) -> list[JsonObject]:
        """The chunk before the first token: it names the role."""
        chunk = self._chunk({"role": "assistant", "content": ""}, None, None) | {"logprobs_mode": LOGPROBS_MODE}
        if self._given.options.token_ids:
            chunk["prompt_token_ids"] = list(self._given.prompt_ids)
        return [chunk]

    def token(self, drawn: Drawn, piece: str) -> list[JsonObject]:
        """A chunk with `piece`; none if it would be empty."""
        if not (piece or self._given.options.token_ids or self._given.options.logprobs):
            return []
        return [self._chunk({"content": piece} if piece else {}, drawn, None)]

    def ending(self, drawn: Drawn, done: Completion, reply: Reply, piece: str) -> list[JsonObject]:
        """The chunks of the last token: what is left of the content, each call by name and arguments, and the end."""
        reason = finish_reason(done, reply)
        deltas: list[JsonObject] = [{"content": piece}] if piece and reply.calls else []
        calls = reply.message(self._given.stamp.call_prefix(self._index)).get("tool_calls", ())
        for number, call in enumerate(calls):
            function = call["function"]
            named = {"index": number, **call, "function": {"name": function["name"], "arguments": ""}}
            arguments = {"index": number, "function": {"arguments": function["arguments"]}}
            deltas += [{"tool_calls": [named]}, {"tool_calls": [arguments]}]
        last: JsonObject = {"content": piece} if piece and not reply.calls else {}
        return [*(self._chunk(delta, None, None) for delta in deltas), self._chunk(last, drawn, reason)]

    def _chunk(self, delta: JsonObject, drawn: Drawn | None, reason: str | None) -> JsonObject:
        logprobs = chat_logprobs(self._given, iter([drawn])) if drawn else None
        choice: JsonObject = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if drawn and self._given.options.token_ids:
            choice["token_ids"] = [drawn.token]
        return {**self._given.stamp.head(CHAT_CHUNK), "choices": [choice]}


class TextChunks:
    """The chunks of one choice of a text."""

    def __init__(self, given: Given, index: int) -> None:
        self._given = given
        self._index = index
        self._offset = 0
        self._begun = False

    def opening(self) -> list[JsonObject]:
        """None: a text begins with its first token."""
        return []

    def token(self, drawn: Drawn, piece: str) -> list[JsonObject]:
        """A chunk with `piece`; none if it would be empty."""
        if not (piece or self._given.options.token_ids or self._given.options.logprobs):
            return []
        return [self._chunk(drawn, piece, None)]

    def ending(self, drawn: Drawn, done: Completion, reply: Reply, piece: str) -> list[JsonObject]:
        """The chunk of the last token, with what is left of the text."""
        return [self._chunk(drawn, piece, finish_reason(done, reply))]

    def _chunk(self, drawn: Drawn, piece: str, reason: str | None) -> JsonObject:
        logprobs = text_logprobs(self._given, iter([drawn]), self._offset)
        self._offset += len(self._given.spell(drawn.token))
        choice: JsonObject = {"index": self._index, "text": piece, "logprobs": logprobs, "finish_reason": reason}
        chunk: JsonObject = {**self._given.stamp.head(TEXT_CHUNK), "choices": [choice]}
        if not self._begun:
            chunk["logprobs_mode"] = LOGPROBS_MODE
        if self._given.options.token_ids:
            choice["token_ids"] = [drawn.token]
            if not self._begun:
                choice["prompt_token_ids"] = list(self._given.prompt_ids)
        self._begun = True
        return chunk


def usage_chunk(given: Given, kind: str, done: Sequence[Completion]) -> list[JsonObject]:
    """The chunk after the last choice has ended; none unless asked for."""
    if not given.options.stream_usage:
        return []
    return [{**given.stamp.head(kind), "choices": [], "usage": usage(done)}]
