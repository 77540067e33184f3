"""What the scripted model says, as the Responses API and the Messages API have it: whole, and as events."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.support.fake_streams import PIECE, Before

USAGE = {"input_tokens": 19, "output_tokens": 10}


def tools_of(tools: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and descriptions of the tools that a request offers, in whichever of the three APIs."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from tools_of(tool["tools"])
        else:
            described = tool.get("function") or tool
            if "name" in described:
                yield described["name"], tool


def items_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The input of a Responses request."""
    given = body.get("input") or []
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


def offered_in_responses(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tools of a Responses request: some stand in its input."""
    added = [tool for item in items_of(body) if item.get("type") == "additional_tools" for tool in item["tools"]]
    return dict(tools_of([*(body.get("tools") or ()), *added]))


def namespace_of(body: Mapping[str, Any], name: str) -> str | None:
    """The namespace of a tool of a Responses request."""
    added = [tool for item in items_of(body) if item.get("type") == "additional_tools" for tool in item["tools"]]
    spaces = [tool for tool in [*(body.get("tools") or ()), *added] if tool.get("type") == "namespace"]
    return next((space["name"] for space in spaces if name in dict(tools_of(space["tools"]))), None)


def results_in(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many results of tools a conversation holds, in whichever of the three APIs."""
    parts = [part for message in messages for part in (message.get("content") or ()) if isinstance(part, dict)]
    kinds = [message.get("role") for message in messages] + [one.get("type") for one in [*messages, *parts]]
    return sum(kind in {"tool", "tool_result", "function_call_output", "custom_tool_call_output"} for kind in kinds)


def response(body: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as a response to a request."""
    tools = offered_in_responses(body)
    output = [_called(body, call, tools) for call in message.get("tool_calls") or ()]
    if message.get("content"):
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        text_item = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        output.insert(0, text_item)
    if any(item.get("type") == "compaction_trigger" for item in items_of(body)):
        output = [{"id": _id("cmp"), "type": "compaction", "encrypted_content": message["content"]}]
    usage = {
        **USAGE,
        "total_tokens": 29,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": 1_780_000_000,
        "model": f"{body['model']}-2026-04-14",
        "status": "completed",
        "output": output,
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "error": None,
        "incomplete_details": None,
        "metadata": {},
    }


async def response_events(made: Mapping[str, Any], before: Before) -> AsyncGenerator[bytes, None]:
    """The response as OpenAI streams it."""
    begun = {**made, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(made["output"]):
        events += [{**event, "output_index": place} for event in _item_events(item)]
    events.append({"type": "response.completed", "response": made})
    for number, event in enumerate(events):
        await before(number)
        yield _event({**event, "sequence_number": number})


def anthropic_message(body: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as an answer of the Messages API."""
    content = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    calls = [(call["id"].replace("call_", "toolu_"), call["function"]) for call in message.get("tool_calls") or ()]
    used = [
        {"type": "tool_use", "id": key, "name": called["name"], "input": json.loads(called["arguments"])}
        for key, called in calls
    ]
    return {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [*content, *used],
        "stop_reason": "tool_use" if used else "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


async def anthropic_events(made: Mapping[str, Any], before: Before) -> AsyncGenerator[bytes, None]:
    """The message as Anthropic streams it."""
    begun = {**made, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(made["content"]):
        events += [{**event, "index": index} for event in _block_events(block)]
    ending = {"stop_reason": made["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ending, "usage": USAGE}, {"type": "message_stop"}]
    for number, event in enumerate(events):
        await before(number)
        yield _event(event)


def _called(body: Mapping[str, Any], call: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    function, kind = call["function"], tools[call["function"]["name"]]["type"]
    item = {"status": "completed", "call_id": call["id"], "name": function["name"]}
    space = namespace_of(body, function["name"])
    if space is not None:
        item["namespace"] = space
    if kind == "custom":
        return {
            **item,
            "id": _id("ctc"),
            "type": "custom_tool_call",
            "input": json.loads(function["arguments"])["input"],
        }
    return {**item, "id": _id("fc"), "type": "function_call", "arguments": function["arguments"]}


def _item_events(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if item["type"] == "compaction":
        yield {"type": "response.output_item.added", "item": item}
        yield {"type": "response.output_item.done", "item": item}
        return
    kinds = {
        "message": ("response.output_text", "text"),
        "function_call": ("response.function_call_arguments", "arguments"),
        "custom_tool_call": ("response.custom_tool_call_input", "input"),
    }
    event, member = kinds[item["type"]]
    at = {"item_id": item["id"]}
    if item["type"] == "message":
        (part,) = item["content"]
        text, at["content_index"] = part["text"], 0
        yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "content": []}}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    else:
        text = item[member]
        yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", member: ""}}
    for begin in range(0, len(text), PIECE):
        yield {"type": f"{event}.delta", **at, "delta": text[begin : begin + PIECE]}
    yield {"type": f"{event}.done", **at, member: text}
    if item["type"] == "message":
        yield {"type": "response.content_part.done", **at, "part": item["content"][0]}
    yield {"type": "response.output_item.done", "item": item}


def _block_events(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    is_call = block["type"] == "tool_use"
    text = json.dumps(block["input"]) if is_call else block["text"]
    kind, member = ("input_json_delta", "partial_json") if is_call else ("text_delta", "text")
    yield {"type": "content_block_start", "content_block": {**block, **({"input": {}} if is_call else {"text": ""})}}
    for begin in range(0, len(text), PIECE):
        yield {"type": "content_block_delta", "delta": {"type": kind, member: text[begin : begin + PIECE]}}
    yield {"type": "content_block_stop"}


def _event(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
