"""Requests, answers and streams of the Messages API as chat completions, and back; whatever they hold."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.chat.format import is_chat
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.messages.answers import error_body, from_chat, message_of
from ratchet.dialects.messages.dialect import MESSAGES
from ratchet.dialects.messages.reading import count_body, estimate, read, to_chat
from ratchet.dialects.messages.streams import MessageStream, fold_message, replay_message, sse
from ratchet.dialects.requests import CallRequest, constraint_of
from ratchet.dialects.streams import TranslatedStream, events_of
from tests.support.fake_streams import vllm_chunks
from tests.unit.gateway.test_any_request import values

ASK: dict[str, Any] = {"model": "support", "max_tokens": 100, "messages": [{"role": "user", "content": "Where is it?"}]}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"order": "K47"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "on its way"}


def chat_of(*messages: Any, **members: Any) -> dict[str, Any]:
    return to_chat(read({**ASK, "messages": list(messages), **members}))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_a_request_reads_as_the_chat_agents_own() -> None:
    given = {
        **ASK,
        "system": [text("x-anthropic-billing-header: cc_version=2; cch=1f3;"), text("Be brief."), text("Be kind.")],
        "messages": [
            user(text("Where is K47?")),
            assistant({"type": "thinking", "thinking": "look", "signature": "s"}, text("One moment."), CALL),
            user(RESULT, text("Well?")),
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop_sequences": ["END"],
        "stream": True,
        "metadata": {"user_id": "user-7"},
        "tools": [{"name": "look_up", "description": "Finds it.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
    }

    function = {"name": "look_up", "arguments": '{"order":"K47"}'}
    assert to_chat(read(given)) == {
        "model": "support",
        "messages": [
            {"role": "system", "content": "Be brief.\n\nBe kind."},
            {"role": "user", "content": "Where is K47?"},
            {
                "role": "assistant",
                "content": "One moment.",
                "reasoning_content": "look",
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "on its way"},
            {"role": "user", "content": "Well?"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "stream": True,
        "user": "user-7",
        "max_completion_tokens": 100,
        "tools": [
            {
                "type": "function",
                "function": {"name": "look_up", "description": "Finds it.", "parameters": {"type": "object"}},
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://pic.example/1.png"}},
            {"type": "image_url", "image_url": {"url": "https://pic.example/1.png"}},
        ),
        (
            {
                "type": "document",
                "title": "Terms",
                "source": {"type": "text", "media_type": "text/plain", "data": "No."},
            },
            text("Terms\n\nNo."),
        ),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
            {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [text("page 1")]}},
            text("page 1"),
        ),
        (
            {"type": "search_result", "title": "T", "source": "https://t.example", "content": [text("found")]},
            text("T (https://t.example)\n\nfound"),
        ),
    ],
)
def test_what_a_user_shows_becomes_a_part_of_the_message(block: dict[str, Any], part: dict[str, Any]) -> None:
    (message,) = chat_of(user(text("See:"), block))["messages"]
    assert message["content"] == [text("See:"), part]


def test_results_of_tools_come_first_and_their_images_follow() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://pic.example/1.png"}}
    failed = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "is_error": True,
        "content": [text("no such"), text("order")],
    }
    shown = {"type": "tool_result", "tool_use_id": "toolu_3", "content": [text("a map"), image]}
    silent = {"type": "tool_result", "tool_use_id": "toolu_4"}
    calls = [{**CALL, "id": f"toolu_{number}"} for number in (2, 3, 4)]

    *_, second, third, fourth, last = chat_of(
        user(text("Where?")), assistant(*calls), user(failed, shown), user(text("Go on"), silent)
    )["messages"]

    assert second == {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no such\norder"}
    assert third == {"role": "tool", "tool_call_id": "toolu_3", "content": "a map"}
    assert fourth == {"role": "tool", "tool_call_id": "toolu_4", "content": ""}
    picture = {"type": "image_url", "image_url": {"url": "https://pic.example/1.png"}}
    assert last == {"role": "user", "content": [picture, text("Go on")]}


def test_messages_of_one_role_are_one_and_system_message_waits_for_results() -> None:
    messages = chat_of(
        {"role": "system", "content": "First."},
        user(text("a")),
        user(text("b")),
        assistant(text("c")),
        assistant(CALL),
        {"role": "system", "content": "Later."},
        user(RESULT),
        system="Before.",
    )["messages"]

    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "system"]
    assert messages[0]["content"] == "Before.\n\nFirst."
    assert messages[1]["content"] == [text("a"), text("b")]
    assert (messages[2]["content"], len(messages[2]["tool_calls"])) == ("c", 1)


def test_a_tool_that_waits_is_offered_once_it_is_named() -> None:
    names = ("search", "fetch", "write", "placeholder")
    tools = [{"name": name, "input_schema": {}, "defer_loading": name != "search"} for name in names]
    searched = {**RESULT, "content": [{"type": "tool_reference", "tool_name": "fetch"}]}
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "write"}}
    defined = {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}}
    removed = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "search"}}
    loop = [*ASK["messages"], assistant(CALL), user(searched)]

    def names_of(chat: dict[str, Any]) -> list[str]:
        return [tool["function"]["name"] for tool in chat["tools"]]

    assert names_of(chat_of(*ASK["messages"], tools=tools)) == ["search"]
    chat = chat_of(*loop, tools=tools)
    assert names_of(chat) == ["search", "fetch"]
    assert chat["messages"][-1]["content"] == "The tool fetch is available now."
    changes = {"role": "system", "content": [added, {"type": "tool_addition", "tool": defined}, removed]}
    chat = chat_of(*loop, changes, tools=tools)
    assert names_of(chat) == ["fetch", "write", "new"]
    assert chat["messages"][-1]["content"].endswith("The tool search is no longer available.")


def test_a_system_message_for_one_turn_is_not_shown_in_the_next() -> None:
    reminder = {"role": "system", "content": "It is noon.", "clear_at": "next_user_message"}
    effort = {"role": "system", "output_config": {"effort": "low"}}
    first = [*ASK["messages"], reminder, effort]
    assert [message["role"] for message in chat_of(*first)["messages"]] == ["user", "system"]
    later = chat_of(*first, assistant(text("a")), user(text("b")))["messages"]
    assert [message["role"] for message in later] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "look_up"}, {"type": "function", "function": {"name": "look_up"}}),
        ({"type": "none"}, "none"),
    ],
)
def test_a_choice_of_tools_is_the_chats(choice: dict[str, Any], chosen: object) -> None:
    tools = [{"name": "look_up", "input_schema": {"type": "object"}, "strict": True, "type": "custom"}]
    chat = chat_of(*ASK["messages"], tools=tools, tool_choice=choice)
    assert chat["tool_choice"] == chosen
    assert chat["tools"][0]["function"]["strict"] is True
    assert (constraint_of(read_chat(chat)) is None) == (chosen == "none")


@pytest.mark.parametrize(("budget", "effort"), [(1024, "low"), (4096, "medium"), (32_000, "high")])
def test_a_budget_of_thinking_is_an_effort(budget: int, effort: str) -> None:
    chat = chat_of(*ASK["messages"], thinking={"type": "enabled", "budget_tokens": budget})
    assert chat["reasoning_effort"] == effort


def test_an_effort_that_clients_always_set_is_recorded_and_not_sent() -> None:
    request = read({**ASK, "output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}})
    assert request.chat["reasoning_effort"] == "max"
    assert "reasoning_effort" not in to_chat(request)


def test_a_schema_constrains_the_answer() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    for members in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        chat = chat_of(*ASK["messages"], **members)
        assert chat["response_format"]["json_schema"] == {"name": "output", "schema": schema, "strict": True}
        assert constraint_of(read_chat(chat)) is not None


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
        ({"mcp_servers": [{"type": "url", "url": "https://mcp.example", "name": "m"}]}, "mcp_servers"),
        ({"messages": [user(text("x")), assistant(text("The answer is ("))]}, "messages.1"),
        (
            {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages.0.content.0.source",
        ),
        ({"messages": [user(text("x")), user({"type": "container_upload", "file_id": "f"})]}, "messages.1.content.0"),
    ],
)
def test_what_a_chat_cannot_say_is_recorded_and_refused(members: dict[str, Any], path: str) -> None:
    request = read({**ASK, **members})
    assert read_chat(request.chat).messages
    with pytest.raises(BadRequest, match="cannot take") as refusal:
        to_chat(request)
    assert refusal.value.param == path


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [5]}, "messages.0"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0"),
        ({"messages": [user(text("a")), user({"type": "tool_result"})]}, "messages.1.content.0.tool_use_id"),
        ({"messages": [user(text("a")), assistant({**CALL, "input": "x"})]}, "messages.1.content.0.input"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop_sequences": [1]}, "stop_sequences"),
        ({"tools": [{"name": "look_up"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"metadata": 5}, "metadata"),
    ],
)
def test_what_breaks_the_format_is_refused_where_it_stands(members: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read({**ASK, **members})
    assert refusal.value.param == param


def choice_of(message: dict[str, Any], finish: str | None = "stop", **members: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    choice = {"index": 0, "message": message, "finish_reason": finish, **members}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "support@1-abc"}
    return {**head, "choices": [choice], "usage": usage}


def read_chat(chat: dict[str, Any]) -> CallRequest:
    return CHAT.read({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in chat.items()})


def call(arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def test_an_answer_becomes_a_message_with_its_blocks_in_order() -> None:
    answer = choice_of(
        {"content": "Wait.", "reasoning_content": "hm", "tool_calls": [call('{"order": "K47"}'), call("", "call_2")]},
        "tool_calls",
    )
    assert from_chat(answer) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "support@1-abc",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "ratchet"},
            text("Wait."),
            {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"order": "K47"}},
            {"type": "tool_use", "id": "call_2", "name": "look_up", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }


@pytest.mark.parametrize(
    ("message", "finish", "stopped_by", "reason", "sequence"),
    [
        ({"content": "x"}, "stop", None, "end_turn", None),
        ({"content": "x"}, "stop", "END", "stop_sequence", "END"),
        ({"content": "x"}, "stop", 151645, "end_turn", None),
        ({"content": "x"}, "length", None, "max_tokens", None),
        ({"content": "x"}, "content_filter", None, "refusal", None),
        ({"refusal": "No."}, "stop", None, "refusal", None),
        ({"tool_calls": [call("{}")]}, "stop", None, "tool_use", None),
        ({"tool_calls": [call('{"a')]}, "length", None, "max_tokens", None),
    ],
)
def test_why_the_model_stopped(
    message: dict[str, Any], finish: str, stopped_by: object, reason: str, sequence: str | None
) -> None:
    answer = from_chat(choice_of(message, finish, stop_reason=stopped_by), ["END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


def test_arguments_that_are_not_json_come_back_as_they_were() -> None:
    (block,) = from_chat(choice_of({"tool_calls": [call('{"a": ')]}))["content"]
    assert block["input"] == {"INVALID_JSON": '{"a": '}

    messages = chat_of(*ASK["messages"], assistant(block), user({**RESULT, "tool_use_id": "call_1"}))["messages"]
    assert messages[1]["tool_calls"] == [call('{"a": ')]


def test_a_message_of_an_engine_is_recorded_as_its_chat_answer() -> None:
    message = {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, text("Wait."), CALL],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 6,
            "output_tokens": 5,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": None,
        },
    }
    answer = message_of(message)
    assert answer.message == {
        "role": "assistant",
        "content": "Wait.",
        "reasoning_content": "hm",
        "tool_calls": [{**call('{"order":"K47"}'), "id": "toolu_1"}],
    }
    assert answer.finish_reason == "tool_calls"
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.completion, answer.usage.cached) == (9, 5, 3)
    with pytest.raises(TypeError):
        message_of({"type": "error"})


def test_a_history_holds_the_answer_that_was_recorded() -> None:
    """So that the next call continues the turn: what the agent sends back reads as what the engine answered."""
    recorded = {"role": "assistant", "content": "Wait.", "tool_calls": [call('{"order":"K47"}')]}
    blocks = from_chat(choice_of(recorded))["content"]
    messages = chat_of(*ASK["messages"], assistant(*blocks), user({**RESULT, "tool_use_id": "call_1"}))["messages"]
    assert messages[1] == recorded
    assert is_chat(messages)


def stream_of(chunks: list[dict[str, Any]], stops: list[str] | None = None) -> list[dict[str, Any]]:
    stream = MessageStream(stops or [])
    events = [event for chunk in chunks for event in stream.feed(chunk)] + stream.finish()
    return [msgspec.json.decode(event.partition(b"data: ")[2]) for event in events]


def fold_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    for event in events:
        assert sse(event).startswith(b"event: " + event["type"].encode())
    return fold_message(msgspec.json.decode(msgspec.json.encode(events)))


def chunks_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """As vLLM streams it: reasoning before refusal before text, and the stop sequence with the end."""
    (choice,) = answer["choices"]
    order = ("reasoning_content", "reasoning", "refusal", "content", "tool_calls")
    message = {name: choice["message"][name] for name in order if choice["message"].get(name) is not None}
    chunks = vllm_chunks(
        {**answer, "choices": [{**choice, "message": message}]}, {"stream_options": {"include_usage": True}}
    )
    chunks[-2]["choices"][0]["stop_reason"] = choice.get("stop_reason")
    return chunks


spellings = st.sampled_from(['{"a": 1}', "{}", "", "[1]", '{"a": ', "x", '{"a": {"b": [null]}}'])
calls = st.lists(spellings, max_size=3).map(
    lambda texts: [call(arguments, f"call_{number}") for number, arguments in enumerate(texts)]
)
spoken = st.fixed_dictionaries(
    {"content": st.none() | st.text(max_size=40)},
    optional={
        "reasoning_content": st.text(max_size=20),
        "tool_calls": calls,
        "refusal": st.none() | st.text(max_size=9),
    },
)


@given(message=spoken, finish=st.sampled_from(["stop", "length", "tool_calls", None]), stop=st.none() | st.just("END"))
def test_a_stream_adds_up_to_the_message(message: dict[str, Any], finish: str | None, stop: str | None) -> None:
    answer = choice_of(message, finish, stop_reason=stop)
    assert fold_of(stream_of(chunks_of(answer), ["END"])) == from_chat(answer, ["END"])


def test_a_stream_opens_and_closes_each_block_before_the_next() -> None:
    answer = choice_of({"content": "Wait", "reasoning": "hm", "tool_calls": [call("{}"), call("{}", "call_2")]})
    events = stream_of(chunks_of(answer))
    assert [event["type"].removeprefix("content_block_") for event in events] == [
        "message_start",
        *("start", "delta", "delta", "stop"),  # thinking, signed
        *("start", "delta", "stop"),
        *("start", "delta", "stop"),
        *("start", "delta", "stop"),
        "message_delta",
        "message_stop",
    ]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2, 3]


def test_calls_that_all_have_place_0_are_different_calls() -> None:
    deltas = [{"tool_calls": [{"index": 0, **call('{"n": 1}', name)}]} for name in ("call_1", "call_2")]
    message = fold_of(stream_of([{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]))
    assert [block["id"] for block in message["content"]] == ["call_1", "call_2"]


def test_an_error_of_the_engine_ends_a_stream_in_its_place() -> None:
    assert MESSAGES.translation is not None
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in ASK.items()}
    shown = TranslatedStream(MESSAGES.translation.stream(MESSAGES.read(fields)))
    shown.feed(b"data: " + msgspec.json.encode(chunks_of(choice_of({"content": "x"}))[0]))
    event = shown.feed(b'data: {"error": {"message": "out of memory"}}')
    assert b"event: error" in event
    assert b"out of memory" in event
    assert shown.finish() == b""


def test_a_stream_without_a_chunk_is_an_empty_message() -> None:
    assert [event["type"] for event in stream_of([])] == ["message_start", "message_delta", "message_stop"]


def test_a_fold_keeps_what_came_before_the_end() -> None:
    begun = stream_of(chunks_of(choice_of({"content": "It arrives today."})))[:3]
    citation = {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}}
    message = fold_message([*begun, {"type": "ping"}, citation])
    assert (message["content"], message["stop_reason"]) == ([text("It a")], None)
    assert fold_message([]) == {"content": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "index": "0", "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
        {"type": "message_start"},
    ],
)
def test_a_fold_refuses_events_that_break_the_format(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, KeyError)):
        fold_message([*stream_of(chunks_of(choice_of({"content": "x"}))), wrong])


@given(message=spoken)
def test_a_whole_message_is_replayed_as_a_stream(message: dict[str, Any]) -> None:
    answer = from_chat(choice_of(message))
    assert fold_message(replay_message(answer)) == answer
    assert events_of(replay_message(answer))[-1] == b'event: message_stop\ndata: {"type":"message_stop"}'


def test_an_error_has_anthropics_shape() -> None:
    assert error_body(400, "it has 9 tokens", code="context_length_exceeded", param="messages", request_id="r") == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: it has 9 tokens",
            "details": {"error_code": "context_length_exceeded", "param": "messages"},
        },
        "request_id": "r",
    }
    kinds = {status: error_body(status, "x")["error"]["type"] for status in (401, 404, 422, 429, 500, 503)}
    assert kinds == {
        401: "authentication_error",
        404: "not_found_error",
        422: "invalid_request_error",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
    }


def test_tokens_are_counted_from_the_chat_or_estimated() -> None:
    tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
    request = read({"model": "support", "messages": ASK["messages"], "tools": tools}, counting=True)
    assert count_body(request, "support@1-abc") == {
        "model": "support@1-abc",
        "messages": request.chat["messages"],
        "tools": request.chat["tools"],
        "add_generation_prompt": True,
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a" * 99_999}}
    small, long, shown = (
        estimate(read({"messages": [user(*blocks)]}, counting=True).chat)
        for blocks in ([text("x")], [text("word " * 800)], [text("x"), image])
    )
    assert 1 <= small < 30
    assert long - small == 1000
    assert 1_600 <= shown - small < 1_620


KINDS = ["text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "redacted_thinking"]
PARTS = ("text", "source", "content", "id", "name", "input", "tool_use_id", "is_error", "thinking", "title")
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | values}, optional=dict.fromkeys(PARTS, cast("st.SearchStrategy[Any]", values))
)
ROLES = st.sampled_from(["user", "assistant", "system"])
messages = st.fixed_dictionaries({"role": ROLES | values, "content": st.lists(blocks, max_size=3) | values})
MEMBERS = (
    *("system", "tools", "tool_choice", "max_tokens", "stop_sequences", "metadata", "thinking", "output_config"),
    *("output_format", "stream", "temperature", "mcp_servers", "model"),
)
bodies = st.fixed_dictionaries(
    {"messages": st.lists(messages, max_size=4) | values},
    optional=dict.fromkeys(MEMBERS, cast("st.SearchStrategy[Any]", values)),
)


@given(body=bodies, counting=st.booleans())
def test_every_body_is_read_or_refused(body: dict[str, Any], counting: bool) -> None:
    with suppress(BadRequest, NotFound):
        request = read({**ASK, **body}, counting=counting)
        assert estimate(request.chat) > 0
        read_chat(request.chat)
        to_chat(request)


chunks = st.fixed_dictionaries(
    {"choices": values | st.lists(st.fixed_dictionaries({"delta": values | spoken}), max_size=2)},
    optional={"usage": values, "model": values},
)
OF_OTHERS = (KeyError, IndexError, TypeError, ValueError, AttributeError)


@given(given=st.lists(chunks, max_size=3))
def test_every_chunk_becomes_events_or_is_no_chunk(given: list[dict[str, Any]]) -> None:
    with suppress(*OF_OTHERS):
        assert fold_of(stream_of(given)) is not None


@given(message=spoken | values, usage=values)
def test_every_answer_becomes_a_message_or_is_no_answer(message: Any, usage: Any) -> None:
    with suppress(*OF_OTHERS):
        assert from_chat({"choices": [{"message": message}], "usage": usage})["type"] == "message"
    with suppress(TypeError):
        message_of({"type": "message", "content": message, "usage": usage})


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = {"type": "document", "source": {"type": "content", "content": [inner]}}
    return inner


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(nested(300, text("x"))), "messages.1.content.0.source.content"),
        (
            user({"type": "tool_result", "tool_use_id": "t", "content": [nested(300, text("x"))]}),
            "messages.1.content.0.content.0.source.content",
        ),
    ],
    ids=["document", "result"],
)
def test_documents_in_documents_are_refused_with_their_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="may hold only text and images") as refused:
        read({**ASK, "messages": [*ASK["messages"], message, user(text("x"))]})
    assert refused.value.param == param


def test_arguments_are_read_however_deep_they_are() -> None:
    deep = nested(300, {})
    asked = read({**ASK, "messages": [*ASK["messages"], assistant({**CALL, "input": deep}), user(text("x"))]})
    (call,) = to_chat(asked)["messages"][1]["tool_calls"]
    assert msgspec.json.decode(call["function"]["arguments"]) == deep


def test_a_long_conversation_takes_time_in_proportion() -> None:
    """100,000 messages, as many as Anthropic takes: none of them is looked at more than a few times."""
    turns = [user(text("a")), assistant(text("b"))] * 50_000
    assert len(read({**ASK, "messages": [*turns, user(text("a"))]}).chat["messages"]) == 100_001
