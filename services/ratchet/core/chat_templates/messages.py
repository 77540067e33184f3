"""Chat messages made fit for a template, alike for the engine and the learner: text only, and nothing empty."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.format import ChatError, normal

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Where an answer's reasoning stands: OpenAI-like servers, newer vLLM, gpt-oss. Templates get the first name, and
transformers fills in the others."""

_SHORT = 9
"""Characters of an id where a template demands a certain length: Mistral's do."""

PROBE_CALL, _VALUE = "look_up", "Reykjavik"
PROBE_ARGUMENTS = f'{{"city":"{_VALUE}"}}'
_NO_JSON = f"{{'city':'{_VALUE}'}}"
"""What a template makes of arguments that it takes for text, without white space."""
PROBE: Sequence[JsonObject] = (
    {"role": "user", "content": "Is it cold?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1_0", "type": "function", "function": {"name": PROBE_CALL, "arguments": PROBE_ARGUMENTS}}
        ],
    },
)
PROBE_TOOLS: Sequence[JsonObject] = (
    {
        "type": "function",
        "function": {
            "name": PROBE_CALL,
            "description": "Looks up the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
        },
    },
)


@dataclass(frozen=True, slots=True)
class Form:
    """How a template takes tool calls."""

    arguments_as_objects: bool = False
    """It writes them as JSON itself; otherwise it takes the text that the policy wrote."""
    short_ids: bool = False
    """It refuses ids that are not nine letters and digits."""
    renders_calls: bool = True
    """False where it shows no call, in any form."""


def form_of(render: Callable[[Sequence[JsonObject], Sequence[JsonObject]], str]) -> Form:
    """The form in which a template renders a call: its arguments verbatim where that gives the same JSON.

    `render(messages, tools)` raises `BadRequest` for what the template refuses.
    """

    def rendered(form: Form) -> str:
        try:
            return "".join(render(template_messages(PROBE, form), PROBE_TOOLS).split())
        except BadRequest:
            return ""

    for short_ids in (False, True):
        text, objects = (rendered(Form(as_objects, short_ids)) for as_objects in (False, True))
        if PROBE_ARGUMENTS in text and (text == objects or _VALUE not in objects or _NO_JSON in objects):
            return Form(short_ids=short_ids)
        if _VALUE in objects:
            return Form(arguments_as_objects=True, short_ids=short_ids)
    return Form(renders_calls=False)


def template_messages(messages: Sequence[JsonObject], form: Form) -> list[JsonObject]:
    """Messages as a template expects them. Raises `BadRequest`, which names the message, for what no template renders.

    Members that are null or empty are left out: templates take `tool_calls: []` for a call. An answer that only calls
    has no content; any other message has text.
    """
    return [_template_message(message, index, form) for index, message in enumerate(messages)]


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning before an answer; empty without any."""
    texts = (message.get(name) for name in REASONING)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _template_message(message: JsonObject, index: int, form: Form) -> JsonObject:
    try:
        shaped = normal(message, index)
    except ChatError as error:
        raise BadRequest(f"messages[{index}]: {error}", param=f"messages[{index}]") from error
    except RecursionError as error:
        raise BadRequest(f"messages[{index}] is nested too deeply", param=f"messages[{index}]") from error
    shaped["content"] = _text(shaped["content"], index)
    reasoning = reasoning_of(shaped)
    for name in REASONING:
        shaped.pop(name, None)
    if reasoning:
        shaped["reasoning_content"] = reasoning
    calls: list[JsonObject] = shaped.get("tool_calls", [])
    if calls:
        shaped["tool_calls"] = [_call(call, index, form) for call in calls]
        shaped["content"] = shaped["content"] or None
    if form.short_ids and "tool_call_id" in shaped:
        shaped["tool_call_id"] = _short(shaped["tool_call_id"])
    return shaped


def _text(content: str | list[JsonObject] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") for part in content]
    if not all(isinstance(text, str) for text in texts):
        where = f"messages[{index}].content"
        raise BadRequest(f"{where} holds a part that is not text", param=where)
    return "".join(cast("list[str]", texts))


def _call(call: JsonObject, index: int, form: Form) -> JsonObject:
    if call["type"] != "function":
        raise BadRequest(f"messages[{index}] has a {call['type']} call, which no chat template renders")
    function: JsonObject = call["function"]
    arguments: Any = function["arguments"]
    if form.arguments_as_objects:
        with suppress(ValueError, RecursionError):  # what spells no value stays as it is written
            arguments = json.loads(arguments or "{}")
    shaped = {**call, "function": {**function, "arguments": arguments}}
    return {**shaped, "id": _short(call["id"])} if form.short_ids and "id" in call else shaped


def _short(name: object) -> str:
    return hashlib.sha256(str(name).encode(errors="replace")).hexdigest()[:_SHORT]
