"""The APIs that agents speak, as values: reading a request, asking an engine, showing and recording its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.dialects.answers import MODES, Answer, AnswerEnvelope, ChatEnvelope, TextEnvelope, choice_of, usage_of
from ratchet.dialects.requests import (
    MAX_CHOICES,
    TRUE,
    Body,
    CallRequest,
    Fields,
    engine_fields,
    read_call,
    read_messages,
    value_of,
)
from ratchet.dialects.streams import (
    DONE,
    Problem,
    StreamTranslator,
    chat_begins,
    fold_chat,
    fold_text,
    replay_chat,
    replay_text,
    text_begins,
)


@dataclass(frozen=True, slots=True)
class Translation:
    """How a call of one API is asked of an engine that speaks another, and how its answer is shown."""

    to: ApiDialect
    request: Callable[[CallRequest], CallRequest]
    """The call as a call of that API. Raises `BadRequest` for what has no equivalent there."""
    answer: Callable[[CallRequest, Body], bytes]
    """The agent's own request, and the answer to its translation."""
    stream: Callable[[CallRequest], StreamTranslator]


@dataclass(frozen=True, slots=True)
class ApiDialect:
    """One API that answers calls."""

    name: str
    """Its name in turns."""
    path: str
    """Below `/v1`, here and at the engine."""
    read: Callable[[Fields], CallRequest]
    """Checks what the gateway relies on and leaves the rest to the engine. Raises `BadRequest`."""
    answer: Callable[[Mapping[str, Any], int], Answer]
    """One choice of a whole answer. Raises like `dict` and `list` do for any other JSON."""
    fold: Callable[[Iterable[Body]], Body]
    """The whole answer that the chunks of a stream are. Raises like `dict` and `list` do."""
    begins: Callable[[Body], bool]
    """Whether a chunk holds any of the answer: from then on no other engine can take over."""
    ends: Callable[[bytes], bool]
    """Whether an event's data says that nothing follows."""
    replay: Callable[[Body], list[Body]]
    """A whole answer as chunks."""
    envelope: type[AnswerEnvelope]
    """An answer as far as the gateway relies on its shape."""
    translation: Translation | None = None
    """For engines that do not speak it."""
    error: Callable[[Problem], bytes] = lambda problem: problem.json
    """The body of an error."""
    error_event: Callable[[Problem], bytes] = lambda problem: b"data: " + problem.json + b"\n\n"
    """The event of an error within a stream."""


def read_chat(fields: Fields) -> CallRequest:
    """Reads a chat. Raises `BadRequest`."""
    messages = read_messages(fields)
    tools = fields.get("tools")
    if tools is not None and bytes(tools)[:1] not in {b"[", b"n"}:
        raise BadRequest("tools must be a list", param="tools")
    return read_call(fields, messages, wants_logprobs=bool(value_of(fields, "logprobs")))


def chat_answer(body: Mapping[str, Any], number: int = 0) -> Answer:
    """Takes a choice of a chat completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for any other JSON.
    """
    choice = choice_of(body, number)
    message = choice["message"]
    if not isinstance(message, dict):
        raise TypeError("the message must be an object")
    if not all(isinstance(call, dict) for call in cast("Any", message).get("tool_calls") or ()):
        raise TypeError("every tool call must be an object")
    entries = (choice.get("logprobs") or {}).get("content")
    output_ids = choice.get("token_ids")
    return Answer(
        message=message,
        prompt_ids=body.get("prompt_token_ids"),
        output_ids=output_ids,
        logprobs=[entry["logprob"] for entry in entries] if entries is not None else None,
        logprob_mode=MODES.get(body.get("logprobs_mode")),
        usage=usage_of(body, number, output_ids),
        finish_reason=choice.get("finish_reason"),
    )


def read_text(fields: Fields) -> CallRequest:
    """Reads the prompts, as text or token ids; in a turn each is a user message. Raises `BadRequest`."""
    prompts = _prompts(value_of(fields, "prompt"))
    logprobs = value_of(fields, "logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int)):
        raise BadRequest("logprobs must be an integer", param="logprobs")
    contents = [
        prompt if isinstance(prompt, str) else [{"type": "token_ids", "count": len(prompt)}] for prompt in prompts
    ]
    messages: list[list[JsonObject]] = [[{"role": "user", "content": content}] for content in contents]
    sent = prompts[0] if len(prompts) == 1 else prompts
    request = read_call(
        {**fields, "prompt": msgspec.Raw(msgspec.json.encode(sent))},
        messages[0],
        wants_logprobs=logprobs is not None,
        searchable=all(isinstance(prompt, str) for prompt in prompts),
    )
    choices = request.choices * len(prompts)
    if choices > MAX_CHOICES:
        raise BadRequest(f"more than {MAX_CHOICES} answers to one call", param="prompt")
    return msgspec.structs.replace(request, prompts=messages, choices=choices)


def text_engine_fields(request: CallRequest, policy: str) -> Fields:
    """Asks for the log-probability of every token (0: without those of other candidates)."""
    fields = engine_fields(request, policy)
    return fields if request.wants_logprobs else {**fields, "logprobs": msgspec.Raw(b"0")}


def text_answer(body: Mapping[str, Any], number: int = 0) -> Answer:
    """Takes a choice of a text completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for any other JSON.
    """
    choice = choice_of(body, number)
    if not isinstance(choice["text"], str):
        raise TypeError("the text must be a string")
    output_ids = choice.get("token_ids")
    return Answer(
        message={"role": "assistant", "content": choice["text"]},
        prompt_ids=choice.get("prompt_token_ids") or body.get("prompt_token_ids"),
        output_ids=output_ids,
        logprobs=(choice.get("logprobs") or {}).get("token_logprobs"),
        logprob_mode=MODES.get(body.get("logprobs_mode")),
        usage=usage_of(body, number, output_ids),
        finish_reason=choice.get("finish_reason"),
    )


def _prompts(value: object) -> list[str] | list[list[int]]:
    """The texts or lists of token ids, also a single one. Raises `BadRequest`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        parts = cast("list[object]", value)
        if all(map(_is_token, parts)):
            return [cast("list[int]", parts)]
        if all(isinstance(part, str) for part in parts):
            return cast("list[str]", parts)
        if all(isinstance(part, list) and part and all(map(_is_token, cast("list[object]", part))) for part in parts):
            return cast("list[list[int]]", parts)
    raise BadRequest("prompt must be a text, a list of token ids, or a list of either", param="prompt")


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


CHAT = ApiDialect(
    name="chat",
    path="/chat/completions",
    read=read_chat,
    answer=chat_answer,
    fold=fold_chat,
    begins=chat_begins,
    ends=DONE.__eq__,
    replay=replay_chat,
    envelope=ChatEnvelope,
)
TEXT = ApiDialect(
    name="completion",
    path="/completions",
    read=read_text,
    answer=text_answer,
    fold=fold_text,
    begins=text_begins,
    ends=DONE.__eq__,
    replay=replay_text,
    envelope=TextEnvelope,
)
ENGINE_FIELDS: Mapping[str, Callable[[CallRequest, str], Fields]] = {
    CHAT.name: lambda request, policy: engine_fields(request, policy) | {"logprobs": TRUE},
    TEXT.name: text_engine_fields,
}
"""By the name of a dialect: the request to an engine that holds policies, given the policy's name. It asks for the
log-probability of every token."""
