"""What was said in a span: prompt, answers and tools, in each dialect that carries them.

One function a dialect; the first that has something counts. A dialect that says nothing gives an empty `Content`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ratchet.core.contract import JsonObject
from ratchet.core.contract.spans import INFERENCE
from ratchet.dialects.foreign_messages import answer_of, chat_of_prompt, role_of
from ratchet.dialects.foreign_values import object_of, objects_of, parsed_json, text_or_none
from ratchet.dialects.telemetry.messages import answers_of, call_of, chat_of, coherent, output_of, system_of, tools_of
from ratchet.dialects.telemetry.names import kind_of
from ratchet.dialects.telemetry.otlp import Attributes, Event


@dataclass(frozen=True, slots=True)
class Content:
    """What a span says; empty members are not said."""

    prompt: Sequence[JsonObject] = ()
    answers: Sequence[JsonObject] = ()
    tools: Sequence[JsonObject] = ()
    tool_output: str | JsonObject | None = None


def content_of(attributes: Attributes) -> Content:
    """What the attributes of a span, or of an event with the same attributes, hold. Raises `ValueError`."""
    every = [reader(attributes) for reader in READERS]
    return Content(
        prompt=coherent(next((each.prompt for each in every if each.prompt), ())),
        answers=next((each.answers for each in every if each.answers), ()),
        tools=next((each.tools for each in every if each.tools), ()),
        tool_output=next((each.tool_output for each in every if each.tool_output is not None), None),
    )


def conventions(attributes: Attributes) -> Content:
    """OpenTelemetry's, since 1.37: lists of messages with parts, structured or as JSON text."""
    prompt = chat_of(attributes.get("gen_ai.input.messages"))
    answers = answers_of(attributes.get("gen_ai.output.messages"))
    system = system_of(attributes.get("gen_ai.system_instructions"))
    if system and prompt[:1] != system:
        prompt = [*system, *prompt]
    return Content(
        prompt,
        answers,
        tools_of(attributes.get("gen_ai.tool.definitions")),
        output_of(attributes.get("gen_ai.tool.call.result")),
    )


def openinference(attributes: Attributes) -> Content:
    """Messages and tools as attributes with numbers in their names."""
    if not isinstance(attributes.get("openinference.span.kind"), str):
        return Content()
    is_tool = attributes["openinference.span.kind"] == "TOOL"
    return Content(
        [_openinference(given) for given in _numbered(attributes, "llm.input_messages.")],
        [{**_openinference(given), "role": "assistant"} for given in _numbered(attributes, "llm.output_messages.")],
        tools_of([object_of(given.get("tool")).get("json_schema") for given in _numbered(attributes, "llm.tools.")]),
        output_of(attributes.get("output.value")) if is_tool else None,
    )


def traceloop(attributes: Attributes) -> Content:
    """Traceloop's, before it took up the conventions."""
    is_tool = attributes.get("traceloop.span.kind") == "tool"
    return Content(
        [_traceloop(given) for given in _numbered(attributes, "gen_ai.prompt.")],
        [{**_traceloop(given), "role": "assistant"} for given in _numbered(attributes, "gen_ai.completion.")],
        tools_of(_numbered(attributes, "llm.request.functions.")),
        output_of(attributes.get("traceloop.entity.output")) if is_tool else None,
    )


def langfuse(attributes: Attributes) -> Content:
    """Langfuse's observations: what the observed function got and gave back."""
    kind, given = kind_of(attributes), attributes.get("langfuse.observation.input")
    output = attributes.get("langfuse.observation.output")
    if kind != INFERENCE or "langfuse.observation.type" not in attributes:
        return Content(tool_output=output_of(output))
    answer = answer_of(output)
    return Content(
        chat_of(object_of(given).get("messages")) or (chat_of_prompt(given) if given not in (None, "") else ()),
        [answer] if answer is not None else (),
        tools_of(object_of(given).get("tools")),
    )


def vercel(attributes: Attributes) -> Content:
    """Vercel's AI SDK."""
    text, calls = text_or_none(attributes.get("ai.response.text")), attributes.get("ai.response.toolCalls")
    answer: JsonObject = {"role": "assistant", "content": text or text_or_none(attributes.get("ai.response.object"))}
    if made := [call_of(call) for call in objects_of(calls)]:
        answer["tool_calls"] = made
    return Content(
        chat_of(attributes.get("ai.prompt.messages")),
        [answer] if answer["content"] or made else (),
        tools_of(attributes.get("ai.prompt.tools")),
        output_of(attributes.get("ai.toolCall.result")),
    )


def logfire(attributes: Attributes) -> Content:
    """Pydantic AI's and Logfire's own, before they took up the conventions: events, requests and answers as JSON."""
    events = objects_of(attributes.get("events")) or objects_of(attributes.get("all_messages_events"))
    spoken = [made for event in events if (made := message_of_event(str(event.get("event.name")), event))]
    request, response = object_of(attributes.get("request_data")), object_of(attributes.get("response_data"))
    whole = chat_of(attributes.get("pydantic_ai.all_messages"))
    answer = whole.pop() if whole and whole[-1].get("role") == "assistant" else answer_of(response.get("message") or "")
    offered = object_of(attributes.get("model_request_parameters")).get("function_tools")
    flat = [{**tool, "parameters": tool.get("parameters_json_schema")} for tool in objects_of(offered)]
    return Content(
        [message for message, is_answer in spoken if not is_answer] or whole or chat_of(request.get("messages")),
        [message for message, is_answer in spoken if is_answer] or ([answer] if answer else ()),
        tools_of(flat) or tools_of(request.get("tools")),
        output_of(attributes.get("tool_response")),
    )


READERS: Sequence[Callable[[Attributes], Content]] = (
    conventions,
    openinference,
    langfuse,
    vercel,
    traceloop,
    logfire,
)
_OLD_ROLES = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.tool.message": "tool"}
_OLD_ROLES["gen_ai.assistant.message"] = "assistant"
CHOICE = "gen_ai.choice"


def message_of_event(name: str, fields: Mapping[str, Any]) -> tuple[JsonObject, bool] | None:
    """The message of an event as before the conventions of 1.37, and whether it is the answer; None for another event.

    `Any`: as senders write it.
    """
    if name == CHOICE:
        inner = object_of(fields.get("message")) or dict(fields)
        return {**_old_message("assistant", inner), "role": "assistant"}, True
    return (_old_message(_OLD_ROLES[name], fields), False) if name in _OLD_ROLES else None


def fields_of_event(event: Event) -> Mapping[str, Any]:
    """What an event says: its body, else its attributes, or the JSON that one of them holds (Azure)."""
    return object_of(event.body) or object_of(event.attributes.get("gen_ai.event.content")) or event.attributes


def _old_message(role: str, fields: Mapping[str, Any]) -> JsonObject:
    message: JsonObject = {"role": str(fields.get("role") or role), "content": fields.get("content")}
    content = parsed_json(message["content"])
    message["content"] = content if isinstance(content, str | list | None) else str(message["content"])
    if role == "tool":
        message["tool_call_id"] = str(fields.get("id") or "")
        message["role"] = "tool"
    if calls := objects_of(fields.get("tool_calls")):
        message["tool_calls"] = [_old_call(call) for call in calls]
    return message


def _old_call(call: JsonObject) -> JsonObject:
    function = object_of(call.get("function"))
    return call_of({"id": call.get("id"), **function} if function else call)


def _openinference(given: JsonObject) -> JsonObject:
    inner = object_of(given.get("message"))
    parts = [_openinference_part(object_of(part.get("message_content"))) for part in objects_of(inner.get("contents"))]
    message: JsonObject = {"role": role_of(inner.get("role")), "content": inner.get("content")}
    if message["content"] is None and (spoken := [part for part in parts if part]):
        texts = [part["text"] for part in spoken if part["type"] == "text"]
        message["content"] = "\n".join(texts) if len(texts) == len(spoken) else spoken
    if calls := [object_of(call.get("tool_call")) for call in objects_of(inner.get("tool_calls"))]:
        message["tool_calls"] = [_old_call(call) for call in calls]
    if inner.get("tool_call_id"):
        message["tool_call_id"] = str(inner["tool_call_id"])
    return message


def _openinference_part(part: JsonObject) -> JsonObject | None:
    if part.get("type") == "image":
        image = object_of(object_of(part.get("image")).get("image"))
        return {"type": "image_url", "image_url": {"url": str(image.get("url"))}}
    text = text_or_none(part.get("text"))
    return {"type": "text", "text": text} if text else None


def _traceloop(given: JsonObject) -> JsonObject:
    content = parsed_json(given.get("content"))
    message: JsonObject = {
        "role": str(given.get("role") or "user"),
        "content": content if isinstance(content, str | list | None) else given.get("content"),
    }
    if calls := objects_of(given.get("tool_calls")):
        message["tool_calls"] = [call_of(call) for call in calls]
    if given.get("tool_call_id"):
        message["tool_call_id"] = str(given["tool_call_id"])
    return message


def _numbered(attributes: Attributes, prefix: str) -> list[JsonObject]:
    """The objects that attributes spell out below `<prefix>0`, `<prefix>1`, ..., in their order."""
    tree: JsonObject = {}
    for name, value in attributes.items():
        if name.startswith(prefix):
            *path, last = name[len(prefix) :].split(".")
            level: JsonObject = tree
            for step in path:
                below = level.get(step)
                level[step] = level = cast("JsonObject", below) if isinstance(below, dict) else {}
            level[last] = value
    return [item for item in _in_order(tree) if isinstance(item, dict)]


def _in_order(tree: JsonObject) -> Iterator[Any]:
    for name in sorted(filter(str.isdecimal, tree), key=int):
        yield _listed(tree[name])


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    members = cast("JsonObject", value)
    if members and all(name.isdecimal() for name in members):
        return list(_in_order(members))
    return {name: _listed(inner) for name, inner in members.items()}
