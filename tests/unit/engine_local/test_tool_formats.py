"""Tool-call formats: what the policy wrote comes back verbatim, malformed or not."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ratchet.bus.message import JsonObject
from ratchet.chat_templates.tool_formats import TOOL_FORMATS
from ratchet.engine_local.transformers_text import ChatText, load_text

CALL_TOKEN, HERMES = TOOL_FORMATS["call_token"], TOOL_FORMATS["hermes"]
words = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1)


def rendered_call_token(content: str | None, calls: list[tuple[str, str]]) -> str:
    return (content or "") + "".join(f"<|call|>{name} {arguments}" for name, arguments in calls)


def rendered_hermes(content: str | None, calls: list[tuple[str, str]]) -> str:
    blocks = [f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls]
    return "\n".join(([content] if content else []) + blocks)


@given(st.none() | words, st.lists(st.tuples(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), words)))
def test_call_token_round_trips_any_arguments(content: str | None, calls: list[tuple[str, str]]) -> None:
    reply = CALL_TOKEN.parse(rendered_call_token(content, calls))
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
    reply = HERMES.parse(rendered_hermes(content, calls))
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
    ],
)
def test_hermes_passes_malformed_calls_on_as_text(text: str) -> None:
    reply = HERMES.parse(text)
    assert (reply.content, list(reply.calls)) == (text, [])


def test_nothing_is_an_empty_answer() -> None:
    assert [(one.content, list(one.calls)) for one in (CALL_TOKEN.parse(""), HERMES.parse(""))] == [(None, [])] * 2


def test_calls_are_named_after_the_answer() -> None:
    message = CALL_TOKEN.parse("<|call|>a {}<|call|>b {").message("call_7")
    assert [call["id"] for call in message["tool_calls"]] == ["call_7_0", "call_7_1"]
    assert message["tool_calls"][1]["function"] == {"name": "b", "arguments": "{"}


def test_a_rendered_answer_is_encoded_as_it_was_written(tiny_directory: Path) -> None:
    text = load_text(tiny_directory)
    written = 'I look. <|call|>look_up {"id":"K47"}'
    asked: list[JsonObject] = [{"role": "user", "content": "where is K47"}]
    prompt = text.chat_ids(asked, [])
    result = {"role": "tool", "tool_call_id": "call_1_0", "content": "sent"}
    following = text.chat_ids([*asked, text.reply(written, tools=True).message("call_1"), result], [])
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
    reply = text.reply(output, tools=tools)
    assert (reply.content, [call.name for call in reply.calls]) == (content, calls)


def test_a_control_token_in_arguments_is_taken_out(text: ChatText) -> None:
    reply = text.reply('<|call|>look {"id": "<|end|>K47"}', tools=True)
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
