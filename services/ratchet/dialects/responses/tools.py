"""The tools of a Responses request as functions of a chat, and what such a function stands for.

A custom tool, whose input is text, is a function with one text. A tool in a namespace is a function whose name begins
with the namespace's. Tools stand in `tools` and in items `additional_tools` of the input, as Codex sends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.items import ADDITIONAL_TOOLS, function_name, input_items
from ratchet.dialects.responses.wire import (
    AddedTools,
    AllowedChoice,
    CustomTool,
    FunctionTool,
    NamedChoice,
    Namespace,
    NotForPolicies,
    checked,
    given_members,
)

CUSTOM_INPUT: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that stands for a custom tool."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool of a request."""

    tool: JsonObject
    at: str
    """Its place in the request."""
    namespace: Namespace | None = None

    @property
    def kind(self) -> object:
        return self.tool.get("type")

    @property
    def name(self) -> object:
        """Its own name, which is unique in its namespace; a tool that a provider runs has none."""
        return self.tool.get("name")

    @property
    def key(self) -> object:
        """The name of its function; of a provider's tool its type."""
        if not isinstance(self.name, str):
            return self.kind
        return function_name(self.name, self.namespace.name if self.namespace else None)


def offered_tools(body: Body) -> list[Offered]:
    """The tools that a (checked) request offers, those in its input last. Raises `BadRequest`."""
    offered = [*_listed(body.get("tools") or [], "tools")]
    for index, item in enumerate(input_items(body)):
        if item.get("type") == ADDITIONAL_TOOLS:
            at = f"input[{index}]"
            offered += _listed(checked(item, AddedTools, at).tools, f"{at}.tools")
    return offered


def functions(body: Body) -> dict[str, Offered]:
    """What the functions of a (checked) request's chat stand for, by name."""
    return {tool.key: tool for tool in offered_tools(body) if isinstance(tool.key, str)}


def chat_tools(body: Body, choice: str | JsonObject | None, obstacles: list[BadRequest]) -> Body:
    """`tools` and `tool_choice` of the chat, the tools cut down to those that the choice allows.

    What a chat cannot have is an obstacle. Raises `BadRequest` for a malformed tool or choice.
    """
    offered = {tool.key: _chat_tool(tool, obstacles) for tool in offered_tools(body)}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = checked(choice, AllowedChoice, "tool_choice")
        named = [
            _chosen(checked(tool, NamedChoice, "tool_choice.tools")) if "name" in tool else tool.get("type")
            for tool in allowed.tools
        ]
        if any(name not in [*offered] for name in named):
            message = "tool_choice.tools names a tool that tools does not offer"
            obstacles.append(BadRequest(message, param="tool_choice.tools"))
        offered, choice = {key: tool for key, tool in offered.items() if key in named}, allowed.mode
    elif isinstance(choice, dict):
        choice = _chat_choice(choice, obstacles)
    elif choice is not None and choice not in {"none", "auto", "required"}:
        raise BadRequest("tool_choice must be none, auto, required or an object", param="tool_choice")
    chat: Body = {"tools": [*offered.values()]} if offered else {}
    if choice is not None and (offered or choice not in ("none", "auto")):
        chat["tool_choice"] = choice
    return chat


def _listed(tools: list[JsonObject], at: str, namespace: Namespace | None = None) -> Iterator[Offered]:
    for index, tool in enumerate(tools):
        place = f"{at}[{index}]"
        if tool.get("type") == "namespace" and namespace is None:
            space = checked(tool, Namespace, place)
            yield from _listed(space.tools, f"{place}.tools", space)
        else:
            yield Offered(tool, place, namespace)


def _chat_tool(offered: Offered, obstacles: list[BadRequest]) -> JsonObject:
    tool, kind, at = offered.tool, offered.kind, offered.at
    function: JsonObject
    if kind == "function":
        function = given_members(checked(tool, FunctionTool, at))
    elif kind == "custom":
        custom = checked(tool, CustomTool, at)
        function = {"name": custom.name, "description": _described(custom), "parameters": CUSTOM_INPUT}
    elif isinstance(kind, str):
        message = f"{kind[:64]!r} is a tool that a provider runs; a policy calls tools of type function or custom"
        obstacles.append(NotForPolicies(message, param=f"{at}.type"))
        return tool
    else:
        raise BadRequest(f"{at}.type must be a string", param=f"{at}.type")
    texts = [offered.namespace.description if offered.namespace else None, function.get("description")]
    function |= {"name": offered.key, "description": "\n\n".join(text for text in texts if text)}
    return {"type": "function", "function": {name: value for name, value in function.items() if value != ""}}


def _described(custom: CustomTool) -> str | None:
    """Its description, with the form of its input: a policy reads the grammar, and is not held to it."""
    form = custom.format or {}
    if form.get("type", "text") == "text":
        return custom.description
    grammar = f"The input must match this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
    return f"{custom.description}\n\n{grammar}" if custom.description else grammar


def _chat_choice(choice: JsonObject, obstacles: list[BadRequest]) -> JsonObject | None:
    """A forced tool. None: a tool of the provider's, which the turn cannot name."""
    if choice.get("type") in ("function", "custom"):
        return {"type": "function", "function": {"name": _chosen(checked(choice, NamedChoice, "tool_choice"))}}
    message = "a policy can be made to call only functions and custom tools"
    obstacles.append(NotForPolicies(message, param="tool_choice"))
    return None


def _chosen(choice: NamedChoice) -> str:
    return function_name(choice.name, choice.namespace)
