"""Tool-call formats: what the policy wrote comes back verbatim, malformed or not."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats import TOOL_FORMATS
from ratchet.local.engine_local.transformers_text import ChatText, load_text

CALL_TOKEN, HERMES, LLAMA, QWEN = (
    TOOL_FORMATS[name] for name in ("call_token", "hermes", "llama3_json", "qwen3_coder")
)
TYPES = {
    "city": {"type": "string"},
    "days": {"type": ["integer", "null"]},
    "near": {"anyOf": [{"type": "boolean"}, {}]},
    "size": {"type": "number"},
    "more": {"type": "object"},
}
OFFERED: list[JsonObject] = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": TYPES}}}
]
words = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1)


def rendered_call_token(content: str | None, calls: list[tuple[str, str]]) -> str:
    return (content or "") + "".join(f"<|call|>{name} {arguments}" for name, arguments in calls)


def rendered_hermes(content: str | None, calls: list[tuple[str, str]]) -> str:
    blocks = [f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls]
    return "\n".join(([content] if content else []) + blocks)


@given(st.none() | words, st.lists(st.tuples(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), words)))
def test_call_token_round_trips_any_arguments(content: str | None, calls: list[tuple[str, str]]) -> None:
    reply = CALL_TOKEN.parse(rendered_call_token(content, calls), [])
    assert reply.content == content
    assert [(call.name, call.arguments) for call in reply.calls] == calls


@pytest.mark.parametrize(
    "arguments",
    [
        '{"id":"K47"}',
        '{"a": "}}</tool_call>"}',
        '{"n": 1e999}',
        '{"n": ' + "9" * 5000 + "}",
        '{ "id" : "K47",  "n": 1.50 }',
        '{"a": {"b": "}</tool>"}}',
        "{}",
    ],
)
@pytest.mark.parametrize("content", [None, "Let me look."])
def test_hermes_keeps_arguments_as_they_were_written(content: str | None, arguments: str) -> None:
    calls = [("look_up", arguments), ("refund", '{"id": "X"}')]
    reply = HERMES.parse(rendered_hermes(content, calls), [])
    assert (reply.content, [(c.name, c.arguments) for c in reply.calls]) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "x", "arguments": {</tool_call>',
        "<tool_call>not json</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {}}</tool_call> and then more',
        '<tool_call>{"name": "x", "arguments": {}}',
        "plain text with <angle> brackets",
        " " * 100_000,
    ],
)
def test_hermes_passes_malformed_calls_on_as_text(text: str) -> None:
    reply = HERMES.parse(text, [])
    assert (reply.content, list(reply.calls)) == (text, [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            '{"name": "look", "parameters": {"city": "Oslo",  "days": 1.50}}',
            [("look", '{"city": "Oslo",  "days": 1.50}')],
        ),
        ('<|python_tag|>{"name": "look", "arguments": {}}', [("look", "{}")]),
        (
            ' {"name": "a", "parameters": {"b": "};"}} ; {"name": "c", "parameters": 1}\n',
            [("a", '{"b": "};"}'), ("c", "1")],
        ),
        (' <|python_tag|> {"name": "look", "parameters": {}};', [("look", "{}")]),
    ],
)
def test_llama_calls_with_its_whole_answer(text: str, calls: list[tuple[str, str]]) -> None:
    reply = LLAMA.parse(text, [])
    assert (reply.content, [(c.name, c.arguments) for c in reply.calls]) == (None, calls)


@pytest.mark.parametrize(
    "text",
    [
        'Let me look: {"name": "look", "parameters": {}}',
        '{"name": "look", "parameters": {}} as you asked',
        '{"name": "look"}',
        '{"parameters": {}}',
        '{"name": "look", "parameters": {}',
        '{"answer": 42}',
        "[1]",
        "{" * 10_000,
        "plain",
    ],
)
def test_what_is_no_call_of_llama_is_its_text(text: str) -> None:
    reply = LLAMA.parse(text, [])
    assert (reply.content, list(reply.calls)) == (text, [])


def qwen(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"city": "Oslo\n\nand 12"}, {"city": "Oslo\n\nand 12"}),
        ({"city": "12"}, {"city": "12"}),
        ({"days": "12"}, {"days": 12}),
        ({"days": "None"}, {"days": None}),
        ({"days": "soon"}, {"days": "soon"}),
        ({"days": "true"}, {"days": "true"}),
        ({"days": "9" * 5000}, {"days": "9" * 5000}),
        ({"days": "9007199254740993"}, {"days": 9007199254740993}),
        ({"near": "True"}, {"near": True}),
        ({"size": "NaN"}, {"size": "NaN"}),
        ({"size": "-1e999"}, {"size": "-1e999"}),
        ({"more": '{"a": NaN}'}, {"more": '{"a": NaN}'}),
        ({"more": '{"a": "\\ud800"}'}, {"more": '{"a": "\\ud800"}'}),
        ({"far": "12"}, {"far": "12"}),
        ({}, {}),
    ],
)
def test_qwen_writes_values_as_texts_and_the_tool_names_their_types(
    written: dict[str, str], value: dict[str, object]
) -> None:
    reply = QWEN.parse(f"Let me look.\n\n{qwen('look', **written)}\n{qwen('wait', days='3')}", OFFERED)
    assert (reply.content, [call.name for call in reply.calls]) == ("Let me look.", ["look", "wait"])
    assert [msgspec.json.decode(call.arguments) for call in reply.calls] == [value, {"days": "3"}]


@pytest.mark.parametrize(
    "function",
    [
        None,
        "look",
        ["look"],
        {"name": ["look"]},
        {"name": "look", "parameters": []},
        {"name": "look", "parameters": {"properties": 5}},
        {"name": "look", "parameters": {"properties": {"days": {"$ref": "#/$defs/days"}}}},
        {"name": "look", "parameters": {"properties": {"days": {"type": [None, []], "anyOf": {}, "oneOf": [5]}}}},
    ],
)
def test_what_a_schema_does_not_say_is_a_text(function: object) -> None:
    reply = QWEN.parse(qwen("look", days="3"), [{"type": "function", "function": function}])
    assert [(call.name, call.arguments) for call in reply.calls] == [("look", '{"days": "3"}')]


@pytest.mark.parametrize(
    "text",
    [
        qwen("look", city="Oslo") + " and then more",
        qwen("look", city="Oslo").removesuffix("</tool_call>"),
        "<tool_call>\n<function=look>\n<parameter=city>\nOslo\n</function>\n</tool_call>",
        "<tool_call>" + " " * 100_000,
        "plain",
    ],
)
def test_what_is_no_call_of_qwen_is_its_text(text: str) -> None:
    reply = QWEN.parse(text, OFFERED)
    assert (reply.content, list(reply.calls)) == (text, [])


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_nothing_is_an_empty_answer(tool_format: str) -> None:
    reply = TOOL_FORMATS[tool_format].parse("", [])
    assert (reply.content, list(reply.calls)) == (None, [])


def test_calls_are_named_after_the_answer() -> None:
    message = CALL_TOKEN.parse("<|call|>a {}<|call|>b {", []).message("call_7")
    assert [call["id"] for call in message["tool_calls"]] == ["call_7_0", "call_7_1"]
    assert message["tool_calls"][1]["function"] == {"name": "b", "arguments": "{"}


def test_a_rendered_answer_is_encoded_as_it_was_written(tiny_directory: Path) -> None:
    text = load_text(tiny_directory)
    written = 'I look. <|call|>look_up {"id":"K47"}'
    asked: list[JsonObject] = [{"role": "user", "content": "where is K47"}]
    prompt = text.chat_ids(asked, [])
    result = {"role": "tool", "tool_call_id": "call_1_0", "content": "sent"}
    following = text.chat_ids([*asked, text.reply(written, OFFERED).message("call_1"), result], [])
    end = following.index(min(text.end_ids), len(prompt))
    assert following[: len(prompt)] == prompt
    assert text.text(following[len(prompt) : end + 1]) == written


@pytest.fixture
def text(tiny_directory: Path) -> ChatText:
    return load_text(tiny_directory)


@pytest.mark.parametrize(
    ("output", "tools", "content", "calls"),
    [
        ("let me<|call|>look {}", True, "let me", ["look"]),
        ("<|call|>look {}", False, "look {}", []),
        ("<|call|> {}", True, " {}", []),
        ("<|call|>cl<|tool|>stage {}", True, "clstage {}", []),
        ("cl<|tool|>stage", True, "clstage", []),
        ("", False, "", []),
        ("", True, "", []),
    ],
)
def test_calls_are_for_agents_with_tools_and_no_control_token_leaks(
    text: ChatText, output: str, tools: bool, content: str, calls: list[str]
) -> None:
    reply = text.reply(output, OFFERED if tools else [])
    assert (reply.content, [call.name for call in reply.calls]) == (content, calls)


def test_a_control_token_in_arguments_is_taken_out(text: ChatText) -> None:
    reply = text.reply('<|call|>look {"id": "<|end|>K47"}', OFFERED)
    assert (reply.content, reply.calls[0].arguments) == (None, '{"id": "K47"}')


def test_a_stop_text_cuts_no_control_token(text: ChatText) -> None:
    assert text.until_stop("x<|call|>y<|tool|>ab", ["a"]) == "x<|call|>y<|tool|>"
    plain = text.text_ids("xy")
    (call,) = (token for token in text.control_ids if text.text([token, *plain]).startswith("<|call|>"))
    stopped = text.stop_finder(["a"])
    assert not stopped([*plain, call, *plain])
    assert stopped([*plain, call, *text.text_ids("a")])


@given(st.text("ab <|cl>", max_size=60), st.sampled_from(["ab", "a", "b a", "aab"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_a_stop_text_is_noticed_with_the_token_that_completes_it(text: ChatText, output: str, stop: str) -> None:
    ids = text.text_ids(output + "x")
    stopped = text.stop_finder([stop])
    for count in range(1, len(ids) + 1):
        whole = text.text(ids[:count])
        here = len(text.until_stop(whole, [stop])) < len(whole)
        assert stopped(ids[:count]) == here
        if here:
            break


def test_looking_for_a_stop_text_costs_the_same_after_a_long_answer(text: ChatText) -> None:
    stopped, token = text.stop_finder(["never"]), text.text_ids("x")[0]
    seen: list[int] = []

    class Ids(list[int]):
        def __getitem__(self, place: Any) -> Any:
            part = super().__getitem__(place)
            seen.append(len(part))
            return part

    for count in (1000, 100_000):
        assert not stopped(Ids([token] * count))
    assert seen[0] == seen[1] < 200
