"""From a constraint to what xgrammar compiles: which of its languages, and the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.turn import Constraint
from ratchet.core.errors import Rejected
from ratchet.core.rules.constraints import CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, TOOLS, ToolCalls

Begin = Callable[[str], Sequence[tuple[str, str]]]
"""Name of a tool -> the texts that may stand before, and after, the arguments of its call."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a tool format writes calls."""

    trigger: str
    """Every call begins with it."""
    frames: Begin
    style: str = "json"
    """How it writes arguments, by xgrammar's name."""
    separator: str = ""
    """Between two calls."""


def _hermes(name: str) -> Sequence[tuple[str, str]]:
    """As vLLM's parser `hermes`: with and without line ends."""
    return [(f'<tool_call>{end}{{"name": "{name}", "arguments": ', f"}}{end}</tool_call>") for end in ("\n", "")]


CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat("<tool_call>", _hermes),
    "llama3_json": CallFormat('{"name": ', lambda name: [(f'{{"name": "{name}", "parameters": ', "}")], separator="; "),
    "qwen3_coder": CallFormat(
        "<tool_call>\n<function=",
        lambda name: [(f"<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>")],
        style="qwen_xml",
    ),
    "call_token": CallFormat("<|call|>", lambda name: [(f"<|call|>{name} ", "")]),
}
"""By the name that a tokenizer's config gives in `ratchet_tool_format`."""


@dataclass(frozen=True, slots=True)
class Source:
    """What xgrammar compiles."""

    language: str
    """`json_schema`, `regex`, `ebnf`, `lark` or `structural_tag`."""
    text: str


def source_of(constraint: Constraint, tool_format: str) -> Source:
    """The source of a constraint. Raises `Rejected` for a kind, or a format of calls, that is not known here."""
    kind, text = constraint.kind, constraint.specification
    if kind in {JSON_SCHEMA, REGEX, STRUCTURAL_TAG}:
        return Source(kind, text)
    if kind == GRAMMAR:
        return Source(_language(text), text)
    try:
        if kind == CHOICE:
            return Source("ebnf", "root ::= " + " | ".join(_quoted(word) for word in decode(text, list[str])))
        if kind == TOOLS:
            calls = decode(text, ToolCalls)
            return Source(STRUCTURAL_TAG, json.dumps({"type": STRUCTURAL_TAG, "format": _tag(calls, tool_format)}))
    except msgspec.DecodeError as error:
        raise Rejected(f"a constraint of kind {kind} cannot be read: {error}") from error
    raise Rejected(f"constraints of kind {kind!r} are not known here")


def _language(text: str) -> str:
    """`ebnf` where a line defines a rule with `::=`, else `lark`: as vLLM tells them apart."""
    lines = (line.split("#", 1)[0].split("//", 1)[0] for line in text.split("\n"))
    return "ebnf" if any("::=" in line for line in lines) else "lark"


_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _quoted(text: str) -> str:
    """A text as a literal of EBNF."""
    spelled = (
        _ESCAPES.get(letter, f"\\u{ord(letter):04x}" if ord(letter) < 0x20 or ord(letter) == 0x7F else letter)
        for letter in text
    )
    return f'"{"".join(spelled)}"'


def _tag(calls: ToolCalls, tool_format: str) -> JsonObject:
    """The structural tag of xgrammar for calls, as vLLM builds it."""
    form = CALL_FORMATS.get(tool_format)
    if form is None:
        raise Rejected(f"calls in the tool format {tool_format!r} cannot be constrained")
    tags: list[JsonObject] = []
    for tool in calls.tools:
        content = {"type": JSON_SCHEMA, JSON_SCHEMA: tool.parameters, "style": form.style}
        frames = form.frames(tool.name)
        tags += [{"type": "tag", "begin": begin, "content": content, "end": end} for begin, end in frames]
    if calls.choice == "auto" and calls.otherwise is None:
        return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": calls.single}
    several: JsonObject = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": calls.single,
    }
    return {"type": "or", "elements": [several, _format(calls.otherwise)]} if calls.otherwise else several


def _format(constraint: Constraint) -> JsonObject:
    """A constraint as a part of a structural tag."""
    kind, text = constraint.kind, constraint.specification
    if kind == JSON_SCHEMA:
        return {"type": JSON_SCHEMA, JSON_SCHEMA: decode(text)}
    if kind == REGEX:
        return {"type": REGEX, "pattern": text}
    if kind == CHOICE:
        return {"type": "or", "elements": [{"type": "const_string", "value": word} for word in decode(text, list[str])]}
    if kind == GRAMMAR and _language(text) == "ebnf":
        return {"type": GRAMMAR, GRAMMAR: text}
    if kind == STRUCTURAL_TAG:
        return decode(text, dict[str, JsonObject])["format"]
    raise Rejected("tools cannot be offered beside this constraint: use EBNF")
