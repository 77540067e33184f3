"""Chat completions as responses: the whole object, the same object from a stream, and back again as chat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import openai.types.responses as sdk
import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter

from ratchet.core.contract.http.answers import ErrorPart
from ratchet.core.errors import BadRequest
from ratchet.dialects.responses.answers import ResponseStream, from_chat
from ratchet.dialects.responses.native import fold_response, to_chat_answer
from ratchet.dialects.responses.requests import read, to_chat
from ratchet.dialects.streams import Problem

ID = "resp_0123"
AT = 1_750_000_000
EVENTS: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)
BODY: dict[str, Any] = {
    "model": "support",
    "input": "Where?",
    "include": ["message.output_text.logprobs"],
    "tools": [{"type": "function", "name": "look_up", "parameters": {}}, {"type": "custom", "name": "run"}],
    "conversation": "conv_1",
    "text": {"verbosity": "low"},
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer_of(message: dict[str, Any], finish_reason: str | None = "stop", **choice: Any) -> dict[str, Any]:
    head = {"id": "c", "object": "chat.completion", "created": AT, "model": "m@1", "usage": USAGE}
    return {**head, "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}]}


def whole(answer: Any, body: dict[str, Any] = BODY) -> dict[str, Any]:
    return from_chat(body, answer, response_id=ID, created_at=AT)


def events_of(encoded: Sequence[bytes]) -> list[dict[str, Any]]:
    """The events, checked: named as they say, numbered without gaps, and of the shapes that the client knows."""
    events: list[dict[str, Any]] = []
    for one in encoded:
        name, _, data = one.decode().partition("\n")
        event = msgspec.json.decode(data.removeprefix("data: ").removesuffix("\n\n"))
        assert name == f"event: {event['type']}"
        EVENTS.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def streamed(deltas: Sequence[dict[str, Any]], finish_reason: str | None = "stop") -> list[bytes]:
    stream = ResponseStream(BODY, response_id=ID, created_at=AT)
    encoded: list[bytes] = []
    for delta in deltas:
        logprobs = delta.pop("logprobs", None)
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs}
        encoded += stream.feed({"model": "m@1", "choices": [choice], "usage": None})
    encoded += stream.feed({"model": "m@1", "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    encoded += stream.feed({"choices": [], "usage": USAGE})
    return encoded + stream.finish()


def joined(encoded: Sequence[bytes]) -> dict[str, Any]:
    return fold_response(events_of(encoded))


texts = st.text(max_size=6)
pieces = st.lists(texts, max_size=4)
calls = st.lists(st.tuples(st.sampled_from(["look_up", "run"]), pieces), max_size=3)


@given(pieces, pieces, pieces, calls, st.sampled_from(["stop", "length", "content_filter", "tool_calls", None]))
def test_a_stream_joined_is_the_response_that_the_whole_answer_gives(
    reasoning: list[str], content: list[str], refusal: list[str], called: list[Any], finish_reason: str | None
) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in reasoning]
    entries = [{"token": piece, "logprob": -0.5, "bytes": None, "top_logprobs": None} for piece in content if piece]
    deltas += [{"content": piece} for piece in content]
    deltas += [{"refusal": piece} for piece in refusal]
    for index, (name, arguments) in enumerate(called):
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in arguments]
    remaining = iter(entries)
    for delta in deltas:
        if delta.get("content"):
            delta["logprobs"] = {"content": [next(remaining)]}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(content) or None,
        "reasoning_content": "".join(reasoning) or None,
        "refusal": "".join(refusal) or None,
        "tool_calls": [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
            for index, (name, arguments) in enumerate(called)
        ],
    }
    thoughts = [{"token": piece, "logprob": -1.0} for piece in reasoning if piece and content and "".join(content)]
    expected = whole(answer_of(message, finish_reason, logprobs={"content": [*thoughts, *entries]}))
    encoded = streamed(deltas, finish_reason)
    shown = joined(encoded)
    assert {**shown, "output": None} == {**expected, "output": None}
    assert [without_logprobs(item) for item in shown["output"]] == [
        without_logprobs(item) for item in expected["output"]
    ]
    if not thoughts and not called:
        assert shown["output"] == expected["output"]
    sdk.Response.model_validate(expected)
    events = events_of(encoded)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(done, key=str) == sorted(shown["output"], key=str)
    deltas_of_text = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas_of_text) == "".join(content)


def without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    parts = [{name: part[name] for name in part if name != "logprobs"} for part in item.get("content") or ()]
    return {**item, "content": parts}


@given(pieces.map("".join), pieces.map("".join), calls)
def test_an_answer_comes_back_as_the_message_that_it_was(content: str, reasoning: str, called: list[Any]) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if called or reasoning else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if called:
        message["tool_calls"] = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": "look_up", "arguments": "".join(arguments)},
            }
            for index, (_, arguments) in enumerate(called)
        ]
    response = whole(answer_of(message, "tool_calls" if called else "stop"))
    chat = to_chat_answer(response)
    assert chat["choices"][0]["message"] == message
    assert chat["choices"][0]["finish_reason"] == ("tool_calls" if called else "stop")
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]) == (3, 2)
    # The next call of an agent that sends its answer back continues the same chat.
    history = read({**BODY, "input": [{"role": "user", "content": "Where?"}, *response["output"]]}).chat["messages"]
    assert history == [{"role": "user", "content": "Where?"}, message]


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "delta", "message", "content", "tool_calls", "function", "arguments", "index", "name"),
                    *("output", "type", "usage", "status", "error", "item", "output_index", "response", "id", "text"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(values)
def test_an_engine_may_answer_anything_and_is_refused_as_one_error(answer: Any) -> None:
    stream = ResponseStream(BODY, response_id=ID, created_at=AT)
    read = [(whole, "object", "response"), (to_chat_answer, "object", "chat.completion")]
    for function, member, kind in read:
        with suppress(ValueError):
            assert function(answer)[member] == kind
    with suppress(ValueError):
        assert all(event.startswith(b"event: response.") for event in stream.feed(answer))
    kinds = ("response.completed", "response.output_item.added", "response.output_text.delta")
    joined = fold_response([{"type": kind, **answer} for kind in kinds] if isinstance(answer, dict) else [])
    assert isinstance(joined.get("output", []), list)


def test_calls_whose_pieces_come_mixed_are_kept_apart() -> None:
    deltas = [
        {"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look_up", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "call_b", "function": {"name": "run", "arguments": '{"inp'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": 'ut": "ls"}'}}]},
    ]
    output = joined(streamed(deltas, "tool_calls"))["output"]
    assert [(item["type"], item.get("arguments"), item.get("input")) for item in output] == [
        ("function_call", "{}", None),
        ("custom_tool_call", None, "ls"),
    ]


def test_calls_name_the_tool_and_its_namespace() -> None:
    tools = [{"type": "custom", "name": "run"}, {"type": "function", "name": "wait", "parameters": {}}]
    space = {"type": "namespace", "name": "functions", "description": "", "tools": tools}
    body = {"model": "m", "input": [{"type": "additional_tools", "role": "developer", "tools": [space]}]}
    called = [("functions__run", '{"input": "x"}'), ("functions__wait", "{}"), ("functions__none", "{}")]
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(called)
    ]
    custom, wait, unknown = whole(answer_of({"tool_calls": calls}, "tool_calls"), body)["output"]
    assert (custom["type"], custom["name"], custom["namespace"], custom["input"]) == (
        *("custom_tool_call", "run", "functions", "x"),
    )
    assert (wait["name"], wait["namespace"]) == ("wait", "functions")
    assert unknown["name"] == "functions__none"
    assert "namespace" not in unknown
    again = to_chat_answer({"output": [custom, wait]})["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in again] == ["functions__run", "functions__wait"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_compaction_is_one_item_that_a_later_request_begins_with(streams: bool) -> None:
    tool = {"type": "function", "name": "look_up", "parameters": {}}
    body = {
        "model": "m",
        "input": [{"role": "user", "content": "Go."}, {"type": "compaction_trigger"}],
        "tools": [tool],
    }
    chat = to_chat(read(body))
    assert (chat["tool_choice"], [message["role"] for message in chat["messages"]]) == ("none", ["user", "user"])
    if streams:
        stream = ResponseStream(body, response_id=ID, created_at=AT)
        for text in ("Half", " done. "):
            stream.feed({"choices": [{"index": 0, "delta": {"content": text}}]})
        events = [msgspec.json.decode(event.partition(b"data: ")[2]) for event in stream.finish()]
        kinds = ["output_item.added", "output_item.done", "completed"]
        assert [event["type"] for event in events] == [f"response.{kind}" for kind in kinds]
        response = stream.response
        assert response is not None
    else:
        response = whole(answer_of({"content": " Half done.\n"}), body)
    (item,) = response["output"]
    assert item["type"] == "compaction"
    again = to_chat(read({"model": "m", "input": [item, {"role": "user", "content": "On."}]}))
    assert again["messages"][0]["content"].endswith("\n\nHalf done.")
    assert whole(answer_of({"content": None}), body)["output"] == []


def test_a_providers_own_compaction_is_nothing_for_a_policy() -> None:
    item = {"type": "compaction", "encrypted_content": "gAAAA"}
    with pytest.raises(BadRequest, match="compaction"):
        to_chat(read({"model": "m", "input": [item, {"role": "user", "content": "On."}]}))


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    deltas = [
        {"content": "I look."},
        {"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look_up", "arguments": "{}"}}]},
        {"content": "Done."},
    ]
    output = joined(streamed(deltas))["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert [item["status"] for item in output] == ["completed"] * 3


def test_only_the_item_that_was_cut_off_is_incomplete() -> None:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "look_up", "arguments": "{"}}
        for number in range(2)
    ]
    response = whole(answer_of({"content": "I look.", "tool_calls": calls}, "length"))
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_calls_without_ids_or_indices_get_ids_of_their_own() -> None:
    deltas = [
        {"tool_calls": [{"function": {"name": "look_up", "arguments": "{"}}]},
        {"tool_calls": [{"function": {"arguments": "}"}}]},
        {"tool_calls": [{"function": {"name": "look_up", "arguments": "{}"}}]},
    ]
    output = joined(streamed(deltas, "tool_calls"))["output"]
    assert [item["arguments"] for item in output] == ["{}", "{}"]
    assert len({item["call_id"] for item in output}) == 2


def test_nothing_follows_the_end_of_a_stream() -> None:
    stream = ResponseStream(BODY, response_id=ID, created_at=AT)
    busy = Problem(429, ErrorPart(message="busy", type="rate_limit_error", code="engine_busy"))
    failed = events_of(stream.fail(busy))
    assert [event["type"] for event in failed] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    assert failed[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "busy"}
    assert stream.feed({"choices": []}) == stream.finish() == stream.fail(busy) == []


def test_the_response_repeats_its_request_and_names_what_was_made_of_it() -> None:
    body = {**BODY, "truncation": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "store": False}
    response = whole(answer_of({"content": "Here."}), body)
    assert response["truncation"] == "disabled"
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["text"] == {"verbosity": "low", "format": {"type": "text"}}
    assert response["conversation"] == {"id": "conv_1"}
    assert [tool.get("strict") for tool in response["tools"]] == [False, None]
    sdk.Response.model_validate(response)


def test_a_stream_that_breaks_off_leaves_what_has_come() -> None:
    deltas: list[dict[str, Any]] = [{"reasoning_content": "Hm."}, {"content": "It arr"}]
    deltas.append({"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look_up", "arguments": '{"or'}}]})
    encoded = streamed(deltas)
    events = events_of(encoded)
    cut = fold_response(events[: [event["type"] for event in events].index("response.function_call_arguments.done")])
    assert cut["status"] == "in_progress"
    message = to_chat_answer(cut)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("It arr", "Hm.")
    assert message["tool_calls"][0]["function"]["arguments"] == '{"or'


def test_a_last_event_without_output_takes_the_items_that_ended() -> None:
    encoded = streamed([{"content": "Here."}])
    *events, completed = events_of(encoded)
    completed["response"]["output"] = None
    assert to_chat_answer(fold_response([*events, completed]))["choices"][0]["message"]["content"] == "Here."


def test_a_failed_response_is_an_error_in_the_upstreams_words() -> None:
    with pytest.raises(ValueError, match="too much"):
        to_chat_answer({"status": "failed", "error": {"code": "server_error", "message": "too much"}, "output": []})


def test_tools_of_a_provider_stay_in_the_recorded_answer() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    text_item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}
    message = to_chat_answer({"output": [search, text_item]})["choices"][0]["message"]
    assert message["content"] == [search, {"type": "text", "text": "Here."}]


def test_log_probabilities_are_those_of_the_text() -> None:
    tokens = ["<think>", "Hm.", "</think>", "It", " is", "<call>"]
    entries = [{"token": token, "logprob": -0.1} for token in tokens]
    message = {"content": "It is", "reasoning_content": "Hm.", "tool_calls": []}
    part = whole(answer_of(message, logprobs={"content": entries}))["output"][1]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["It", " is"]
    silent = whole(answer_of(message, logprobs={"content": entries}), {**BODY, "include": None})
    assert silent["output"][1]["content"][0]["logprobs"] == []


def test_reading_what_was_made_never_fails() -> None:
    response = whole(answer_of({"content": "Here."}))
    with pytest.raises(BadRequest):
        read({"input": [{"type": "message", "role": "nobody", "content": ""}]})
    assert read({"input": response["output"]}).chat["messages"] == [{"role": "assistant", "content": "Here."}]
