"""A bundle applied to requests of each API."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.bundle import Bundle, Example, Instructions, SamplingValues, ToolTexts
from ratchet.core.contract.turn import Applied
from ratchet.core.errors import NotFound
from ratchet.core.rules.bundles import MissingVariable
from ratchet.dialects.apis import APIS
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import CallRequest, engine_fields, provider_fields, read_fields
from ratchet.dialects.responses.dialect import asked_of, chat_call
from ratchet.gateway.domain.turns import applied_of

SENT, OURS = "You are the agent's own.", "You are ours."
USER = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"model": "support", "messages": [{"role": "system", "content": SENT}, USER]}
RESPONSES: dict[str, Any] = {"model": "support", "instructions": SENT, "input": "hello"}
MESSAGES: dict[str, Any] = {"model": "support", "max_tokens": 9, "system": SENT, "messages": [USER]}
BODIES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
each_api = pytest.mark.parametrize("api", BODIES)
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def _applied(api: str, bundle: Bundle, limit: str | None = None, **members: object) -> CallRequest:
    body = {**BODIES[api], **members}
    return Applier(bundle).apply(APIS[api], APIS[api].read(read_fields(msgspec.json.encode(body))), limit=limit)


def _instructions(text: str, mode: str = "replace", *variables: str) -> Bundle:
    return Bundle(instructions=Instructions(text=text, mode=mode, variables=variables))


def _native(request: CallRequest) -> dict[str, Any]:
    return {name: msgspec.json.decode(raw) for name, raw in request.fields.items()}


@each_api
@pytest.mark.parametrize(
    ("mode", "expected"),
    [("replace", OURS), ("prepend", f"{OURS}\n\n{SENT}"), ("append", f"{SENT}\n\n{OURS}")],
)
def test_instructions_stand_where_their_mode_puts_them(api: str, mode: str, expected: str) -> None:
    request = _applied(api, _instructions(OURS, mode))
    assert request.messages == [{"role": "system", "content": expected}, USER]
    assert APIS[api].read(request.fields).messages == request.messages


@each_api
def test_a_template_repeats_the_agents_instructions_and_its_metadata(api: str) -> None:
    bundle = _instructions("{{variables.shop}}: {{instructions}}", "replace", "shop")
    request = _applied(api, bundle, metadata={"shop": "Acme"})
    assert request.messages[0]["content"] == f"Acme: {SENT}"


@each_api
def test_variables_of_their_own_member_come_first_and_reach_no_server(api: str) -> None:
    bundle = _instructions("{{variables.shop}} {{variables.day}}", "replace", "shop", "day")
    metadata, variables = {"shop": "Other", "day": "Monday"}, {"shop": "Acme"}
    request = _applied(api, bundle, metadata=metadata, ratchet_variables=variables)
    assert request.messages[0]["content"] == "Acme Monday"
    assert "ratchet_variables" not in {**provider_fields(request, "m"), **engine_fields(request, "m")}


@each_api
def test_a_call_without_a_variable_is_refused(api: str) -> None:
    with pytest.raises(MissingVariable, match="shop"):
        _applied(api, _instructions("{{variables.shop}}", "replace", "shop"))


@each_api
def test_examples_stand_after_the_instructions(api: str) -> None:
    examples = (Example(role="user", content="one"), Example(role="assistant", content="two"))
    request = _applied(api, Bundle(examples=examples))
    texts = [(message["role"], message["content"]) for message in request.messages]
    assert texts == [("system", SENT), ("user", "one"), ("assistant", "two"), ("user", "hello")]


@pytest.mark.parametrize(
    ("text", "mode", "instructions", "head"),
    [
        (OURS, "replace", OURS, []),
        (OURS, "append", None, [{"role": "developer", "content": f"{SENT}\n\nMore.\n\n{OURS}"}]),
        ("<{{instructions}}>", "replace", None, [{"role": "developer", "content": f"<{SENT}\n\nMore.>"}]),
    ],
)
def test_instructions_in_input_stay_in_conversation_that_provider_stores(
    text: str, mode: str, instructions: str | None, head: list[Any]
) -> None:
    leading = [{"role": "developer", "content": "More."}]
    request = _native(_applied("responses", _instructions(text, mode), input=[*leading, USER]))
    assert (request.get("instructions"), request["input"]) == (instructions, [*head, USER])


def test_examples_are_not_repeated_where_a_response_is_continued() -> None:
    bundle = Bundle(examples=(Example(role="user", content="one"), Example(role="assistant", content="two")))
    request = _applied("responses", bundle, previous_response_id="resp_1")
    assert _native(request)["input"] == "hello"


def test_blocks_of_a_system_prompt_keep_their_marks() -> None:
    marked = [{"type": "text", "text": SENT, "cache_control": {"type": "ephemeral"}}]
    request = _applied("messages", _instructions(OURS, "append"), system=marked)
    assert _native(request)["system"] == [*marked, {"type": "text", "text": OURS}]


def _tools(api: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"order": {"type": "string", "description": "old"}}}
    plain = [{"name": name, "description": "old"} for name in ("refund", "escalate")]
    if api == "messages":
        return [{**tool, "input_schema": schema} for tool in plain]
    described = [{**tool, "parameters": schema} for tool in plain]
    if api == "responses":
        return [{"type": "function", **tool} for tool in described]
    return [{"type": "function", "function": tool} for tool in described]


@each_api
def test_tools_get_their_texts_and_hidden_ones_are_not_offered(api: str) -> None:
    refund = ToolTexts(description="new", parameters={"order": "its number", "unknown": "x"})
    bundle = Bundle(tools={"refund": refund, "escalate": ToolTexts(hidden=True), "elsewhere": ToolTexts()})
    request = _applied(api, bundle, tools=_tools(api))
    (tool,) = request.value("tools")
    function = tool["function"]
    assert (function["name"], function["description"]) == ("refund", "new")
    assert function["parameters"]["properties"] == {"order": {"type": "string", "description": "its number"}}


NAMESPACE: dict[str, Any] = {"type": "namespace", "name": "crm", "description": "Customers.", "limit": 1}


def test_tools_in_namespaces_and_in_the_input_are_named_as_turns_name_them() -> None:
    refund, escalate = _tools("responses")
    added = {"type": "additional_tools", "role": "developer", "tools": [refund, escalate]}
    texts = {"crm__refund": ToolTexts(description="new"), "refund": ToolTexts(hidden=True)}
    request = _applied(
        "responses", Bundle(tools=texts), tools=[{**NAMESPACE, "tools": [refund, escalate]}], input=[added, USER]
    )
    sent = _native(request)
    assert sent["tools"] == [{**NAMESPACE, "tools": [{**refund, "description": "new"}, escalate]}]
    assert sent["input"] == [{**added, "tools": [escalate]}, USER]


def test_a_namespace_whose_tools_are_hidden_is_not_offered() -> None:
    tools = [{**NAMESPACE, "tools": _tools("responses")[:1]}]
    choice = {"type": "function", "name": "refund", "namespace": "crm"}
    bundle = Bundle(tools={"crm__refund": ToolTexts(hidden=True)})
    assert not _native(_applied("responses", bundle, tools=tools, tool_choice=choice)).keys() & {"tools", "tool_choice"}


def test_functions_of_older_chat_get_their_texts_and_are_recorded_as_tools() -> None:
    functions = [tool["function"] for tool in _tools("chat")]
    bundle = Bundle(tools={"refund": ToolTexts(description="new"), "escalate": ToolTexts(hidden=True)})
    request = _applied("chat", bundle, functions=functions, function_call={"name": "escalate"})
    (function,) = _native(request)["functions"]
    assert (function["description"], "function_call" in _native(request)) == ("new", False)
    assert request.tools == [{"type": "function", "function": function}]


@pytest.mark.parametrize("functions", ["x", 5, {"name": "refund"}, [None, "refund", ["refund"]], None])
def test_functions_that_are_none_are_no_tools(functions: object) -> None:
    request = _applied("chat", Bundle(tools={"refund": ToolTexts(hidden=True)}), functions=functions)
    assert request.tools == []
    assert _native(request)["functions"] == functions


def test_a_call_without_any_tool_left_has_no_choice_of_one() -> None:
    bundle = Bundle(tools={name: ToolTexts(hidden=True) for name in ("refund", "escalate")})
    request = _applied("chat", bundle, tools=_tools("chat"), tool_choice="required", parallel_tool_calls=False)
    assert not _native(request).keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@each_api
def test_defaults_yield_to_the_agent_and_overrides_do_not(api: str) -> None:
    defaults, overrides = SamplingValues(temperature=0.5, top_p=0.5), SamplingValues(max_tokens=5)
    request = _applied(api, Bundle(defaults=defaults, overrides=overrides), temperature=0.1)
    assert (request.sampling.temperature, request.sampling.top_p) == (0.1, 0.5)
    assert _native(request).keys() & {"max_tokens", "max_completion_tokens", "max_output_tokens"} == {
        {"chat": "max_completion_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[api]
    }
    assert 5 in _native(request).values()


@pytest.mark.parametrize(
    ("sent", "limit", "expected"),
    [
        ({"max_tokens": 9}, None, {"max_tokens": 5}),
        ({"max_completion_tokens": 9}, "max_tokens", {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 9, "max_tokens": 9}, None, {"max_completion_tokens": 5}),
        ({}, "max_tokens", {"max_tokens": 5}),
        ({}, None, {"max_completion_tokens": 5}),
    ],
)
def test_a_limit_has_the_name_that_the_agent_used_else_the_servers(
    sent: dict[str, int], limit: str | None, expected: dict[str, int]
) -> None:
    bundle = Bundle(overrides=SamplingValues(max_tokens=5))
    request = _native(_applied("chat", bundle, limit, **sent))
    assert {name: value for name, value in request.items() if name.startswith("max_")} == expected


@pytest.mark.parametrize(
    ("values", "sent", "effort"),
    [
        ("overrides", {"summary": "auto", "effort": "high"}, "low"),
        ("defaults", {"summary": "auto", "effort": "high"}, "high"),
        ("defaults", {"summary": "auto"}, "low"),
    ],
)
def test_an_effort_keeps_the_other_members_of_reasoning(values: str, sent: dict[str, str], effort: str) -> None:
    bundle = Bundle(**{values: SamplingValues(reasoning_effort="low")})  # pyright: ignore[reportArgumentType] - by name
    request = _applied("responses", bundle, reasoning=sent)
    assert request.value("reasoning_effort") == effort
    assert _native(request)["reasoning"] == {"summary": "auto", "effort": effort}


@each_api
def test_the_answers_format_is_the_bundles(api: str) -> None:
    shape = _applied(api, Bundle(response_format=FORMAT)).value("response_format")
    assert shape["json_schema"]["schema"] == {"type": "object"}


def test_a_text_completion_takes_sampling_alone() -> None:
    text = APIS["completion"]
    request = text.read(read_fields(b'{"model": "support", "prompt": "hello"}'))
    bundle = Bundle(instructions=Instructions(text=OURS), overrides=SamplingValues(max_tokens=5))
    assert _native(Applier(bundle).apply(text, request)) == {"model": "support", "prompt": "hello", "max_tokens": 5}


@each_api
def test_what_a_bundle_does_not_name_stays_as_it_was_sent(api: str) -> None:
    request = _applied(api, _instructions(OURS), metadata={"a": 1.50}, unknown=[1, {"b": None}])
    assert {"metadata": {"a": 1.5}, "unknown": [1, {"b": None}]}.items() <= _native(request).items()


@each_api
def test_tools_that_a_bundle_does_not_name_stay_byte_for_byte(api: str) -> None:
    other = b'{"type": "function", "name": "other", "limit": 12345678901234567890123}'
    fields = read_fields(msgspec.json.encode(BODIES[api]))
    fields["tools"] = msgspec.Raw(b"[" + other + b"," + msgspec.json.encode(_tools(api)[0]) + b"]")
    bundle = Bundle(tools={"refund": ToolTexts(hidden=True)})
    changed = Applier(bundle).apply(APIS[api], APIS[api].read(fields))
    assert bytes(changed.fields["tools"]) == b"[" + other + b"]"


def test_input_items_stay_byte_for_byte() -> None:
    item = b'{"role": "user",  "content": "hello", "weight": 12345678901234567890123}'
    fields = {**read_fields(msgspec.json.encode(RESPONSES)), "input": msgspec.Raw(b"[" + item + b"]")}
    request = Applier(_instructions(OURS)).apply(APIS["responses"], APIS["responses"].read(fields))
    assert bytes(request.fields["input"]) == b"[" + item + b"]"


@pytest.mark.parametrize("name", [["refund"], {"refund": 1}])
def test_odd_names_and_roles_are_left_to_the_engine(name: object) -> None:
    bundle = Bundle(instructions=Instructions(text=OURS), tools={"refund": ToolTexts(hidden=True)})
    odd = {"role": name, "content": "hello"}
    tools: dict[str, Any] = {"tools": [{"function": {"name": name}}], "tool_choice": {"name": name}}
    request = _native(_applied("chat", bundle, messages=[odd], **tools))
    assert request["messages"] == [{"role": "system", "content": OURS}, odd]
    assert tools.items() <= request.items()


def test_a_custom_tool_is_hidden_by_its_name() -> None:
    bundle = Bundle(tools={"refund": ToolTexts(hidden=True)})
    request = _applied("chat", bundle, tools=[{"type": "custom", "custom": {"name": "refund"}}])
    assert not request.has("tools")


def _allowing(api: str, *names: str) -> dict[str, Any]:
    if api == "responses":
        return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": n} for n in names]}
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_hidden_tool_is_not_among_the_allowed_ones(api: str) -> None:
    bundle = Bundle(tools={"refund": ToolTexts(hidden=True)})
    both = _native(_applied(api, bundle, tools=_tools(api), tool_choice=_allowing(api, "refund", "escalate")))
    assert both["tool_choice"] == _allowing(api, "escalate")
    alone = _native(_applied(api, bundle, tools=_tools(api), tool_choice=_allowing(api, "refund")))
    assert alone["tool_choice"] == "none"


def test_a_choice_of_a_tool_that_is_not_hidden_stays() -> None:
    chosen = {"type": "mcp", "server_label": "shop", "name": "stock"}
    bundle = Bundle(tools={"refund": ToolTexts(description="new")})
    request = _applied("responses", bundle, tools=_tools("responses"), tool_choice=chosen)
    assert _native(request)["tool_choice"] == chosen


def test_instructions_that_come_out_empty_leave_no_empty_chat() -> None:
    messages = [{"role": "system", "content": ""}]
    request = _applied("chat", _instructions("{{instructions}}"), messages=messages)
    assert (request.messages, _native(request)["messages"]) == (messages, messages)


def test_a_history_that_is_not_known_stays_an_obstacle() -> None:
    responses = APIS["responses"]
    request = responses.read(read_fields(msgspec.json.encode({**RESPONSES, "previous_response_id": "resp_1"})))
    unknown = dataclasses.replace(asked_of(request), obstacle=NotFound("no such response"))
    changed = Applier(_instructions(OURS)).apply(responses, msgspec.structs.replace(request, as_chat=unknown))
    with pytest.raises(NotFound):
        chat_call(changed)


_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": st.sampled_from(["one", "two"])}
)


@given(st.lists(_MESSAGE, min_size=1, max_size=6), st.sampled_from(["replace", "prepend", "append"]), st.booleans())
def test_a_turn_holds_exactly_what_the_engine_got(messages: list[Any], mode: str, with_examples: bool) -> None:
    examples = (Example(role="user", content="one"), Example(role="assistant", content="two"))
    bundle = Bundle(instructions=Instructions(text="one", mode=mode), examples=examples if with_examples else ())
    sent = APIS["chat"].read(read_fields(msgspec.json.encode({**CHAT, "messages": messages})))
    got = Applier(bundle).apply(APIS["chat"], sent)
    applied = applied_of(sent, got) or Applied(digest="", replaced=0, head=[])
    assert [*(applied.head or ()), *messages[applied.replaced or 0 :]] == _native(got)["messages"]
