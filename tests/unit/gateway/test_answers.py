"""An engine's answer: taken apart, shown to the agent, and streamed so that a client puts the same answer together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.core.contract.turn import Sampling, Usage
from ratchet.core.service.problems import HttpError
from ratchet.dialects.answers import agent_body
from ratchet.dialects.api_dialect import CHAT, TEXT, ApiDialect, chat_answer, text_answer
from ratchet.dialects.requests import CallRequest, read_fields
from ratchet.dialects.streams import EventSplitter, PassedStream, Problem, chunk_of, datas
from ratchet.gateway.domain.turns import trainable_of
from ratchet.gateway.engines.base import relayed_headers
from tests.support.fake_streams import event_of

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


def request(**members: Any) -> CallRequest:
    return CHAT.read(read_fields(msgspec.json.encode({**PLAIN, **members})))


def chunks_of(dialect: ApiDialect, choice: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    """A whole answer as the chunks that the agent gets."""
    asked = dialect.read(read_fields(msgspec.json.encode({**PLAIN, "prompt": "x", "stream": True, **members})))
    answer = {"id": "c-1", "object": "chat.completion", "created": 7, "model": "support@1-1", "usage": USAGE}
    chunks = dialect.replay({**answer, "choices": [{"index": 0, "finish_reason": "stop", **choice}]})
    shown = PassedStream(asked, dialect.error_event, of_policy=True)
    return list(map(chunk_of, datas(EventSplitter().feed(b"".join(shown.feed(event_of(one)[:-2]) for one in chunks)))))


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
    raw = msgspec.json.encode(answer)
    assert msgspec.json.decode(agent_body(request(), raw)) == {"choices": [{"message": {}}]}
    assert msgspec.json.decode(agent_body(request(logprobs=True, return_token_ids=True), raw)) == answer


def test_a_whole_chat_is_a_chunk_with_its_message_and_one_that_ends_it() -> None:
    chunks = chunks_of(CHAT, {"message": {"role": "assistant", "content": "It arrives today."}})
    first, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": "It arrives today."}
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert first["finish_reason"] is None
    assert {(chunk["object"], chunk["id"], chunk["created"]) for chunk in chunks} == {
        ("chat.completion.chunk", "c-1", 7)
    }
    assert not any("usage" in chunk for chunk in chunks)


def test_the_tool_calls_of_a_whole_chat_have_their_index() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    chunks = chunks_of(CHAT, {"message": message, "finish_reason": "tool_calls"})
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    built = message_of(chunks)["tool_calls"]
    assert [built[0]["id"], built[0]["name"], built[0]["type"]] == ["call_a", "look_up", "function"]
    assert [built[n]["arguments"] for n in (0, 1)] == [call["function"]["arguments"] for call in CALLS]


def test_the_input_of_a_custom_tool_comes_whole() -> None:
    custom = {"id": "call_c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    message = {"role": "assistant", "content": None, "tool_calls": [custom]}
    chunks = chunks_of(CHAT, {"message": message, "finish_reason": "tool_calls"})
    assert chunks[0]["choices"][0]["delta"]["tool_calls"] == [{**custom, "index": 0}]


def test_usage_comes_in_a_last_chunk_without_choices_when_it_is_asked_for() -> None:
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
    error = HttpError(502, "gone", code="engine_failed")
    problem = Problem(error.status, error.body.error)
    assert CHAT.error_event(problem) == b"data: " + CHAT.error(problem) + b"\n\n"
    assert CHAT.error(problem) == error.json


def test_a_choice_is_the_one_with_its_index_whatever_the_order() -> None:
    choices = [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]
    assert text_answer({"choices": choices}, 0).message == {"role": "assistant", "content": "a"}
    assert text_answer({"choices": choices}, 1).message == {"role": "assistant", "content": "b"}
    with pytest.raises(KeyError):
        text_answer({"choices": choices[:1]}, 0)
    assert text_answer({"choices": [{"text": "a"}, {"text": "b"}]}, 1).message == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("tokens", [-1, 2**63, 10**30])
def test_what_is_no_number_of_tokens_is_refused(tokens: int) -> None:
    choice = {"index": 0, "text": "a"}
    with pytest.raises(ValueError, match="no number"):
        text_answer({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})


def test_headers_of_an_engine_reach_the_agent_however_they_are_spelled() -> None:
    sent = [(b"Retry-After", b"7"), (b"X-Request-Id", b"r"), (b"X-RateLimit-Limit", b"9"), (b"Set-Cookie", b"a=b")]
    assert relayed_headers(sent) == [(b"retry-after", b"7"), (b"x-request-id", b"r"), (b"x-ratelimit-limit", b"9")]
