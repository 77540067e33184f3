"""An engine's answer: taken apart, shown to the agent, and streamed so that a client puts the same answer together."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, strategies as st

from ratchet.contract.turn import Sampling, Usage
from ratchet.gateway.domain.answers import PIECES, agent_body, event_of, pieces
from ratchet.gateway.domain.forms import CHAT, TEXT, Form, chat_answer, read_chat, text_answer
from ratchet.gateway.domain.turns import trainable_of
from ratchet.service.problems import HttpError

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
PLAIN: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "hi"}]}
CALLS: list[Any] = [
    {
        "id": "call_a",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"order_id": "K47", "deep": true}'},
    },
    {"id": "call_b", "type": "function", "function": {"name": "refund", "arguments": "{}"}},
]


def chunks_of(form: Form, choice: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    """The chunks of a stream; checks that it ends as streams do."""
    body = {"model": "support", "messages": [{"role": "user", "content": "x"}], "prompt": "x", **members}
    answer = {"id": "c-1", "object": "chat.completion", "created": 7, "model": "support@1-1", "usage": USAGE}
    events = form.stream(form.read(body), {**answer, "choices": [{"index": 0, "finish_reason": "stop", **choice}]})
    lines = b"".join(events).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


def message_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as OpenAI's clients put it together."""
    message: dict[str, Any] = {"content": "", "tool_calls": {}}
    for delta in [choice["delta"] for chunk in chunks for choice in chunk["choices"]]:
        message["content"] += delta.get("content") or ""
        for part in delta.get("tool_calls", []):
            known = message["tool_calls"].setdefault(part["index"], {"arguments": ""})
            known["arguments"] += part["function"].get("arguments") or ""
            known |= {key: part[key] for key in ("id", "type") if key in part}
            known |= {"name": part["function"]["name"]} if "name" in part["function"] else {}
    return message


def test_a_chat_completion_is_taken_apart() -> None:
    answer = chat_answer(
        {
            "prompt_token_ids": [1, 2],
            "choices": [
                {
                    "message": {"role": "assistant", "content": "x"},
                    "token_ids": [3],
                    "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
        }
    )
    assert (answer.prompt_ids, answer.output_ids, answer.logprobs) == ([1, 2], [3], [-0.5])
    assert answer.usage == Usage(prompt=2, completion=1, cached=1)


def test_a_completion_is_taken_apart_as_an_assistants_message() -> None:
    choice = {"text": " ok", "token_ids": [7], "prompt_token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    answer = text_answer({"choices": [{**choice, "finish_reason": "length"}], "usage": usage})
    assert answer.message == {"role": "assistant", "content": " ok"}
    assert trainable_of(Sampling(), answer).ok


def test_the_agent_gets_only_what_it_asked_for() -> None:
    answer = {"prompt_token_ids": [1], "choices": [{"message": {}, "token_ids": [2], "logprobs": {"content": []}}]}
    assert agent_body(read_chat(PLAIN), answer) == {"choices": [{"message": {}}]}
    asked = {**PLAIN, "logprobs": True, "return_token_ids": True}
    assert agent_body(read_chat(asked), answer) == answer


@given(st.text(max_size=3000))
def test_the_pieces_of_a_text_give_it_back_and_are_few(text: str) -> None:
    cut = pieces(text)
    assert "".join(cut) == text
    assert len(cut) <= PIECES
    assert all(cut)


def test_a_chat_begins_with_the_role_comes_in_pieces_and_ends_with_the_reason() -> None:
    chunks = chunks_of(CHAT, {"message": {"role": "assistant", "content": "It was sent on Monday, and arrives today."}})
    first, *middle, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"]["role"] == "assistant"
    assert len(middle) > 2
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert {choice["finish_reason"] for choice in [first, *middle]} == {None}
    assert message_of(chunks)["content"] == "It was sent on Monday, and arrives today."
    assert {(chunk["object"], chunk["id"], chunk["created"]) for chunk in chunks} == {
        ("chat.completion.chunk", "c-1", 7)
    }
    assert not any("usage" in chunk for chunk in chunks)


def test_tool_calls_come_with_index_id_and_name_and_then_their_arguments() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    chunks = chunks_of(CHAT, {"message": message, "finish_reason": "tool_calls"})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    built = message_of(chunks)["tool_calls"]
    assert [built[0]["id"], built[0]["name"], built[0]["type"]] == ["call_a", "look_up", "function"]
    assert [built[n]["arguments"] for n in (0, 1)] == [call["function"]["arguments"] for call in CALLS]


def test_the_input_of_a_custom_tool_comes_whole() -> None:
    custom = {"id": "call_c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    message = {"role": "assistant", "content": None, "tool_calls": [custom]}
    chunks = chunks_of(CHAT, {"message": message, "finish_reason": "tool_calls"})
    assert chunks[1]["choices"][0]["delta"]["tool_calls"] == [{**custom, "index": 0}]


def test_the_usage_comes_in_a_last_chunk_without_choices_when_it_is_asked_for() -> None:
    options = {"stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(CHAT, {"message": {"role": "assistant", "content": "ok"}}, **options)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_a_text_completion_streams_its_text() -> None:
    chunks = chunks_of(TEXT, {"text": "once upon a time there was a clerk"})
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "once upon a time there was a clerk"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_other_members_of_a_message_come_with_its_role() -> None:
    message = {"role": "assistant", "content": "ok", "reasoning_content": "hm", "refusal": None}
    assert chunks_of(CHAT, {"message": message})[0]["choices"][0]["delta"]["reasoning_content"] == "hm"


def test_an_error_in_a_stream_has_the_shape_of_an_error_before_the_stream() -> None:
    event = event_of(HttpError(502, "gone", code="engine_failed").body)
    assert msgspec.json.decode(event.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
