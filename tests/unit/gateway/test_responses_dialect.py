"""The Responses API as a dialect of the gateway: an upstream's own events and answers, and depth without end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.core.errors import BadRequest
from ratchet.dialects.apis import APIS
from ratchet.dialects.requests import read_fields
from ratchet.dialects.responses.dialect import RESPONSES, chat_call, raw_member
from ratchet.dialects.responses.wire import NotForPolicies
from ratchet.dialects.streams import TranslatedStream

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]},
        {"type": "function_call", "call_id": "call_a", "name": "look_up", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input_tokens_details": {"cached_tokens": 1}},
}


def fields(**members: Any) -> dict[str, msgspec.Raw]:
    return read_fields(msgspec.json.encode({"model": "support", "input": "Where?", **members}))


def test_an_upstreams_answer_replayed_and_folded_is_the_same_answer() -> None:
    events = RESPONSES.replay(RESPONSE)
    assert [RESPONSES.begins(event) for event in events] == [False, *[True] * (len(events) - 1)]
    assert [RESPONSES.ends(msgspec.json.encode(event)) for event in events] == [*[False] * (len(events) - 1), True]
    folded = RESPONSES.fold(events)
    assert folded == RESPONSE
    assert RESPONSES.answer(folded, 0) == RESPONSES.answer(RESPONSE, 0)
    assert RESPONSES.answer(RESPONSE, 0).finish_reason == "tool_calls"
    envelope = msgspec.json.decode(msgspec.json.encode(RESPONSE), type=RESPONSES.envelope)
    assert len(envelope.choices) == 1


def test_a_text_that_quotes_the_last_event_ends_nothing() -> None:
    delta = {"type": "response.output_text.delta", "delta": '{"type":"response.completed"}'}
    assert not RESPONSES.ends(msgspec.json.encode(delta))


def test_a_failed_response_is_an_answer_with_its_error() -> None:
    failed = {**RESPONSE, "status": "failed", "output": [], "error": {"code": "server_error", "message": "too much"}}
    assert RESPONSES.answer(failed, 0).error == "too much"


def test_an_error_within_an_engines_stream_fails_the_response() -> None:
    assert RESPONSES.translation is not None
    stream = TranslatedStream(RESPONSES.translation.stream(RESPONSES.read(fields())))
    failed = stream.feed(b'data: {"error": {"message": "out of memory"}}').rpartition(b"event: ")[2]
    assert failed.startswith(b"response.failed")
    assert b"out of memory" in failed
    assert stream.finish() == b""


def test_a_wrong_value_is_named_as_this_api_names_it() -> None:
    for members, param in (
        ({"max_output_tokens": 2**63}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"model": ""}, "model"),
    ):
        with pytest.raises(BadRequest) as caught:
            RESPONSES.read(fields(**members))
        assert caught.value.param == param


def test_what_is_refused_for_a_policy_is_read_for_an_upstream() -> None:
    call = RESPONSES.read(fields(tools=[{"type": "web_search"}]))
    assert call.fields.keys() == {"model", "input", "tools"}
    with pytest.raises(NotForPolicies):
        chat_call(call)


def test_any_depth_is_read_or_refused() -> None:
    refused = 0
    for depth in (10, 500, 900, 980, 1_000, 10_000):
        body = b'{"model": "m", "input": "x", "metadata": %s1%s}' % (b'{"a":' * depth, b"}" * depth)
        try:
            chat_call(APIS["responses"].read(read_fields(body)))
        except BadRequest:
            refused += 1
    assert 0 < refused < 6
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(10_000):
        inner["a"] = inner = {}
    with pytest.raises(BadRequest, match="nested too deep"):
        raw_member("metadata", deep)
