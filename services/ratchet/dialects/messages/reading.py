"""A request of the Messages API: checked, as a chat completion, and how many tokens it has.

An engine that can tell is asked for the number; for the others there is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.format import ChatError, json_text
from ratchet.dialects.messages.blocks import (
    Obstacles,
    Offered,
    Placed,
    assistant_message,
    blocks_of,
    object_member,
    offered_by,
    system_text,
    text_member,
    user_messages,
)
from ratchet.dialects.requests import NEUTRAL, Body

_KEPT = ("model", "adapter_id", "stream", "seed", "return_token_ids", "chat_template_kwargs", *NEUTRAL)
"""Members that mean the same in a chat completion; those that are not Anthropic's are vLLM's and the gateway's."""
_FOREIGN = ("mcp_servers", "container")
"""Members that have Anthropic run something."""
_EFFORTS = ((4_096, "low"), (16_384, "medium"))
"""Budgets of thinking tokens -> the effort below them; above all of them it is high."""
BYTES_A_TOKEN = 4
"""Of text and JSON in UTF-8: about what the tokenizers of today's models take for English and for code."""
MEDIUM_TOKENS = 1_600
"""Of an image or a file, whatever its size: what Anthropic counts for an image at its largest."""
MESSAGE_TOKENS = 4
"""Of the marks around a message."""


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A checked request of the Messages API."""

    chat: Body
    """It as a chat completion: what turns record. `Any`: its further members are the engine's to check."""
    obstacle: tuple[str, str] | None
    """Where the request holds what a chat completion cannot express, and why; None when it does not."""
    stops: Sequence[str]
    """Its stop sequences."""
    effort_asked: bool
    """Its budget of thinking tokens gives the effort, which it else only suggests."""


@dataclass(frozen=True, slots=True)
class _Message:
    role: str
    blocks: list[Placed]
    path: str
    passing: bool = False
    """It is shown only until the user's next message."""


def read(body: Body, *, counting: bool = False) -> MessagesRequest:
    """Checks what the gateway relies on. `counting`: the request is for a count of tokens, and needs no `max_tokens`.

    Raises `BadRequest`.
    """
    obstacles = Obstacles()
    chat: Body = {name: body[name] for name in _KEPT if body.get(name) is not None}
    # The messages as they were sent, but for those that were only for an earlier turn.
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise BadRequest("messages must be a non-empty list of messages", param="messages")
    given = [_message(message, f"messages.{index}") for index, message in enumerate(cast("list[object]", raw))]
    last = max((index for index, message in enumerate(given) if message.role == "user"), default=0)
    given = [message for index, message in enumerate(given) if index > last or not message.passing]
    chat["messages"] = _messages(body, given, obstacles)
    offered = offered_by((block for message in given for block in message.blocks), obstacles)
    if tools := _tools(body, offered, obstacles):
        chat["tools"] = tools
    chat |= _tool_choice(body, has_tools=bool(tools))
    chat |= _limits(body, counting=counting)
    chat |= _output(body)
    if isinstance(user := _object(body, "metadata").get("user_id"), str):
        chat["user"] = user
    for name in _FOREIGN:
        if body.get(name):
            obstacles.add(name, "only Anthropic runs it")
    return MessagesRequest(
        chat=chat,
        obstacle=obstacles.first,
        stops=chat.get("stop", ()),
        effort_asked=_object(body, "thinking").get("type") == "enabled",
    )


def to_chat(request: MessagesRequest) -> Body:
    """The chat completion for an engine without the Messages API.

    Raises `BadRequest` for what a chat completion cannot express.
    """
    if request.obstacle is not None:
        path, why = request.obstacle
        raise BadRequest(f"this model cannot take {path}: {why}", param=path, code="unsupported")
    if request.effort_asked:
        return request.chat
    return {name: value for name, value in request.chat.items() if name != "reasoning_effort"}


def _messages(body: Body, given: Sequence[_Message], obstacles: Obstacles) -> list[Body]:
    first = next((index for index, message in enumerate(given) if message.role != "system"), len(given))
    system = [] if body.get("system") is None else blocks_of(body["system"], "system")
    instructions = system_text([*system, *(block for message in given[:first] for block in message.blocks)])
    messages: list[Body] = [{"role": "system", "content": instructions}] if instructions else []
    for message in _in_chat_order(given[first:]):
        if message.role == "user":
            messages += user_messages(message.blocks, obstacles)
        elif message.role == "assistant":
            messages.append(assistant_message(message.blocks, obstacles))
        elif text := system_text(message.blocks):
            messages.append({"role": "system", "content": text})
    if not messages:
        raise BadRequest("messages must hold a message of the user", param="messages")
    if messages[-1]["role"] == "assistant":
        obstacles.add(given[-1].path, "it does not continue an answer; end the messages with the user's")
    return messages


def _message(message: object, path: str) -> _Message:
    if not isinstance(message, dict):
        raise BadRequest(f"{path} must be an object", param=path)
    members = cast("Body", message)
    role = members.get("role")
    if role not in ("user", "assistant", "system"):
        raise BadRequest(f"{path}.role must be user, assistant or system", param=f"{path}.role")
    content = members.get("content")
    if role == "system" and content is None:
        content = ""  # it says only how much the model shall think
    passing = role == "system" and members.get("clear_at") == "next_user_message"
    return _Message(cast("str", role), blocks_of(content, f"{path}.content"), path, passing)


def _in_chat_order(given: Sequence[_Message]) -> list[_Message]:
    """Consecutive messages of one role are one message. A system message between calls and their results comes after
    the results, which a chat has at once."""
    ordered: list[_Message] = []
    for role, group in groupby(given, key=lambda message: message.role):
        same = list(group)
        ordered.append(_Message(role, [block for message in same for block in message.blocks], same[0].path))
    for index in range(1, len(ordered) - 1):
        before, message, after = ordered[index - 1 : index + 2]
        calls = before.role == "assistant" and any(block["type"] == "tool_use" for _, block in before.blocks)
        if calls and message.role == "system" and after.role == "user":
            ordered[index : index + 2] = [after, message]
    return ordered


def _tools(body: Body, offered: Offered, obstacles: Obstacles) -> list[Body]:
    given: Any = body.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in cast("list[object]", given)):
        raise BadRequest("tools must be a list of objects", param="tools")
    listed = [(f"tools.{index}", tool) for index, tool in enumerate(cast("list[Body]", given))]
    later = [(path, tool | {"defer_loading": False}) for path, tool in offered.defined]
    return [_tool(tool, path, obstacles) for path, tool in [*listed, *later] if offered.includes(tool)]


def _tool(tool: Body, path: str, obstacles: Obstacles) -> Body:
    if tool.get("type") not in (None, "custom"):
        obstacles.add(path, "only Anthropic's models know it; describe a tool of your own with an input_schema")
        return tool
    function: Body = {"name": text_member(tool, "name", path)}
    if tool.get("description") is not None:
        function["description"] = text_member(tool, "description", path)
    function["parameters"] = object_member(tool, "input_schema", path)
    return {"type": "function", "function": function | ({"strict": True} if tool.get("strict") is True else {})}


def _tool_choice(body: Body, *, has_tools: bool) -> Body:
    given = _object(body, "tool_choice")
    if not given:
        return {}
    choice: object
    match given.get("type"):
        case "auto" | "none" as same:
            choice = same
        case "any":
            choice = "required"
        case "tool":
            choice = {"type": "function", "function": {"name": text_member(given, "name", "tool_choice")}}
        case _:
            raise BadRequest("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    if not has_tools and choice in ("auto", "none"):
        return {}
    if not has_tools:
        raise BadRequest("tool_choice asks for a tool, and tools has none", param="tool_choice")
    single = given.get("disable_parallel_tool_use") is True
    return {"tool_choice": choice} | ({"parallel_tool_calls": False} if single else {})


def _limits(body: Body, *, counting: bool) -> Body:
    if counting:
        return {}
    longest = body.get("max_tokens")
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 0:
        raise BadRequest("max_tokens must be a whole number, 0 or more", param="max_tokens")
    stops: Any = body.get("stop_sequences") or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in cast("list[object]", stops)):
        raise BadRequest("stop_sequences must be a list of texts", param="stop_sequences")
    return {"max_completion_tokens": longest} | ({"stop": stops} if stops else {})


def _output(body: Body) -> Body:
    """The shape of the answer, and how much the model thinks before it."""
    config, thinking = _object(body, "output_config"), _object(body, "thinking")
    members: Body = {}
    shape = _object(config, "format", "output_config.") or _object(body, "output_format")
    if shape:
        if shape.get("type") != "json_schema":
            raise BadRequest("output_config.format.type must be json_schema", param="output_config.format.type")
        schema = object_member(shape, "schema", "output_config.format")
        named = {"name": "output", "schema": schema, "strict": True}
        members["response_format"] = {"type": "json_schema", "json_schema": named}
    if isinstance(effort := config.get("effort"), str):
        members["reasoning_effort"] = effort
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if isinstance(budget, bool) or not (isinstance(budget, int) or (isinstance(budget, float) and budget % 1 == 0)):
            raise BadRequest("thinking.budget_tokens must be a whole number", param="thinking.budget_tokens")
        members["reasoning_effort"] = next((effort for limit, effort in _EFFORTS if budget < limit), "high")
    return members


def _object(body: Body, name: str, above: str = "") -> Body:
    """A member that must be an object, empty where it is absent. Raises `BadRequest`."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"{above}{name} must be an object", param=above + name)
    return cast("Body", value or {})


def count_body(request: MessagesRequest, model: str) -> Body:
    """The request to an engine's `/tokenize` (vLLM, engine_local): the prompt that an answer would follow.

    Raises `BadRequest` for what a chat completion cannot express.
    """
    chat = to_chat(request)
    asked = {name: chat[name] for name in ("messages", "tools", "chat_template_kwargs") if name in chat}
    return {"model": model, **asked, "add_generation_prompt": True}


def count_of(answer: object, member: str) -> int | None:
    """The number that an engine answered; None where it answered something else."""
    count = cast("Body", answer).get(member) if isinstance(answer, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def estimate(chat: Body) -> int:
    """About how many tokens a chat's prompt has, at least 1: a token for each 4 bytes of its messages and tools, 4 for
    each message, and 1,600 for each image or file. Raises `BadRequest` for what is nested too deeply."""
    media = 0
    messages: list[Body] = []
    for message in cast("list[Body]", chat["messages"]):
        content: Any = message.get("content")
        if isinstance(content, list):
            texts = [part for part in cast("list[Body]", content) if part.get("type") == "text"]
            media += len(content) - len(texts)
            message = {**message, "content": texts}  # noqa: PLW2901 - the message without what is no text
        messages.append(message)
    try:
        size = len(json_text([messages, chat.get("tools") or []]).encode())
    except ChatError as error:
        raise BadRequest(f"the request {error}") from error
    return math.ceil(size / BYTES_A_TOKEN) + MESSAGE_TOKENS * len(messages) + MEDIUM_TOKENS * media
