"""An engine's answer: taken apart for the turn, and shown to the agent whole or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.contract import JsonObject
from ratchet.contract.turn import Usage
from ratchet.gateway.domain.requests import Body, CallRequest

PROCESSED, RAW = "processed", "raw"
"""Log-probabilities after the temperature, from which the sampler drew; and before it."""
MODES: Mapping[object, str] = {"processed_logprobs": PROCESSED, "raw_logprobs": RAW}
"""vLLM's names for them, in an answer's `logprobs_mode` and in the setting."""
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": the model is at work\n\n"
"""A comment: clients skip it, and proxies see that the connection lives."""
PIECE = 12
"""Fewest characters of a piece: about two words."""
PIECES = 64
"""Most pieces of one text: a long answer comes in longer pieces."""

Chunks = Callable[[Body], Iterator[Body]]
"""An answer to the choices of its stream's chunks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer, taken apart."""

    message: JsonObject | None
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    logprob_mode: str | None = None
    """Which distribution the log-probabilities are of; None where neither engine nor setting names it."""
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    barred: str | None = None
    """Why no learner may use the answer, whatever it holds."""


def first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice that becomes the turn. `Any`: it is JSON from another process.

    Raises like `dict` and `list` do, and `TypeError` for any choice that is not an object: agents see all of them.
    """
    choices: Any = answer["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in cast("list[Any]", choices)):
        raise TypeError("choices must be a list of objects")
    return cast("list[Mapping[str, Any]]", choices)[0]


def usage_of(answer: Mapping[str, Any]) -> Usage | None:
    """The tokens that an engine reports. `Any`: it is JSON from another process, read member by member."""
    usage = answer.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt=usage.get("prompt_tokens", 0),
        completion=usage.get("completion_tokens", 0),
        cached=details.get("cached_tokens"),
    )


def agent_body(request: CallRequest, answer: Body) -> Body:
    """The body that the agent gets: the engine's, without what only the gateway had asked for."""
    shown = {key: value for key, value in answer.items() if key != "logprobs_mode"}
    hidden = set[str]()
    if not request.wants_logprobs:
        hidden.add("logprobs")
    if not request.wants_token_ids:
        shown.pop("prompt_token_ids", None)
        hidden |= {"token_ids", "prompt_token_ids"}
    shown["choices"] = [
        {key: value for key, value in choice.items() if key not in hidden} for choice in answer["choices"]
    ]
    return shown


def event_of(chunk: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def stream_of(answer: Body, chunks: Chunks, *, kind: str, include_usage: bool) -> list[bytes]:
    """The events of a whole answer, so that an agent cannot tell that the engine did not stream.

    The last event ends the choice, gives the usage if the agent asked for it, and ends the stream.
    """
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


def chat_chunks(answer: Body) -> Iterator[Body]:
    """Role, content, tool calls, finish: the choices of `chat.completion.chunk`."""
    choice = answer["choices"][0]
    message: Mapping[str, Any] = choice["message"]
    streamed = {"role", "content", "tool_calls"}
    others = {key: value for key, value in message.items() if key not in streamed and value is not None}
    yield _delta({"role": "assistant", "content": None if message.get("tool_calls") else "", **others})
    for piece in _pieces_or_whole(message.get("content")):
        yield _delta({"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        function: Any = call.get("function")
        if not isinstance(function, dict):  # a custom tool: its input comes whole
            yield _delta({"tool_calls": [{**call, "index": index}]})
            continue
        yield _delta({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in _pieces_or_whole(function.get("arguments")):
            yield _delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield {**_last_choice(choice, "message"), "delta": {}}


def text_chunks(answer: Body) -> Iterator[Body]:
    """Text, finish: the choices of a streamed `text_completion`."""
    choice = answer["choices"][0]
    for piece in pieces(choice["text"]):
        yield {"index": 0, "text": piece, "logprobs": None, "finish_reason": None}
    yield {**_last_choice(choice, "text"), "text": ""}


def pieces(text: str) -> list[str]:
    """`text` cut up; joined, the pieces give it back."""
    size = max(PIECE, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _delta(delta: Body) -> Body:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _pieces_or_whole(value: Any) -> list[Any]:
    """Text in pieces; any other value whole. `Any`: engines differ."""
    return pieces(value) if isinstance(value, str) else [] if value is None else [value]


def _last_choice(choice: Mapping[str, Any], streamed: str) -> Body:
    """The choice without its streamed member: how it ended, with the log-probabilities and token ids asked for."""
    return {"logprobs": None, **{key: value for key, value in choice.items() if key != streamed}}
