"""The parts of a Responses request that the gateway reads, typed: every other member passes without a look."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from ratchet.bus.message import mismatch
from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest

T = TypeVar("T")

REFUSAL = "refusal"


class NotForPolicies(BadRequest):
    """A valid request for something that a chat completion does not have: providers may offer it, policies do not."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="unsupported_parameter")


class TextFormat(msgspec.Struct):
    format: JsonObject | None = None


class Reasoning(msgspec.Struct):
    effort: str | None = None


class StreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class Conversation(msgspec.Struct):
    id: str


class Create(msgspec.Struct):
    """`POST /v1/responses`. `Any`: JSON that others read, or that depends on its `type`."""

    input: str | list[JsonObject] = ""
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextFormat | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: float | None = None
    include: list[str] | None = None
    metadata: JsonObject | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    prompt: JsonObject | None = None
    context_management: list[Any] | None = None
    moderation: JsonObject | None = None


class JsonSchemaFormat(msgspec.Struct):
    """`text.format` of type `json_schema`; chat's `response_format` nests the same members."""

    name: str
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct):
    """A function that the agent runs; chat nests the same members."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class CustomTool(msgspec.Struct):
    """A tool whose input is text."""

    name: str
    description: str | None = None
    format: JsonObject | None = None


class Namespace(msgspec.Struct):
    """A group of tools, whose calls say that they are of it."""

    name: str
    tools: list[JsonObject]
    description: str | None = None


class AddedTools(msgspec.Struct):
    """An item of the input that offers more tools."""

    tools: list[JsonObject]


class NamedChoice(msgspec.Struct):
    name: str
    namespace: str | None = None


class AllowedChoice(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[JsonObject]


class MessageItem(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[JsonObject]


class AgentMessage(msgspec.Struct):
    """What one agent of a team wrote to another."""

    content: list[JsonObject]


class FunctionCallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(msgspec.Struct):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CallOutputItem(msgspec.Struct):
    """The result of a function or of a custom tool."""

    call_id: str
    output: str | list[JsonObject]


class ReasoningText(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct):
    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None


class TextPart(msgspec.Struct):
    text: str


class RefusalPart(msgspec.Struct):
    refusal: str


class ImagePart(msgspec.Struct):
    image_url: str | None = None
    detail: str | None = None


class FilePart(msgspec.Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


def checked(value: object, kind: type[T], at: str = "") -> T:
    """`value`, which stands at `at` of the request, as a `kind`. Raises `BadRequest`, which names the member."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, place = mismatch(error)
        param = f"{at}{place.removeprefix('$')}".removeprefix(".")
        raise BadRequest(f"{param or 'the body'}: {reason}", param=param or None) from error


def given_members(value: msgspec.Struct) -> JsonObject:
    """The members that are not null, as they are: nothing looks into them, however deep they are."""
    members = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: member for name, member in members.items() if member is not None}
