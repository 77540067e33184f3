"""A whole answer as the events in which vLLM streams it: for engines and providers of tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ratchet.core.service.problems import HttpError

PIECE = 4
"""Characters of a chunk, as a token has about that many."""

Before = Callable[[int], Awaitable[None]]
"""Called before the event of this number, from 0. It may wait; an `HttpError` becomes an error event, which ends the
stream as in vLLM, and any other exception breaks the connection."""


def event_of(chunk: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


async def vllm_events(
    answer: Mapping[str, Any], body: Mapping[str, Any], before: Before
) -> AsyncGenerator[bytes, None]:
    """The events of `answer`, for a request that says what it wants of usage, token ids and log-probabilities."""
    events = vllm_chunks(answer, body)
    try:
        for number, event in enumerate(events):
            await before(number)
            yield event_of(event)
    except HttpError as problem:
        yield b"data: " + problem.json + b"\n\n"
    yield b"data: [DONE]\n\n"


def vllm_chunks(answer: Mapping[str, Any], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks of `answer`: the choices of a chat begin with a chunk of their own, and share the rest by turns."""
    chat = answer["object"] == "chat.completion"
    head = {name: answer[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk" if chat else answer["object"]
    prompt = {"prompt_token_ids": answer.get("prompt_token_ids")} if body.get("return_token_ids") else {}
    opening: list[dict[str, Any]] = []
    for choice in answer["choices"] if chat else ():
        first = {"role": "assistant", "content": ""}
        begun = {"index": choice["index"], "delta": first, "logprobs": None, "finish_reason": None}
        opening.append({**head, "choices": [begun], **prompt})
    each = [_choice_chunks(choice, body, chat=chat) for choice in answer["choices"]]
    rounds = range(max(map(len, each)))
    chunks = [*opening, *({**head, "choices": [one[n]]} for n in rounds for one in each if n < len(one))]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return chunks


def _choice_chunks(choice: Mapping[str, Any], body: Mapping[str, Any], *, chat: bool) -> list[dict[str, Any]]:
    pieces = _deltas(choice["message"]) if chat else [{"text": piece} for piece in _parts(choice["text"])]
    chunks: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        begin, end = (len(choice.get("token_ids") or ()) * n // len(pieces) for n in (number, number + 1))
        chunk: dict[str, Any] = {"index": choice["index"], **({"delta": piece} if chat else piece)}
        asked = body.get("logprobs") if chat else body.get("logprobs") is not None
        chunk["logprobs"] = _sliced(choice["logprobs"], begin, end) if asked else None
        chunk["finish_reason"] = choice["finish_reason"] if number == len(pieces) - 1 else None
        if body.get("return_token_ids") and "token_ids" in choice:
            chunk["token_ids"] = choice["token_ids"][begin:end]
            if not chat and not number:
                chunk["prompt_token_ids"] = choice["prompt_token_ids"]
        chunks.append(chunk)
    return chunks


def _deltas(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members of a message in pieces; a tool call's name comes before its arguments."""
    deltas: list[dict[str, Any]] = []
    for name, value in message.items():
        if name not in {"role", "tool_calls"} and isinstance(value, str):
            deltas += [{name: piece} for piece in _parts(value)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        named = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [named]})
        for piece in _parts(function["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas or [{}]


def _parts(text: str) -> Sequence[str]:
    return [text[begin : begin + PIECE] for begin in range(0, len(text), PIECE)] or [""]


def _sliced(logprobs: Mapping[str, Any] | None, begin: int, end: int) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {name: values[begin:end] if values is not None else None for name, values in logprobs.items()}
