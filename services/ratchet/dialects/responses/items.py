"""Items of the Responses API as chat messages.

One answer of a model is several items (reasoning, message, calls) and one assistant message: items of an answer that
stand side by side become one. What an item says beside text and calls (ids, status, annotations, encrypted reasoning)
has no place in a chat, and no policy could read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.wire import (
    REFUSAL,
    AgentMessage,
    CallOutputItem,
    CustomCallItem,
    FilePart,
    FunctionCallItem,
    ImagePart,
    MessageItem,
    NotForPolicies,
    ReasoningItem,
    RefusalPart,
    TextPart,
    checked,
    given_members,
)

ADDITIONAL_TOOLS = "additional_tools"
"""An item that says nothing, and offers tools."""
TRIGGER, COMPACTION = "compaction_trigger", "compaction"
MARK = "ratchet-summary:"
"""Begins what the gateway writes into a compaction in the place of a provider's encrypted content."""
ASK_SUMMARY = """\
Summarize this conversation for an agent that goes on with the task and sees nothing of it but your summary and the \
user's messages: what was asked for, what was done and found out, which files and values matter, and what remains to \
be done. Answer with the summary only."""
SUMMARY = "This summary stands for the conversation so far:\n\n"
_ANSWERED = frozenset({"output_text", REFUSAL})
"""Parts of a message that a model wrote, as an answer's items hold them."""
_SPOKEN = frozenset({"reasoning", "function_call", "custom_tool_call"})
_NO_CHAT = "a policy answers a chat, which has no %s; an upstream that serves /responses may take it"


def chat_messages(items: Sequence[JsonObject], obstacles: list[BadRequest]) -> list[JsonObject]:
    """The items as chat messages.

    An item or part without a form in chat is an obstacle, and stays, as it is, a part of a message's content. Raises
    `BadRequest` for a malformed item.
    """
    folding = _Folding(obstacles)
    for index, item in enumerate(items):
        folding.add(item, f"input[{index}]")
    folding.end_answer()
    return folding.messages


def answer_message(items: Sequence[JsonObject]) -> JsonObject:
    """The items of one answer as one assistant message. Raises `BadRequest` for a malformed item."""
    folding = _Folding([])
    for index, item in enumerate(items):
        if item.get("type") in _SPOKEN or (item.get("type") == "message" and item.get("role") == "assistant"):
            folding.add(item, f"output[{index}]")
        else:
            folding.answer.parts.append(item)
    return folding.answer.message()


def is_reference(item: JsonObject) -> bool:
    """Whether the item stands for another one, whose id it has."""
    named = item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})
    return named and isinstance(item.get("id"), str)


def input_items(body: Body) -> list[JsonObject]:
    """The input of a (checked) request as items."""
    given: Any = body.get("input") or []
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


def compacts(body: Body) -> bool:
    """Whether a (checked) request asks for a compaction."""
    return any(item.get("type") == TRIGGER for item in input_items(body))


def function_name(name: str, namespace: str | None) -> str:
    """The name of the function that stands for a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """Arguments of the function that stands for a custom tool, given the tool's input."""
    return msgspec.json.encode({"input": text}).decode()


def custom_input(arguments: str) -> str:
    """The inverse: the input that a call's arguments hold, or the arguments themselves when they hold none."""
    try:
        value: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments
    text = cast("JsonObject", value).get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


@dataclass
class _Answer:
    parts: list[JsonObject] = field(default_factory=list[JsonObject])
    reasoning: list[str] = field(default_factory=list[str])
    refusals: list[str] = field(default_factory=list[str])
    calls: list[JsonObject] = field(default_factory=list[JsonObject])

    @property
    def spoken(self) -> bool:
        """It says or calls something."""
        return bool(self.parts or self.refusals or self.calls)

    def message(self) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": _content(self.parts) if self.parts else None}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.refusals:
            message["refusal"] = "".join(self.refusals)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Folding:
    def __init__(self, obstacles: list[BadRequest]) -> None:
        self.messages: list[JsonObject] = []
        self.answer = _Answer()
        self._obstacles = obstacles

    def add(self, item: JsonObject, at: str) -> None:
        kind = "item_reference" if is_reference(item) else item.get("type") or "message"
        match kind:
            case "message":
                self._message(checked(item, MessageItem, at), at)
            case "reasoning":  # what the model thought, else its summary; encrypted, it is for the provider alone
                reasoning = checked(item, ReasoningItem, at)
                if texts := [part.text for part in reasoning.content or reasoning.summary or ()]:
                    self.answer.reasoning.append("\n".join(texts))
            case "function_call" | "custom_tool_call":
                call = checked(item, FunctionCallItem if kind == "function_call" else CustomCallItem, at)
                arguments = call.arguments if isinstance(call, FunctionCallItem) else custom_arguments(call.input)
                called = {"name": function_name(call.name, call.namespace), "arguments": arguments}
                self.answer.calls.append({"id": call.call_id, "type": "function", "function": called})
            case "function_call_output" | "custom_tool_call_output":
                result = checked(item, CallOutputItem, at)
                content = self._chat_content(result.output, f"{at}.output")
                self._say({"role": "tool", "tool_call_id": result.call_id, "content": content})
            case "additional_tools":  # they stand with those of the request
                pass
            case "agent_message":  # of another agent of Codex; a provider encrypts it, what a policy wrote is plain
                texts = [_as_text(part) for part in checked(item, AgentMessage, at).content]
                self._say({"role": "user", "content": self._chat_content(texts, f"{at}.content")})
            case "compaction_trigger":
                self._say({"role": "user", "content": ASK_SUMMARY})
            case "compaction" if str(item.get("encrypted_content")).startswith(MARK):
                summary = str(item["encrypted_content"]).removeprefix(MARK)
                self._say({"role": "user", "content": SUMMARY + summary})
            case _:
                self._other(item, kind, at)

    def end_answer(self) -> None:
        if self.answer.spoken or self.answer.reasoning:
            self.messages.append(self.answer.message())
            self.answer = _Answer()

    def _say(self, message: JsonObject) -> None:
        self.end_answer()
        self.messages.append(message)

    def _message(self, message: MessageItem, at: str) -> None:
        if message.role == "assistant":
            self._spoken(message.content, at)
            return
        role = "system" if message.role == "developer" else message.role
        self._say({"role": role, "content": self._chat_content(message.content, f"{at}.content")})

    def _spoken(self, content: str | list[JsonObject], at: str) -> None:
        """A message of an answer joins the answer's other items; an assistant message of the agent's own begins one."""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        answered = bool(parts) and all(part.get("type") in _ANSWERED for part in parts)
        if self.answer.spoken and (isinstance(content, str) or not answered):
            self.end_answer()
        for index, part in enumerate(parts):
            if part.get("type") == REFUSAL:
                self.answer.refusals.append(checked(part, RefusalPart, f"{at}.content[{index}]").refusal)
            else:
                self.answer.parts.append(self._part(part, f"{at}.content[{index}]"))

    def _other(self, item: JsonObject, kind: object, at: str) -> None:
        """An item of a tool that a provider runs, or of a kind that is newer than the gateway."""
        if not isinstance(kind, str):
            raise BadRequest(f"{at}.type must be a string", param=f"{at}.type")
        self._obstacles.append(NotForPolicies(_NO_CHAT % f"item {kind[:64]!r}", param=f"{at}.type"))
        if kind.endswith("_output"):
            self._say({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": [item]})
        else:
            self.answer.parts.append(item)

    def _chat_content(self, content: str | list[JsonObject], at: str) -> str | list[JsonObject]:
        if isinstance(content, str):
            return content
        return _content([self._part(part, f"{at}[{index}]") for index, part in enumerate(content)])

    def _part(self, part: JsonObject, at: str) -> JsonObject:
        try:
            return _chat_part(part, at)
        except NotForPolicies as obstacle:
            self._obstacles.append(obstacle)
            return part


def _as_text(part: JsonObject) -> JsonObject:
    """A part of a message between agents, which may have the name of an encrypted one."""
    text = part.get("encrypted_content")
    return {"type": "text", "text": text} if part.get("type") == "encrypted_content" else part


def _content(parts: list[JsonObject]) -> str | list[JsonObject]:
    """One text as text, as agents of the chat API send it."""
    if not parts:
        return ""
    first = parts[0]
    return first["text"] if len(parts) == 1 and first.keys() == {"type", "text"} else parts


def _chat_part(part: JsonObject, at: str) -> JsonObject:
    kind = part.get("type")
    if kind in {"input_text", "output_text", "text"}:
        return {"type": "text", "text": checked(part, TextPart, at).text}
    if kind == REFUSAL:
        return {"type": REFUSAL, REFUSAL: checked(part, RefusalPart, at).refusal}
    if kind == "input_image":
        image = checked(part, ImagePart, at)
        if image.image_url is None:
            raise NotForPolicies(_NO_CHAT % "images by file_id: send image_url", param=at)
        url = {"url": image.image_url}
        return {"type": "image_url", "image_url": url if image.detail is None else {**url, "detail": image.detail}}
    if kind == "input_file":
        file = checked(part, FilePart, at)
        if file.file_data is None and file.file_id is None:
            raise NotForPolicies(_NO_CHAT % "files by URL: send file_data", param=at)
        return {"type": "file", "file": given_members(file)}
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    if not isinstance(kind, str):
        raise BadRequest(f"{at}.type must be a string", param=f"{at}.type")
    raise NotForPolicies(_NO_CHAT % f"content part {kind[:64]!r}", param=f"{at}.type")
