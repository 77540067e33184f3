"""What an agent may ask on either completion route, and how the gateway asks an engine for it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ratchet.contract import JsonObject
from ratchet.contract.turn import Sampling
from ratchet.errors import BadRequest, NotFound
from ratchet.rules.arms import ModelName, parse_model

Body = dict[str, Any]
"""A request's or answer's JSON object. `Any`: the gateway checks the members that it uses, the engine the rest."""

INTEGERS = 2**63
"""Integers of a request lie below this, and not below its negative: engines and tables hold no larger ones."""
NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""The gateway sends these where the agent sets nothing: vLLM would use its model's generation config instead."""

_NOT_FOR_ENGINES = ("adapter_id", "stream", "stream_options")
"""Members that only the gateway understands: it never asks an engine to stream."""
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "function_call": ("auto", "none"),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "thinking_token_budget": (-1,),
    "tool_choice": ("auto", "none"),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Members with which an engine (vLLM, in all its versions) masks or moves the policy's distribution, or chooses among
several answers -> the values, beside null, that change nothing."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
"""Types of content parts that hold only text."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A checked request of an agent."""

    model: ModelName
    named_by: str
    """The member that named the model: `model` or `adapter_id`."""
    messages: list[JsonObject]
    """The prompt as chat messages, as turns hold it."""
    tools: list[JsonObject] | None
    sampling: Sampling
    stream: bool
    include_usage: bool
    """A stream ends with a chunk that holds the usage."""
    wants_logprobs: bool
    wants_token_ids: bool
    searchable: bool
    """Whether the prompt is text: the recorder cannot search token ids for secrets."""
    constrained: bool
    """The request restricts or moves the distribution that the policy draws from."""
    multimodal: bool
    """The prompt holds more than text."""
    body: Body


def check_trajectory_id(text: str) -> str:
    """The id in its canonical form. Raises `BadRequest` unless it is a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        message = "a trajectory id must be a UUID; the gateway makes one for a call that names none"
        raise BadRequest(message, param="x-ratchet-trajectory") from error


def read_call(
    body: Body,
    messages: list[JsonObject],
    *,
    tools: list[JsonObject] | None = None,
    wants_logprobs: bool = False,
    searchable: bool = True,
) -> CallRequest:
    """Reads the members that both routes share. Raises `BadRequest`, or `NotFound` for an impossible model name."""
    if body.get("n") is not None and body["n"] != 1:
        raise BadRequest("n must be 1: every answer belongs to one trajectory; send a call for each answer", param="n")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param="stream_options")
    named_by = "adapter_id" if body.get("adapter_id") else "model"
    name = body.get(named_by)
    if not isinstance(name, str):
        raise BadRequest(f"{named_by} must be a string: a role, or role@version", param=named_by)
    try:
        model = parse_model(name)
    except ValueError as error:
        message = f"unknown model: {error}; GET /v1/models lists the models"
        raise NotFound(message, param=named_by, code="model_not_found") from error
    return CallRequest(
        model=model,
        named_by=named_by,
        messages=messages,
        tools=tools,
        sampling=_sampling(body),
        stream=_flag(body, "stream"),
        include_usage=bool(cast("Body", options or {}).get("include_usage")),
        wants_logprobs=wants_logprobs,
        wants_token_ids=_flag(body, "return_token_ids"),
        searchable=searchable,
        constrained=is_constrained(body),
        multimodal=is_multimodal(messages),
        body=body,
    )


def is_constrained(body: Body) -> bool:
    """Whether the request asks for anything but a free draw from the policy's distribution.

    Only of free draws do the log-probabilities tell what the policy does. A tool with `strict` forces arguments into
    its schema (vLLM from 0.25, also under `tool_choice: auto`).
    """
    if any(body.get(name) is not None and body[name] not in harmless for name, harmless in _HARMLESS.items()):
        return True
    tools = body.get("tools")
    functions: list[Any] = [
        tool.get("function")
        for tool in (cast("list[Any]", tools) if isinstance(tools, list) else ())
        if isinstance(tool, dict)
    ]
    return any(isinstance(function, dict) and function.get("strict") for function in functions)


def is_multimodal(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message holds more than text: token ids stand for an image, but do not show it."""
    contents = [message.get("content") for message in messages]
    parts: list[Any] = [
        part for content in contents if isinstance(content, list) for part in cast("list[Any]", content)
    ]
    return any(not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS for part in parts)


def engine_body(request: CallRequest, policy: str) -> Body:
    """The request to an engine that holds policies: the policy by name, every sampling value, token ids."""
    kept = {
        key: value
        for key, value in request.body.items()
        if key not in _NOT_FOR_ENGINES and (value is not None or key not in NEUTRAL)
    }
    return {**NEUTRAL, **kept, "model": policy, "return_token_ids": True}


def provider_body(request: CallRequest, model: str) -> Body:
    """The request to any OpenAI-compatible server: the agent's own members, with the server's name for the model."""
    hidden = {*_NOT_FOR_ENGINES, "return_token_ids"}
    return {**{key: value for key, value in request.body.items() if key not in hidden}, "model": model}


def _sampling(body: Body) -> Sampling:
    temperature, top_p = _number(body, "temperature"), _number(body, "top_p")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=_integer(body, "top_k"),
        min_p=_number(body, "min_p"),
        presence_penalty=_number(body, "presence_penalty"),
        frequency_penalty=_number(body, "frequency_penalty"),
        repetition_penalty=_number(body, "repetition_penalty"),
        seed=_integer(body, "seed"),
        max_tokens=_integer(body, "max_completion_tokens") or _integer(body, "max_tokens"),
    )


def _flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return bool(value)


def _number(body: Body, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number", param=name)
    try:
        return float(value)
    except OverflowError as error:
        raise BadRequest(f"{name} is too large: it must fit into a 64-bit float", param=name) from error


def _integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} must be an integer", param=name)
    if not -INTEGERS <= value < INTEGERS:
        raise BadRequest(f"{name} must fit into 64 bits", param=name)
    return value
