"""What requests constrain their answers to, as vLLM has it; what cannot be made again is named."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.turn import Constraint
from ratchet.core.rules.constraints import MAX_NESTING, MAX_SPECIFICATION, MOVED, Irreproducible, constraint_of

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def tool(name: str = "look_up", *, strict: bool | None = None, **members: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Looks it up.", "parameters": SCHEMA, **members}
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


def asked(**body: Any) -> Constraint:
    constraint = constraint_of(body)
    assert isinstance(constraint, Constraint), constraint
    return constraint


def refused(**body: Any) -> str:
    outcome = constraint_of(body)
    assert isinstance(outcome, Irreproducible), outcome
    assert outcome.reason
    return outcome.param


def calls(constraint: Constraint) -> Any:
    assert constraint.kind == "tools"
    return json.loads(constraint.specification)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None, "tool_choice": None, "structured_outputs": None, "logit_bias": None},
        {"response_format": {"type": "text"}},
        {"tools": [tool()]},
        {"tools": [tool(strict=False)], "tool_choice": "auto"},
        {"tools": [tool(strict=True)], "tool_choice": "none"},
        {"tools": [tool()], "parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"logit_bias": {}, "bad_words": [], "min_tokens": 0, "ignore_eos": False, "stop_token_ids": [3]},
    ],
)
def test_a_request_that_asks_for_nothing_is_free(body: dict[str, Any]) -> None:
    assert constraint_of(body) is None


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    constraint = asked(response_format=FORMAT)
    assert (constraint.kind, constraint.member) == ("json_schema", "response_format")
    assert list(json.loads(constraint.specification)["properties"]) == ["z", "a"]
    assert asked(structured_outputs={"json": SCHEMA}).specification == constraint.specification
    assert asked(guided_json=json.dumps(SCHEMA)).specification == constraint.specification


@pytest.mark.parametrize(
    ("body", "kind", "specification"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type": "object"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", '["yes", "no"]'),
        ({"guided_choice": ["yes", "no"]}, "choice", '["yes", "no"]'),
        ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "any_text"}}',
        ),
    ],
)
def test_every_spelling_gives_its_constraint(body: dict[str, Any], kind: str, specification: str) -> None:
    constraint = asked(**body)
    assert (constraint.kind, constraint.specification) == (kind, specification)


def test_a_forced_call_is_one_call_of_that_tool_and_replaces_a_form() -> None:
    choice = {"type": "function", "function": {"name": "send"}}
    constraint = asked(tools=[tool(), tool("send", strict=True)], tool_choice=choice, response_format=FORMAT)
    assert constraint.member == "tool_choice"
    assert calls(constraint) == {
        "choice": "forced",
        "tools": [{"name": "send", "parameters": SCHEMA}],
        "single": True,
    }


def test_arguments_follow_the_schema_of_strict_tools_only() -> None:
    constraint = asked(tools=[tool(), tool("send", strict=True)], tool_choice="required")
    assert calls(constraint) == {
        "choice": "required",
        "tools": [{"name": "look_up"}, {"name": "send", "parameters": SCHEMA}],
    }


def test_a_strict_tool_constrains_its_calls_alone_and_leaves_the_choice() -> None:
    constraint = asked(tools=[tool(strict=True)])
    assert constraint.member == "tools"
    assert calls(constraint)["choice"] == "auto"
    beside = calls(asked(tools=[tool(strict=True)], response_format=FORMAT))
    assert beside["otherwise"]["kind"] == "json_schema"


def test_one_call_at_a_time_constrains_too_unless_the_answer_has_a_form() -> None:
    constraint = asked(tools=[tool()], parallel_tool_calls=False)
    assert (constraint.member, calls(constraint)["single"]) == ("parallel_tool_calls", True)
    assert asked(tools=[tool()], parallel_tool_calls=False, response_format=FORMAT).kind == "json_schema"


def test_tools_mean_nothing_in_a_plain_completion() -> None:
    assert constraint_of({"tools": [tool()], "tool_choice": "required"}, tools=False) is None


def test_stop_tokens_belong_to_the_constraint_since_they_may_end_it() -> None:
    assert asked(guided_regex="a", stop_token_ids=[7, 3, 7]).stop_token_ids == [3, 7]
    assert refused(guided_regex="a", stop_token_ids=["x"]) == "stop_token_ids"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"anyOf": schema}
    return schema


@pytest.mark.parametrize(
    ("param", "body"),
    [
        *((name, {name: value}) for name in MOVED for value in ({"7": 1}, [5], 9)),
        ("response_format", {"response_format": "json"}),
        ("response_format", {"response_format": {}}),
        ("response_format", {"response_format": {"type": "xml"}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}}),
        ("response_format", {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}),
        ("structured_outputs", {"structured_outputs": "json"}),
        ("structured_outputs", {"structured_outputs": {}}),
        ("structured_outputs", {"structured_outputs": {"json": SCHEMA, "regex": "a"}}),
        ("structured_outputs", {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}),
        ("structured_outputs", {"structured_outputs": {"json": SCHEMA, "invented": 1}}),
        ("structured_outputs", {"structured_outputs": {"json": "no json"}}),
        ("structured_outputs", {"structured_outputs": {"json": 3}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a\0"}}),
        ("structured_outputs", {"structured_outputs": {"choice": []}}),
        ("structured_outputs", {"structured_outputs": {"choice": "yes"}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a"}, "response_format": FORMAT}),
        ("guided_regex", {"guided_json": SCHEMA, "guided_regex": "a"}),
        ("guided_json", {"guided_json": deep(MAX_NESTING + 1)}),
        ("guided_json", {"guided_json": "[" * 60_000}),
        ("guided_json", {"guided_json": '{"a":' * 30_000 + "{}" + "}" * 30_000}),
        ("guided_json", {"guided_json": {"enum": ["x" * MAX_SPECIFICATION]}}),
        ("guided_regex", {"guided_regex": "x" * (MAX_SPECIFICATION + 1)}),
        ("guided_json", {"guided_json": {"type": "integer", "multipleOf": 3}}),
        ("guided_json", {"guided_json": {"properties": {"a": {"type": ["array", "null"], "uniqueItems": True}}}}),
        ("guided_json", {"guided_json": {"items": [{"type": "string", "format": "postcode"}]}}),
        ("guided_json", {"guided_json": {"type": "string", "pattern": "a", "maxLength": 3}}),
        ("guided_json", {"guided_json": {"allOf": [{}, {}]}}),
        ("guided_json", {"guided_json": {"type": "object", "propertyNames": {}, "properties": {}}}),
        ("guided_json", {"guided_json": {"type": "object", "patternProperties": {"a": {}, "b": {}}}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": "any"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": ["auto"]}),
        ("tool_choice", {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "send"}}}),
        ("tools", {"tools": [tool('say "hi"')], "tool_choice": "required"}),
        ("tools", {"tools": [tool(), tool()], "tool_choice": "required"}),
        ("tools", {"tools": {"a": 1}, "tool_choice": "required"}),
        ("tools", {"tools": [{"type": "function"}], "tool_choice": "required"}),
        ("tools", {"tools": [tool(strict=True, parameters=deep(MAX_NESTING + 1))]}),
    ],
)
def test_what_cannot_be_made_again_names_its_member(param: str, body: dict[str, Any]) -> None:
    assert refused(**body) == param


def test_the_deepest_schema_that_is_read() -> None:
    assert asked(guided_json=deep(MAX_NESTING)).kind == "json_schema"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "function",
                    "name",
                    "json",
                    "schema",
                    "format",
                    "json_schema",
                    "regex",
                    "choice",
                    "strict",
                    "parameters",
                    "allOf",
                    "a",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
MEMBERS = st.sampled_from(
    [
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_choice",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stop_token_ids",
        "logit_bias",
    ]
)


@given(st.dictionaries(MEMBERS, JSON, max_size=5))
def test_any_json_is_free_constrained_or_refused_with_one_of_its_members(body: dict[str, Any]) -> None:
    outcome = constraint_of(body)
    if isinstance(outcome, Constraint):
        assert outcome.member in body
        assert len(outcome.specification) <= MAX_SPECIFICATION
    elif outcome is not None:
        assert outcome.param in body
