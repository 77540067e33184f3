"""A whole answer as the chunks of a stream, so that an agent cannot tell that the engine did not stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ratchet.gateway.domain.calls import Body

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": the model is at work\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""
PIECE = 12
"""Least characters of a piece: about two words."""
PIECES = 64
"""Most pieces of one text: a long answer comes in longer pieces."""

_SPOKEN = ("role", "content", "tool_calls")

Chunks = Callable[[Body], Iterator[Body]]


def event_of(chunk: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def chat_chunks(answer: Body) -> Iterator[Body]:
    """Role, content, tool calls, finish: the choices of `chat.completion.chunk`."""
    choice = answer["choices"][0]
    message: Mapping[str, Any] = choice["message"]
    others = {key: value for key, value in message.items() if key not in _SPOKEN and value is not None}
    yield _delta({"role": "assistant", "content": None if message.get("tool_calls") else "", **others})
    for piece in _parts(message.get("content")):
        yield _delta({"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield from _call_deltas(index, call)
    yield {**_rest(choice, "message"), "delta": {}}


def text_chunks(answer: Body) -> Iterator[Body]:
    """Text, finish: the choices of a streamed `text_completion`."""
    choice = answer["choices"][0]
    for piece in pieces(choice["text"]):
        yield {"index": 0, "text": piece, "logprobs": None, "finish_reason": None}
    yield {**_rest(choice, "text"), "text": ""}


def stream_of(answer: Body, chunks: Chunks, *, kind: str, include_usage: bool) -> list[bytes]:
    """The events of an answer; the last one ends the choice, gives the usage if it was asked for, and the stream."""
    head = {key: value for key, value in answer.items() if key not in {"choices", "usage", "prompt_token_ids"}}
    head["object"] = kind
    if include_usage:
        head["usage"] = None
    *begun, last = [{**head, "choices": [choice]} for choice in chunks(answer)]
    if "prompt_token_ids" in answer:
        (begun or [last])[0]["prompt_token_ids"] = answer["prompt_token_ids"]
    end = event_of(last)
    if include_usage:
        end += event_of({**head, "choices": [], "usage": answer.get("usage")})
    return [*map(event_of, begun), end + DONE]


def pieces(text: str) -> list[str]:
    """`text` cut up; joined, the pieces give it back."""
    size = max(PIECE, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _delta(delta: Body) -> Body:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _call_deltas(index: int, call: Mapping[str, Any]) -> Iterator[Body]:
    """A tool call: who is called, then the arguments piece by piece."""
    called: Any = call.get("function")
    if not isinstance(called, dict):  # a custom tool: its input comes whole
        yield _delta({"tool_calls": [{**call, "index": index}]})
        return
    function = {**called, "arguments": ""}
    yield _delta({"tool_calls": [{**call, "index": index, "function": function}]})
    for piece in _parts(called.get("arguments")):
        yield _delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


def _parts(value: Any) -> list[Any]:
    """Text in pieces; what is no text, though it should be, whole. `Any`: engines differ."""
    return pieces(value) if isinstance(value, str) else [] if value is None else [value]


def _rest(choice: Mapping[str, Any], spoken: str) -> Body:
    """The choice without what was streamed: how it ended, and log-probabilities and token ids where they were asked."""
    return {"logprobs": None, **{key: value for key, value in choice.items() if key != spoken}}
