"""A bundle applied to requests of each API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.core.contract.bundle import Bundle, Example, Instructions, SamplingValues, ToolTexts
from ratchet.core.rules.bundles import MissingVariable
from ratchet.dialects.apis import APIS
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import CallRequest, read_fields

SENT, OURS = "You are the agent's own.", "You are ours."
USER = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"model": "support", "messages": [{"role": "system", "content": SENT}, USER]}
RESPONSES: dict[str, Any] = {"model": "support", "instructions": SENT, "input": "hello"}
MESSAGES: dict[str, Any] = {"model": "support", "max_tokens": 9, "system": SENT, "messages": [USER]}
BODIES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
each_api = pytest.mark.parametrize("api", BODIES)
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def _applied(api: str, bundle: Bundle, **members: object) -> CallRequest:
    body = {**BODIES[api], **members}
    return Applier(bundle).apply(APIS[api], APIS[api].read(read_fields(msgspec.json.encode(body))))


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
def test_a_call_without_a_variable_is_refused(api: str) -> None:
    with pytest.raises(MissingVariable, match="shop"):
        _applied(api, _instructions("{{variables.shop}}", "replace", "shop"))


@each_api
def test_examples_stand_after_the_instructions(api: str) -> None:
    examples = (Example(role="user", content="one"), Example(role="assistant", content="two"))
    request = _applied(api, Bundle(examples=examples))
    texts = [(message["role"], message["content"]) for message in request.messages]
    assert texts == [("system", SENT), ("user", "one"), ("assistant", "two"), ("user", "hello")]


def test_examples_are_not_repeated_where_a_response_is_continued() -> None:
    bundle = Bundle(examples=(Example(role="user", content="one"), Example(role="assistant", content="two")))
    request = _applied("responses", bundle, previous_response_id="resp_1")
    assert _native(request)["input"] == [USER]


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
