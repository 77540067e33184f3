"""What an agent may ask of any completion route: model, sampling, streaming; and what it gets to see of the answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ratchet.contract import JsonObject
from ratchet.contract.turn import Sampling
from ratchet.errors import BadRequest, NotFound
from ratchet.gateway.domain.distribution import is_constrained, is_multimodal, with_neutral
from ratchet.rules.arms import ModelName, parse_model

Body = dict[str, Any]
"""A request's or answer's JSON object. `Any`: what the members are is checked here, or left to the engine."""

INTEGERS = 2**63
"""Integers of a request lie below it, and not below its negative: what engines and tables hold."""
_BASE = re.compile(r"/t/(?P<trajectory>[^/]+)(?P<path>/v1/.*)")
_OURS = ("adapter_id", "stream", "stream_options")
"""Members that mean something to the gateway alone: the engine is never asked to stream."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A checked request of an agent."""

    model: ModelName
    named_by: str
    """The member that named the model: `model` or `adapter_id`."""
    messages: list[JsonObject]
    """The prompt as chat messages: a turn's form."""
    tools: list[JsonObject] | None
    sampling: Sampling
    stream: bool
    include_usage: bool
    """A stream ends with a chunk that holds the usage."""
    wants_logprobs: bool
    wants_token_ids: bool
    searchable: bool
    """Whether the prompt is text: one of token ids cannot be searched for what must not be published."""
    constrained: bool
    """The answer is not drawn freely from what the policy gives."""
    multimodal: bool
    """The prompt holds more than text."""
    body: Body


def split_path(path: str) -> tuple[str | None, str]:
    """(trajectory id or None, plain path): a base_url may carry the trajectory as `/t/<id>/v1`."""
    found = _BASE.fullmatch(path)
    return (found["trajectory"], found["path"]) if found else (None, path)


def check_trajectory_id(text: str) -> str:
    """The id in its usual form. Raises `BadRequest` unless it is a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise BadRequest("a trajectory id must be a UUID", param="x-ratchet-trajectory") from error


def read_call(
    body: Body,
    messages: list[JsonObject],
    *,
    tools: list[JsonObject] | None = None,
    wants_logprobs: bool = False,
    searchable: bool = True,
) -> CallRequest:
    """What all completion routes have in common. Raises `BadRequest`; `NotFound` for a name that no model can have."""
    if body.get("n") is not None and body["n"] != 1:
        raise BadRequest("n must be 1: every answer belongs to one trajectory", param="n")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param="stream_options")
    named_by = "adapter_id" if body.get("adapter_id") else "model"
    return CallRequest(
        model=_model(body, named_by),
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


def engine_body(request: CallRequest, policy: str) -> Body:
    """What an engine that holds policies is asked: the policy by its name, how to draw, its tokens' ids too."""
    body = {key: value for key, value in request.body.items() if key not in _OURS}
    return {**with_neutral(body), "model": policy, "return_token_ids": True}


def provider_body(request: CallRequest, model: str) -> Body:
    """What any OpenAI-compatible server is asked: the agent's own words under the server's name for the model."""
    body = {key: value for key, value in request.body.items() if key not in {*_OURS, "return_token_ids"}}
    return {**body, "model": model}


def first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice that becomes the turn. `Any`: it is JSON from another process. Raises like `dict` and `list` do, and
    `TypeError` for choices that are no objects: those behind the first one are shown too."""
    choices: Any = answer["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in cast("list[Any]", choices)):
        raise TypeError("choices that are no objects")
    return cast("list[Mapping[str, Any]]", choices)[0]


def agent_body(request: CallRequest, answer: Body) -> Body:
    """What the agent gets: the engine's answer without what only the gateway had asked for."""
    shown = {key: value for key, value in answer.items() if key != "logprobs_mode"}
    if not request.wants_token_ids:
        shown.pop("prompt_token_ids", None)
    shown["choices"] = [_shown_choice(request, choice) for choice in answer["choices"]]
    return shown


def _shown_choice(request: CallRequest, choice: Mapping[str, Any]) -> Body:
    hidden = set[str]()
    if not request.wants_logprobs:
        hidden.add("logprobs")
    if not request.wants_token_ids:
        hidden |= {"token_ids", "prompt_token_ids"}
    return {key: value for key, value in choice.items() if key not in hidden}


def _model(body: Body, named_by: str) -> ModelName:
    wanted = body.get(named_by)
    if not isinstance(wanted, str):
        raise BadRequest(f"{named_by} must be a string", param=named_by)
    try:
        return parse_model(wanted)
    except ValueError as error:
        raise NotFound(f"unknown model: {error}", param=named_by, code="model_not_found") from error


def _sampling(body: Body) -> Sampling:
    return Sampling(
        temperature=_number(body, "temperature", 1.0),
        top_p=_number(body, "top_p", 1.0),
        top_k=_integer(body, "top_k"),
        min_p=_maybe(body, "min_p"),
        presence_penalty=_maybe(body, "presence_penalty"),
        frequency_penalty=_maybe(body, "frequency_penalty"),
        repetition_penalty=_maybe(body, "repetition_penalty"),
        seed=_integer(body, "seed"),
        max_tokens=_integer(body, "max_completion_tokens") or _integer(body, "max_tokens"),
    )


def _flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return bool(value)


def _maybe(body: Body, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number", param=name)
    try:
        return float(value)
    except OverflowError as error:
        raise BadRequest(f"{name} is larger than any number that can be used", param=name) from error


def _number(body: Body, name: str, default: float) -> float:
    value = _maybe(body, name)
    return default if value is None else value


def _integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} must be an integer", param=name)
    if not -INTEGERS <= value < INTEGERS:
        raise BadRequest(f"{name} must fit into 64 bits", param=name)
    return value
