"""`<tool_call><function=NAME><parameter=NAME>value</parameter></function></tool_call>`: Qwen3-Coder and Qwen3.5."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats.base import Reply, ToolCall

_OPENING = re.compile(r"\s*<tool_call>\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_VALUE_END = "</parameter>"
_CLOSING = re.compile(r"\s*</function>\s*</tool_call>")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""How the models' templates spell values that are no text."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


class Qwen3Coder:
    """Text before the calls is content. When anything but calls follows it, all of the text is content.

    Values are plain text: which of them are numbers, objects and so on is what the tool declares. A value that is not
    of its declared type stays a text; so does one of a parameter, or a tool, that was not offered.
    """

    markers: Sequence[str] = ("<tool_call>", "</tool_call>")
    openings: Sequence[str] = ("<tool_call>",)
    keeps_space = False

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:
        """See `ToolFormat.parse`."""
        start = re.search(r"(?<!\s)\s*<tool_call>", text)
        if start is None:
            return Reply(text or None)
        calls: list[ToolCall] = []
        # The types that the schema of each tool names for its parameters; the first tool of a name counts.
        declared: dict[str, Mapping[str, frozenset[str]]] = {}
        for tool in tools:
            function = _members(tool.get("function"))
            name = function.get("name")
            if isinstance(name, str):
                properties = _members(_members(function.get("parameters")).get("properties"))
                declared.setdefault(name, {key: frozenset(_types(value)) for key, value in properties.items()})
        end = start.start()
        while opening := _OPENING.match(text, end):
            arguments, place = _arguments(text, opening.end(), declared.get(opening[1], {}))
            closing = _CLOSING.match(text, place)
            if closing is None:
                break
            calls.append(ToolCall(opening[1], json.dumps(arguments, ensure_ascii=False)))
            end = closing.end()
        if not calls or text[end:].strip():
            return Reply(text)
        return Reply(text[: start.start()] or None, calls)


def _arguments(text: str, place: int, declared: Mapping[str, frozenset[str]]) -> tuple[JsonObject, int]:
    """The values from `place` on, and where they end."""
    arguments: JsonObject = {}
    while parameter := _PARAMETER.match(text, place):
        end = text.find(_VALUE_END, parameter.end())
        if end < 0:
            break
        value = text[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        arguments[parameter[1]] = _typed(value, declared.get(parameter[1], frozenset()))
        place = end + len(_VALUE_END)
    return arguments, place


def _typed(text: str, types: frozenset[str]) -> object:
    """The value that a text spells in one of those types; else the text."""
    if not types - {"string"}:
        return text
    try:
        value: object = msgspec.json.decode(_PYTHON.get(text.strip(), text))  # strict: no NaN, no half of a character
    except (ValueError, RecursionError):
        return text
    kinds = tuple(_TYPES[name] for name in types if name in _TYPES)
    if isinstance(value, bool) and "boolean" not in types:
        return text
    return value if any(isinstance(value, kind) for kind in kinds) else text


def _members(value: object) -> JsonObject:
    """Those of an object; none of anything else that a client put in its place."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _types(schema: object) -> set[str]:
    members = _members(schema)
    named: Any = members.get("type")
    types = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    for several in (members.get("anyOf"), members.get("oneOf")):
        for option in several if isinstance(several, list) else ():
            types |= _types(option)
    return types
