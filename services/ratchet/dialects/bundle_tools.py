"""The tools of a request with a bundle's texts, and without those that it hides; all others as they were sent."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.core.contract.bundle import ToolTexts
from ratchet.dialects.requests import Body, Fields, value_of
from ratchet.dialects.responses.items import ADDITIONAL_TOOLS, function_name

RAWS = msgspec.json.Decoder(list[msgspec.Raw])
NAMESPACE = "namespace"
"""Type of a tool that holds tools."""
_MEMBERS = msgspec.json.Decoder(Fields)


@dataclass(frozen=True, slots=True)
class ToolShape:
    """How an API has tools."""

    function: Callable[[Body], Body]
    """The part of a tool that has its name and texts."""
    schema: str
    """The member of that part which describes the parameters."""


def _function_of(tool: Body) -> Body:
    kinds = (tool.get(kind) for kind in ("function", "custom"))
    return next((cast("Body", kind) for kind in kinds if isinstance(kind, dict)), tool)


CHAT_TOOLS = ToolShape(_function_of, "parameters")
RESPONSES_TOOLS = ToolShape(lambda tool: tool, "parameters")
MESSAGES_TOOLS = ToolShape(lambda tool: tool, "input_schema")


def raw_of(value: object) -> msgspec.Raw:
    """A value for a request."""
    return msgspec.Raw(msgspec.json.encode(value))


def spliced(head: Sequence[Body], rest: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """A list of `head` and of items as they were sent."""
    return msgspec.Raw(b"[" + b",".join([*map(msgspec.json.encode, head), *map(bytes, rest)]) + b"]")


def describe(fields: Fields, texts: Mapping[str, ToolTexts], shape: ToolShape) -> None:
    """Write the texts into the members of a request: its tools, also those in namespaces and in its input, and the
    `functions` of an older chat. A tool in a namespace has the name by which turns know it."""
    describer = _Describer(texts, shape)
    for member in ("tools", "functions"):
        offered = value_of(fields, member)
        shown = describer.shown(offered, fields[member]) if isinstance(offered, list) else None
        if shown is not None:
            fields[member] = spliced((), shown)
    if _adds_tools(fields):
        items = zip(value_of(fields, "input"), RAWS.decode(fields["input"]), strict=True)
        kept = [describer.within(item, raw, ADDITIONAL_TOOLS) for item, raw in items]
        fields["input"] = spliced((), [raw for raw in kept if raw is not None])
    if describer.gone:
        _choose(fields, describer.gone, shape)


class _Describer:
    """Shows tools by a bundle's texts, and remembers which it has left out. `Any`: agents write what they like."""

    def __init__(self, texts: Mapping[str, ToolTexts], shape: ToolShape) -> None:
        self._texts = texts
        self._shape = shape
        self.gone: set[str] = set()

    def shown(
        self, offered: Sequence[Any], raws: msgspec.Raw, namespace: str | None = None
    ) -> list[msgspec.Raw] | None:
        """The tools as the model reads them; None where that is as they were sent."""
        pairs = list(zip(offered, RAWS.decode(raws), strict=True))
        made = [self._one(tool, raw, namespace) for tool, raw in pairs]
        if all(tool is raw for tool, (_, raw) in zip(made, pairs, strict=True)):
            return None
        return [tool for tool in made if tool is not None]

    def within(self, holder: Any, raw: msgspec.Raw, kind: str) -> msgspec.Raw | None:
        """What holds tools, where it is of this kind; None where none are left."""
        offered = holder.get("tools") if isinstance(holder, dict) and holder.get("type") == kind else None
        if not isinstance(offered, list):
            return raw
        members = _MEMBERS.decode(raw)
        namespace = holder.get("name") if kind == NAMESPACE else None
        tools = self.shown(cast("list[Any]", offered), members["tools"], namespace)
        if tools is None:
            return raw
        return raw_of({**members, "tools": spliced((), tools)}) if tools else None

    def _one(self, tool: Any, raw: msgspec.Raw, namespace: str | None) -> msgspec.Raw | None:
        """A tool as the model reads it: the same value where nothing changes, None where it is hidden."""
        name = name_of(tool, self._shape, namespace)
        text = self._texts.get(name) if name is not None else None
        if name is None or text is None:
            return self.within(tool, raw, NAMESPACE) if namespace is None else raw
        if text.hidden:
            self.gone.add(name)
            return None
        return raw_of(_described(tool, text, self._shape))


def _adds_tools(fields: Fields) -> bool:
    return f'"{ADDITIONAL_TOOLS}"'.encode() in bytes(fields.get("input", b"")) and isinstance(
        value_of(fields, "input"), list
    )


def _choose(fields: Fields, gone: Container[str | None], shape: ToolShape) -> None:
    """No tool is chosen, or allowed, that is not offered."""
    for member, choices in (("tools", ("tool_choice", "parallel_tool_calls")), ("functions", ("function_call",))):
        if value_of(fields, member) == [] and not _adds_tools(fields):
            for name in (member, *choices):
                fields.pop(name, None)
    if name_of(value_of(fields, "function_call"), shape) in gone:
        del fields["function_call"]
    chosen = value_of(fields, "tool_choice")
    if not isinstance(chosen, dict):
        return
    choice = cast("Body", chosen)
    if name_of(choice, shape) in gone:
        del fields["tool_choice"]
        return
    holder = choice.get("allowed_tools", choice)
    allowed = cast("Body", holder).get("tools") if isinstance(holder, dict) else None
    if not isinstance(allowed, list):
        return
    left = [tool for tool in cast("list[Any]", allowed) if name_of(tool, shape) not in gone]
    holder["tools"] = left
    fields["tool_choice"] = raw_of(choice if left else "none")


def name_of(tool: object, shape: ToolShape, namespace: str | None = None) -> str | None:
    """The name of a tool, or of a choice of one, as turns have it; None where it has none."""
    if not isinstance(tool, dict):
        return None
    function = shape.function(cast("Body", tool))
    name, within = function.get("name"), namespace or function.get("namespace")
    return function_name(name, within if isinstance(within, str) else None) if isinstance(name, str) else None


def _described(tool: Body, text: ToolTexts, shape: ToolShape) -> Body:
    function = shape.function(tool)
    changed = dict(function)
    if text.description is not None:
        changed["description"] = text.description
    schema = changed.get(shape.schema)
    properties = cast("Body", schema).get("properties") if isinstance(schema, dict) else None
    if text.parameters and isinstance(properties, dict):
        known = cast("Body", properties)
        described = {
            name: {**cast("Body", known[name]), "description": words}
            for name, words in text.parameters.items()
            if isinstance(known.get(name), dict)
        }
        changed[shape.schema] = {**cast("Body", schema), "properties": {**known, **described}}
    return changed if function is tool else {name: changed if it is function else it for name, it in tool.items()}
