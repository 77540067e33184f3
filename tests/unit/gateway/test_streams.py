"""Events of a stream: cut wherever they arrive, shown without our additions, folded into the answer that they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.dialects.api_dialect import CHAT, TEXT, ApiDialect
from ratchet.dialects.requests import CallRequest, read_fields
from ratchet.dialects.streams import LARGEST_EVENT, EventSplitter, PassedStream, chunk_of, data_of, datas
from tests.support.fake_engine import tool_call
from tests.support.fake_streams import vllm_chunks

ALL = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
texts = st.text(min_size=1, max_size=60)


def request(dialect: ApiDialect = CHAT, **members: Any) -> CallRequest:
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "prompt": "x", "stream": True}
    return dialect.read(read_fields(msgspec.json.encode({**body, **members})))


def whole(kind: str, *choices: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 2, "completion_tokens": 3 * len(choices), "total_tokens": 2 + 3 * len(choices)}
    return {"id": "c-1", "object": kind, "created": 7, "model": "m", "choices": list(choices), "usage": usage}


def chat(index: int = 0, **message: Any) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": None, **message},
        "finish_reason": "stop",
        "token_ids": [5, 6, 7],
        "logprobs": {"content": [{"token": str(n), "logprob": -0.5 * n} for n in range(3)]},
    }


def events_of(answer: dict[str, Any], **asked: Any) -> list[bytes]:
    return [b"data: " + msgspec.json.encode(chunk) for chunk in vllm_chunks(answer, {**ALL, **asked})]


def shown(events: list[bytes], *, of_policy: bool = True, **members: Any) -> list[dict[str, Any]]:
    stream = PassedStream(request(**members), CHAT.error_event, of_policy=of_policy)
    return list(map(chunk_of, datas(EventSplitter().feed(b"".join(map(stream.feed, events))))))


@given(st.lists(st.binary(min_size=1).filter(lambda line: not {10, 13} & set(line)), max_size=5), st.data())
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_wherever_the_bytes_are_cut(
    line_end: bytes, lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(b"data: " + line + line_end * 2 for line in lines)
    splitter, events = EventSplitter(), list[bytes]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        events += splitter.feed(stream[:size])
        stream = stream[size:]
    assert [*events, *splitter.rest()] == [b"data: " + line for line in lines]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_there_with_its_last_byte(line_end: bytes) -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1" + line_end * 2) == [b"data: 1"]
    assert splitter.feed(b"data: 2" + line_end) + splitter.feed(line_end) == [b"data: 2"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_large_event_of_many_lines_in_small_pieces_is_one_event(line_end: bytes) -> None:
    splitter = EventSplitter()
    line = b"data: " + b"x" * 1000 + line_end
    for _ in range(LARGEST_EVENT // 2**10 // 2):
        for piece in (line[:500], line[500:-1], line[-1:]):
            assert splitter.feed(piece) == []
    (event,) = splitter.feed(line_end)
    assert event.count(b"\n") == LARGEST_EVENT // 2**10 // 2 - 1


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter()
    for _ in range(LARGEST_EVENT // 2**20):
        assert splitter.feed(b"x" * 2**20) == []
    with pytest.raises(ValueError, match="bytes"):
        splitter.feed(b"x")


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}", b"{}"),
        (b"data:{}", b"{}"),
        (b"event: x\ndata: {}", b"{}"),
        (b"data: a\ndata: b", b"a\nb"),
        (b": comment", None),
        (b"event: ping", None),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


def test_an_event_that_is_rewritten_keeps_its_other_lines() -> None:
    stream = PassedStream(request(), CHAT.error_event, of_policy=True)
    event = b'event: chunk\nid: 7\ndata: {"choices": [],\ndata: "logprobs_mode": "raw_logprobs"}\n: on'
    assert stream.feed(event) == b'event: chunk\nid: 7\n: on\ndata: {"choices":[]}\n\n'


@given(content=texts, reasoning=texts, arguments=texts)
def test_a_chat_that_streams_folds_into_the_whole_one(content: str, reasoning: str, arguments: str) -> None:
    calls = [tool_call("call_a", arguments), tool_call("call_b", "{}")]
    answer = whole(
        "chat.completion",
        chat(content=content, reasoning_content=reasoning),
        {**chat(1, tool_calls=calls), "finish_reason": "tool_calls"},
    )
    answer["prompt_token_ids"] = [1, 2]
    folded = CHAT.fold(map(chunk_of, datas(events_of(answer))))
    first, second = folded["choices"]
    assert first == answer["choices"][0]
    assert second["message"]["tool_calls"] == calls
    assert {**folded, "choices": []} == {**answer, "choices": []}


@given(text=texts)
def test_a_text_that_streams_folds_into_the_whole_one(text: str) -> None:
    logprobs = {"tokens": ["a", "b", "c"], "token_logprobs": [-0.1, -0.2, -0.3]}
    choice = {"index": 0, "text": text, "finish_reason": "length", "token_ids": [5, 6, 7], "logprobs": logprobs}
    answer = whole("text_completion", {**choice, "prompt_token_ids": [1, 2]})
    assert TEXT.fold(map(chunk_of, datas(events_of(answer, logprobs=0)))) == answer


def test_a_replayed_answer_folds_into_itself() -> None:
    answer = whole("chat.completion", chat(content="hi"), chat(1, tool_calls=[tool_call("call_a")]))
    answer["prompt_token_ids"] = [1, 2]
    assert CHAT.fold(CHAT.replay(answer)) == answer


def test_a_stream_is_shown_without_what_only_the_gateway_had_asked_for() -> None:
    answer = whole("chat.completion", chat(content="it arrives today"))
    answer["prompt_token_ids"] = [1, 2]
    plain = shown(events_of(answer))
    assert CHAT.fold(plain)["choices"][0]["message"]["content"] == "it arrives today"
    assert not any({"usage", "prompt_token_ids"} & set(chunk) for chunk in plain)
    assert not any({"logprobs", "token_ids"} & set(choice) for chunk in plain for choice in chunk["choices"])
    assert CHAT.fold(shown(events_of(answer), **ALL)) == answer


def test_the_events_of_a_provider_pass_as_they_are() -> None:
    events = [b'data: {"choices": [{"delta": {"content": "x"}, "odd": 1e-7}]}', b": ping", b"data: [DONE]"]
    stream = PassedStream(request(), CHAT.error_event, of_policy=False)
    assert [stream.feed(event) for event in events] == [event + b"\n\n" for event in events]
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1}}'
    assert stream.feed(usage) == b""
    asked = PassedStream(request(**ALL), CHAT.error_event, of_policy=False)
    assert asked.feed(usage) == usage + b"\n\n"


@pytest.mark.parametrize(
    ("delta", "begins"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": "x"}, True),
        ({"reasoning_content": "x"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({}, False),
    ],
)
def test_an_answer_begins_with_its_first_content(delta: dict[str, Any], begins: bool) -> None:
    assert CHAT.begins({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) is begins
    assert CHAT.begins({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})


def test_the_byte_order_mark_of_a_stream_is_no_part_of_its_first_event() -> None:
    assert EventSplitter().feed(b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n") == [b"data: 1", b"data: 2"]


def test_a_chunk_of_usage_may_have_null_in_the_place_of_choices() -> None:
    event = b'data: {"choices": null, "usage": {"prompt_tokens": 2}}'
    assert shown([event]) == []
    assert shown([event], stream_options={"include_usage": True}) == [chunk_of(event[6:])]
