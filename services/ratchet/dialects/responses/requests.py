"""A Responses request as a chat completion request: for engines that serve no /responses, and for the turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest, NotFound
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.items import chat_messages, compacts, input_items
from ratchet.dialects.responses.tools import chat_tools
from ratchet.dialects.responses.wire import (
    Conversation,
    Create,
    JsonSchemaFormat,
    NotForPolicies,
    checked,
    given_members,
)

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for the log-probabilities of the text."""

_TRANSLATED = frozenset(
    {
        *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "include"),
        *("stream", "stream_options", "store", "background", "previous_response_id", "conversation", "truncation"),
        *("max_tool_calls", "prompt", "context_management", "moderation", "prompt_cache_options"),
        *("prompt_cache_retention", "image", "access_programs"),
    }
)
"""Members of the Responses API that become another one in chat, or none; all others mean the same in both."""
_MOVED: Mapping[str, str] = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "n": "one call for each answer",
}
"""Members of chat -> where the Responses API has them."""
_REFUSED: Mapping[str, str] = {
    "background": "the gateway does not run a policy's answers in the background: stream them",
    "prompt": "prompt templates are the provider's: send instructions and input",
    "context_management": "the gateway does not compact a policy's context: the agent must",
    "moderation": "policies are not moderated: leave moderation out",
}
"""Members that ask for what only a provider does -> what to do instead."""
_CHAT_PARAMS: Mapping[str, str] = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A checked request."""

    body: Body
    chat: Body
    """It as a chat completion request: what turns record."""
    obstacle: BadRequest | NotFound | None
    """Why an engine without /responses cannot take it; None when it can."""
    previous_response_id: str | None
    conversation: str | None
    store: bool
    """A later request may continue it."""
    stream: bool


def read(body: Body) -> ResponsesRequest:
    """Checks what the gateway relies on; an upstream that serves /responses checks the rest. Raises `BadRequest`."""
    request = checked(body, Create)
    if request.previous_response_id is not None and request.conversation is not None:
        raise BadRequest("previous_response_id and conversation exclude each other", param="conversation")
    obstacles: list[BadRequest] = []
    chat = _chat(body, request, obstacles)
    conversation = request.conversation
    return ResponsesRequest(
        body=body,
        chat=chat,
        obstacle=next(iter(obstacles), None),
        previous_response_id=request.previous_response_id,
        conversation=conversation.id if isinstance(conversation, Conversation) else conversation,
        store=request.store is not False,
        stream=bool(request.stream),
    )


def to_chat(request: ResponsesRequest) -> Body:
    """The chat completion request for an engine without /responses, once the request holds its whole history.

    Raises `BadRequest` for what a chat cannot express, `NotForPolicies` for what only a provider can do, `NotFound` for
    a history that is not kept.
    """
    if request.obstacle is not None:
        raise request.obstacle
    return request.chat


def responses_param(param: str | None) -> str | None:
    """What the agent calls a parameter that an engine or the gateway names as in chat."""
    if param is None:
        return None
    head = param.partition(".")[0].partition("[")[0]
    return _CHAT_PARAMS.get(head, head) if head in _CHAT_PARAMS else param


def wants_logprobs(body: Body) -> bool:
    """Whether the agent of a (checked) request asks for the log-probabilities of the text."""
    return LOGPROBS in (body.get("include") or ()) or bool(body.get("top_logprobs"))


def _chat(body: Body, request: Create, obstacles: list[BadRequest]) -> Body:
    """A tool without `strict` stays without: the API then tries to hold its calls to the schema and need not, and a
    policy learns from free draws. Sampling values of vLLM (`top_k`, `seed`, ...), which the API does not know, pass."""
    _note_members(body, obstacles)
    same = {name: value for name, value in body.items() if name not in _TRANSLATED and name not in _MOVED}
    messages = chat_messages(input_items(body), obstacles)
    if request.instructions is not None:
        messages = [{"role": "system", "content": request.instructions}, *messages]
    if not messages:
        obstacles.append(BadRequest("input must hold at least one item, or a text", param="input"))
    chat: Body = {**same, "messages": messages, **chat_tools(body, request.tool_choice, obstacles)}
    if compacts(body) and "tools" in chat:
        chat["tool_choice"] = "none"
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if request.reasoning is not None and request.reasoning.effort is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    response_format = _response_format(request)
    if response_format is not None:
        chat["response_format"] = response_format
    if wants_logprobs(body):
        chat["logprobs"] = True
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _note_members(body: Body, obstacles: list[BadRequest]) -> None:
    for name, better in _MOVED.items():
        if body.get(name) is not None:
            message = f"{name} is a parameter of chat completions: here it is {better}"
            obstacles.append(BadRequest(message, param=name, code="unsupported_parameter"))
    for name, better in _REFUSED.items():
        if body.get(name):
            obstacles.append(NotForPolicies(better, param=name))


def _response_format(request: Create) -> JsonObject | None:
    """Free text and `text.verbosity`, which no engine of policies knows, ask for nothing."""
    given = request.text.format if request.text is not None else None
    kind = given.get("type") if given else "text"
    if kind == "json_schema":
        schema = checked(given, JsonSchemaFormat, "text.format")
        return {"type": kind, kind: given_members(schema)}
    if kind == "json_object":
        return {"type": kind}
    if kind == "text":
        return None
    raise BadRequest("text.format.type must be text, json_object or json_schema", param="text.format.type")
