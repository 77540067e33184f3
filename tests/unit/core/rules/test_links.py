"""Two spellings of one message have one digest; two messages have two."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.contract import JsonObject
from ratchet.core.rules.chat.links import EMPTY, answer_digest, extended, prefix_digests, repeated_ids


def assistant(**members: Any) -> JsonObject:
    return {"role": "assistant", "content": None, **members}


def call(arguments: Any, **members: Any) -> JsonObject:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}, **members}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant(content="hi"), assistant(content=[{"type": "text", "text": "hi"}], name="model", refusal=None)),
        (assistant(content="hi"), assistant(content="\n hi ")),
        (assistant(content="<code>\nprint(1)\n"), assistant(content="<code>\nprint(1)\n</code>")),
        (assistant(content="hello"), assistant(content=[{"type": "output_text", "text": "hel"}, "lo"])),
        (
            assistant(tool_calls=[call('{"b": 1.0, "a": [1]}')]),
            assistant(content="", tool_calls=[call('{"a":[1],"b":1}')]),
        ),
        (assistant(tool_calls=[call('{"a": 49.90}', index=0)]), assistant(content=[], tool_calls=[call({"a": 49.9})])),
        (assistant(tool_calls=[call("")]), assistant(tool_calls=[call("{}")])),
        (assistant(tool_calls=[]), assistant(content="")),
        ({"role": "developer", "content": "be kind"}, {"role": "system", "content": "be kind", "name": "x"}),
        ({"role": "system", "content": "It is 12:01."}, {"role": "system", "content": "It is 9:35."}),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"role": "user", "content": "hi"}),
        (
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "r"},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ),
        (
            assistant(function_call={"name": "f", "arguments": "{}"}),
            assistant(
                tool_calls=[{"id": "function_call", "type": "function", "function": {"name": "f", "arguments": " {}"}}]
            ),
        ),
        (
            {"role": "function", "name": "f", "content": "r"},
            {"role": "tool", "tool_call_id": "function_call", "content": "r"},
        ),
    ],
)
def test_spellings_of_one_message_have_one_digest(one: JsonObject, other: JsonObject) -> None:
    assert extended(EMPTY, one) == extended(EMPTY, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant(content="hi"), {"role": "user", "content": "hi"}),
        (assistant(content="hi"), assistant(content="h i")),
        ({"role": "user", "content": "hi "}, {"role": "user", "content": "hi"}),
        ({"role": "user", "content": "order 1"}, {"role": "user", "content": "order 2"}),
        (assistant(tool_calls=[call('{"a": 1}')]), assistant(tool_calls=[call('{"a": "1"}')])),
        (assistant(tool_calls=[call('{"a": 1}')]), assistant(tool_calls=[call('{"a": 1}', id="call_2")])),
        (assistant(tool_calls=[call('{"a": 1.5}')]), assistant(tool_calls=[call('{"a": 1.6}')])),
        (assistant(tool_calls=[call("not json")]), assistant(tool_calls=[call("{}")])),
        ({"role": "tool", "tool_call_id": "a", "content": "r"}, {"role": "tool", "tool_call_id": "b", "content": "r"}),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
            {"role": "user", "content": ""},
        ),
    ],
)
def test_messages_that_say_something_else_have_other_digests(one: JsonObject, other: JsonObject) -> None:
    assert extended(EMPTY, one) != extended(EMPTY, other)


def test_digests_of_a_conversation_can_be_made_bit_by_bit() -> None:
    chat: list[JsonObject] = [
        {"role": "user", "content": "a"},
        assistant(content="b"),
        {"role": "user", "content": "c"},
    ]
    digests = prefix_digests(chat)
    assert digests[0] == EMPTY
    assert prefix_digests(chat[1:], digests[1]) == digests[1:]
    assert len(set(digests)) == 4


def test_an_answer_has_a_digest_by_itself_with_and_without_its_role() -> None:
    assert answer_digest({"content": "b"}) == answer_digest(assistant(content=" b"))


def test_a_message_without_a_normal_form_is_compared_by_its_role() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    assert extended(EMPTY, {"role": "user", "content": nested}) != extended(EMPTY, assistant(content=nested))
    huge = assistant(tool_calls=[call('{"a": ' + "1" * 400 + "}")])
    assert extended(EMPTY, huge) == extended(EMPTY, huge)


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        (assistant(tool_calls=[call("{}")], content="'id': 'call_2'"), ["call_1"]),
        ({"role": "tool", "tool_call_id": "call_1", "content": "'id': 'call_2'"}, ["call_1"]),
        (assistant(content=f"Calling tools:\n{[call({})]}"), ["call_1"]),
        (assistant(content=[{"type": "text", "text": '[{"id":"call_1"}, {"id": "call_2"}]'}]), ["call_1", "call_2"]),
        (assistant(content="'id': ''; 'id': 'a b'; \"id\": 7; 'id'"), []),
        ({"role": "user", "content": "[{'id': 'call_1'}]"}, []),
    ],
)
def test_calls_are_repeated_as_members_or_in_the_text_of_the_agent(message: JsonObject, ids: list[str]) -> None:
    assert list(repeated_ids(message)) == ids
