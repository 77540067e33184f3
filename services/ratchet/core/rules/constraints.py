"""What a request constrains its answer to, as one value from which an engine and a learner make the same grammar.

The members and their meaning are vLLM's (0.32, with xgrammar and its defaults), so that one request is constrained
alike by every engine that holds policies. What cannot be made again from the request alone is named, never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.turn import Constraint

JSON_SCHEMA, REGEX, CHOICE, GRAMMAR = "json_schema", "regex", "choice", "grammar"
STRUCTURAL_TAG, TOOLS = "structural_tag", "tools"
"""Kinds of constraints."""

MAX_SPECIFICATION = 65_536
"""Characters of a specification: every turn carries its own."""
MAX_NESTING = 64
"""Objects and arrays within each other in a schema, as in vLLM."""

MOVED: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "function_call": ("auto", "none"),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "thinking_token_budget": (-1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Members with which an engine (vLLM, in all its versions) moves the policy's distribution, or chooses among several
answers, in ways that no learner can compute again -> the values, beside null, that change nothing."""

MEMBERS = frozenset(
    {
        *MOVED,
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "parallel_tool_calls",
        "response_format",
        "stop_token_ids",
        "structured_outputs",
        "tool_choice",
        "tools",
    }
)
"""Members of a request that a constraint is read from."""

ANY_OBJECT = '{"type": "object"}'
"""The schema of `json_object`."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""Names of tools that can stand in a grammar as they are."""


@dataclass(frozen=True, slots=True)
class Irreproducible:
    """The request moves the distribution in a way that a learner cannot compute again."""

    param: str
    """The member of the request that is to blame."""
    reason: str


class Tool(Value, frozen=True, kw_only=True):
    """A tool that may be called."""

    name: str
    parameters: JsonObject | bool = True
    """Schema of its arguments; True: any JSON value, for a tool that is not `strict`."""


class ToolCalls(Value, frozen=True, kw_only=True):
    """The specification of the kind `tools`: which calls must or may be made. The tokenizer names their format."""

    choice: str
    """`forced`: one call; `required`: at least one; `auto`: any text, in which calls keep their form."""
    tools: list[Tool]
    single: bool = False
    """At most one call."""
    otherwise: Constraint | None = None
    """What the answer may follow instead of calling."""


class _Unfit(Exception):
    """Leaves the reading of a request."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(reason)
        self.irreproducible = Irreproducible(param, reason)


def constraint_of(body: JsonObject, *, tools: bool = True) -> Constraint | Irreproducible | None:
    """What a request for a chat completion constrains its answer to; None: it is drawn freely.

    Without `tools`, of a request for a plain completion, in which tools mean nothing.
    """
    try:
        for member, harmless in MOVED.items():
            if body.get(member) is not None and body[member] not in harmless:
                raise _Unfit(member, "moves the distribution that tokens are drawn from")
        form = _form(body)
        constraint = _with_tools(body, form) if tools else form
    except _Unfit as error:
        return error.irreproducible
    stops: Any = body.get("stop_token_ids")
    if constraint is None or not stops:
        return constraint
    if not isinstance(stops, list) or not all(type(stop) is int and stop >= 0 for stop in cast("list[object]", stops)):
        return Irreproducible("stop_token_ids", "must be a list of token ids")
    return msgspec.structs.replace(constraint, stop_token_ids=sorted(set(cast("list[int]", stops))))


def _form(body: JsonObject) -> Constraint | None:
    """The form of the whole answer, by whichever member asks for it."""
    asked = [
        *_response_format(body),
        *_structured_outputs(body),
        *((member, kind, body[member]) for member, kind in _GUIDED.items() if body.get(member) is not None),
    ]
    if len(asked) > 1:
        raise _Unfit(asked[1][0], f"comes beside {asked[0][0]}: one constraint is possible")
    for member, kind, given in asked:
        return _checked(member, kind, _READERS[kind](member, given))
    return None


_GUIDED = {"guided_json": JSON_SCHEMA, "guided_regex": REGEX, "guided_choice": CHOICE, "guided_grammar": GRAMMAR}
_STRUCTURED = {
    "json": JSON_SCHEMA,
    "regex": REGEX,
    "choice": CHOICE,
    "grammar": GRAMMAR,
    "structural_tag": STRUCTURAL_TAG,
}

_Asked = tuple[str, str, Any]
"""Member, kind, and what was given for it (`Any`: JSON)."""


def _response_format(body: JsonObject) -> Sequence[_Asked]:
    member, given = "response_format", body.get("response_format")
    if given is None:
        return ()
    kind = cast("JsonObject", given).get("type") if isinstance(given, dict) else None
    if kind == "text":
        return ()
    if kind == "json_object":
        return [(member, JSON_SCHEMA, ANY_OBJECT)]
    if kind == "json_schema":
        described: Any = cast("JsonObject", given).get("json_schema")
        schema = cast("JsonObject", described).get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, dict):
            raise _Unfit(member, "json_schema.schema must be an object")
        return [(member, JSON_SCHEMA, schema)]
    if kind == STRUCTURAL_TAG:
        return [(member, STRUCTURAL_TAG, given)]
    raise _Unfit(member, "type must be text, json_object, json_schema or structural_tag")


def _structured_outputs(body: JsonObject) -> Sequence[_Asked]:
    member, given = "structured_outputs", body.get("structured_outputs")
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise _Unfit(member, "must be an object")
    present = {
        name: value for name, value in cast("JsonObject", given).items() if value is not None and value is not False
    }
    asked = [(member, _STRUCTURED[name], value) for name, value in present.items() if name in _STRUCTURED]
    if present.get("json_object") is True:
        asked.append((member, JSON_SCHEMA, ANY_OBJECT))
    if len(asked) != 1 or len(present) != 1:
        raise _Unfit(member, f"must have exactly one of {', '.join(_STRUCTURED)}, json_object, and no option")
    return asked


def _checked(member: str, kind: str, specification: str) -> Constraint:
    if len(specification) > MAX_SPECIFICATION:
        raise _Unfit(member, f"has more than {MAX_SPECIFICATION} characters")
    return Constraint(kind=kind, specification=specification, member=member)


def _schema(member: str, given: Any) -> str:
    """A schema as text, its properties in their order: the grammar keeps it."""
    schema = _parsed(member, given) if isinstance(given, str) else given
    if not isinstance(schema, dict):
        raise _Unfit(member, "must be a JSON schema: an object")
    for level in _levels(member, schema):
        for node in level:
            if isinstance(node, dict) and (fault := _unsupported(cast("JsonObject", node))):
                raise _Unfit(member, f"holds what xgrammar does not support: {fault}")
    return given if isinstance(given, str) else _text(member, schema)


def _tag(member: str, given: Any) -> str:
    """A structural tag of xgrammar as text."""
    tag = _parsed(member, given) if isinstance(given, str) else given
    if not isinstance(tag, dict) or not isinstance(cast("JsonObject", tag).get("format"), dict):
        raise _Unfit(member, "must be a structural tag with a `format`")
    _levels(member, tag)
    return given if isinstance(given, str) else _text(member, tag)


def _expression(member: str, given: Any) -> str:
    if not isinstance(given, str) or not given or "\0" in given:
        raise _Unfit(member, "must be a text without NUL characters")
    return given


def _choice(member: str, given: Any) -> str:
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(text, str) for text in cast("list[object]", given))
    ):
        raise _Unfit(member, "must be a list of texts")
    return _text(member, given)


_READERS: Mapping[str, Callable[[str, Any], str]] = {
    JSON_SCHEMA: _schema,
    REGEX: _expression,
    CHOICE: _choice,
    GRAMMAR: _expression,
    STRUCTURAL_TAG: _tag,
}


def _with_tools(body: JsonObject, form: Constraint | None) -> Constraint | None:
    """What the tools add, as vLLM has it: a forced call replaces a form, a strict one may come in its place."""
    choice, offered = body.get("tool_choice"), body.get("tools")
    if choice == "none" or (not offered and choice in (None, "auto")):
        return form
    if not offered:
        raise _Unfit("tool_choice", "needs tools")
    single = body.get("parallel_tool_calls") is False
    if choice is None or choice == "auto":
        functions = _functions(offered)
        strict = any(function.get("strict") is True for function in functions)
        if not strict and (form is not None or not single):
            return form
        return _calls("tools" if strict else "parallel_tool_calls", "auto", functions, single, form)
    functions = _functions(offered)
    if choice == "required":
        return _calls("tool_choice", "required", functions, single, None)
    named: Any = cast("JsonObject", choice).get("function") if isinstance(choice, dict) else None
    name = cast("JsonObject", named).get("name") if isinstance(named, dict) else None
    chosen = [function for function in functions if function.get("name") == name]
    if len(chosen) != 1:
        raise _Unfit("tool_choice", "must be none, auto, required, or name one of the tools")
    return _calls("tool_choice", "forced", chosen, True, None)


def _functions(offered: object) -> list[JsonObject]:
    functions: list[JsonObject] = []
    for tool in cast("list[object]", offered) if isinstance(offered, list) else (offered,):
        function: Any = cast("JsonObject", tool).get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise _Unfit("tools", "must be a list of functions")
        functions.append(cast("JsonObject", function))
    return functions


def _calls(
    member: str, choice: str, functions: Sequence[JsonObject], single: bool, form: Constraint | None
) -> Constraint:
    tools: list[Tool] = []
    for function in functions:
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _Unfit("tools", "a tool whose calls are constrained needs a name of letters, digits and _ . : / -")
        strict = function.get("strict") is True and isinstance(schema, dict)
        if strict:
            _levels("tools", schema)
        tools.append(Tool(name=name, parameters=cast("JsonObject", schema) if strict else True))
    if len({tool.name for tool in tools}) < len(tools):
        raise _Unfit("tools", "two tools have one name")
    calls = ToolCalls(choice=choice, tools=tools, single=single, otherwise=form)
    return _checked(member, TOOLS, _text("tools", msgspec.to_builtins(calls)))


def _levels(member: str, value: Any) -> Sequence[Sequence[Any]]:
    """The objects and lists of JSON, level by level, so that its depth costs no stack. Raises when it is nested beyond
    the limit. `Any`: JSON."""
    levels: list[list[Any]] = [[value]]
    while levels[-1]:
        if len(levels) > MAX_NESTING:
            raise _Unfit(member, f"is nested more than {MAX_NESTING} levels deep")
        parts = [part.values() if isinstance(part, dict) else part for part in levels[-1]]
        levels.append([child for part in parts for child in part if isinstance(child, dict | list)])
    return levels


_FORMATS = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)
_LENGTHS, _COUNTS = {"minLength", "maxLength"}, {"uniqueItems", "contains", "minContains", "maxContains"}


def _unsupported(node: JsonObject) -> str | None:
    """The keyword for which vLLM takes another backend than xgrammar, since xgrammar would ignore it."""
    given: Any = node.get("type")
    types = {
        item for item in cast("list[object]", given if isinstance(given, list) else [given]) if isinstance(item, str)
    }
    for where, keywords in ((types & {"integer", "number"}, {"multipleOf"}), (types & {"array"}, _COUNTS)):
        if where and (present := keywords & node.keys()):
            return min(present)
    if "string" in types:
        if "format" in node and (not isinstance(node["format"], str) or node["format"] not in _FORMATS):
            return "format"
        if _has_form_and_length(node):
            return "a length beside a pattern or format"
    if "object" in types and (fault := _unsupported_names(node)):
        return fault
    every: Any = node.get("allOf")
    return "allOf" if isinstance(every, list) and len(cast("list[object]", every)) > 1 else None


def _unsupported_names(node: JsonObject) -> str | None:
    names: Any = node.get("propertyNames")
    if "propertyNames" in node:
        beside = {"patternProperties", "properties"} & node.keys()
        unevaluated = node.get("unevaluatedProperties", True) is not True
        if beside or unevaluated or (isinstance(names, dict) and _has_form_and_length(cast("JsonObject", names))):
            return "propertyNames"
    patterns: Any = node.get("patternProperties")
    several = isinstance(patterns, dict) and ("properties" in node or len(cast("JsonObject", patterns)) > 1)
    return "patternProperties" if several else None


def _has_form_and_length(node: JsonObject) -> bool:
    return bool({"pattern", "format"} & node.keys() and _LENGTHS & node.keys())


def _parsed(member: str, text: str) -> Any:
    """JSON of a text. `Any`: JSON."""
    if len(text) > MAX_SPECIFICATION:
        raise _Unfit(member, f"has more than {MAX_SPECIFICATION} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unfit(member, "is not JSON") from error


def _text(member: str, value: Any) -> str:
    """JSON text of a value. `Any`: JSON."""
    try:
        return json.dumps(value)
    except (ValueError, TypeError) as error:
        raise _Unfit(member, "cannot be written as JSON") from error
