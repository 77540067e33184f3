"""A chat request: what the agent may ask, what the engine is asked instead, and what the agent gets back."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.kernel.asgi import HttpError
from ratchet.messages import JsonObject
from ratchet.messages.routing import ModelName, parse_model
from ratchet.messages.turn import Sampling

Body = dict[str, Any]
"""A request's JSON object. `Any`: what the members are is checked here, or left to the engine."""

_BASE = re.compile(r"/t/(?P<trajectory>[^/]+)(?P<path>/v1/.*)")
_OURS = ("adapter_id", "stream", "stream_options")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request."""

    model: ModelName
    messages: list[JsonObject]
    tools: list[JsonObject] | None
    sampling: Sampling
    wants_logprobs: bool
    wants_token_ids: bool
    body: Body


def split_path(path: str) -> tuple[str | None, str]:
    """(trajectory id or None, plain path): a base_url may carry the trajectory as `/t/<id>/v1`."""
    found = _BASE.fullmatch(path)
    return (found["trajectory"], found["path"]) if found else (None, path)


def check_trajectory_id(text: str) -> str:
    """The id in its usual form. Raises `HttpError` 400 unless it is a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise HttpError(400, "a trajectory id must be a UUID", param="x-ratchet-trajectory") from error


def read_chat(body: Body) -> ChatRequest:
    """Check what the gateway relies on; everything else is the engine's business. Raises `HttpError`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise HttpError(400, "messages must be a non-empty list of objects", param="messages")
    if body.get("stream"):
        raise HttpError(400, "streaming is not supported yet: send stream=false", param="stream")
    if body.get("n") not in {None, 1}:
        raise HttpError(400, "n must be 1: every answer belongs to one trajectory", param="n")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise HttpError(400, "tools must be a list", param="tools")
    return ChatRequest(
        model=_model(body),
        messages=messages,
        tools=tools or None,
        sampling=_sampling(body),
        wants_logprobs=bool(body.get("logprobs")),
        wants_token_ids=bool(body.get("return_token_ids")),
        body=body,
    )


def upstream_body(request: ChatRequest, policy: str) -> Body:
    """What the engine is asked: the policy by name, with token ids and log-probabilities."""
    body = {key: value for key, value in request.body.items() if key not in _OURS}
    body |= {"model": policy, "logprobs": True, "return_token_ids": True}
    body.setdefault("temperature", request.sampling.temperature)
    return body


def agent_body(request: ChatRequest, answer: Body) -> Body:
    """What the agent gets: the engine's answer without what only the gateway had asked for."""
    shown = dict(answer)
    if not request.wants_token_ids:
        shown.pop("prompt_token_ids", None)
    shown["choices"] = [_shown_choice(request, choice) for choice in answer["choices"]]
    return shown


def _shown_choice(request: ChatRequest, choice: Mapping[str, Any]) -> Body:
    hidden = set[str]()
    if not request.wants_logprobs:
        hidden.add("logprobs")
    if not request.wants_token_ids:
        hidden.add("token_ids")
    return {key: value for key, value in choice.items() if key not in hidden}


def _model(body: Body) -> ModelName:
    wanted = body.get("adapter_id") or body.get("model")
    param = "adapter_id" if body.get("adapter_id") else "model"
    if not isinstance(wanted, str):
        raise HttpError(400, f"{param} must be a string", param=param)
    try:
        return parse_model(wanted)
    except ValueError as error:
        raise HttpError(404, f"unknown model: {error}", param=param, code="model_not_found") from error


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


def _maybe(body: Body, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise HttpError(400, f"{name} must be a number", param=name)
    return float(value)


def _number(body: Body, name: str, default: float) -> float:
    value = _maybe(body, name)
    return default if value is None else value


def _integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise HttpError(400, f"{name} must be an integer", param=name)
    return value
