"""What was said, in dialects that no recorded sender speaks any more, and in the corners of those that they do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.dialects.telemetry.contents import content_of, fields_of_event, message_of_event
from ratchet.dialects.telemetry.messages import answers_of, chat_of, coherent, output_of, system_of, tools_of
from ratchet.dialects.telemetry.names import kind_of, sampling_of, text_of, usage_of
from ratchet.dialects.telemetry.otlp import Event

ORDER = {"order_id": "K47"}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}}


def call(arguments: str = '{"order_id":"K47"}') -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


@pytest.mark.parametrize("spelled", [True, False])
def test_messages_are_read_structured_and_as_json(spelled: bool) -> None:
    given = [
        message("user", text("Weather in Paris?")),
        message(
            "assistant", {"type": "tool_call", "id": "call_1", "name": "look_up", "arguments": {"order_id": "K47"}}
        ),
        message("tool", {"type": "tool_call_response", "id": "call_1", "result": "rainy, 57°F"}),
    ]
    assert chat_of(json.dumps(given) if spelled else given) == [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rainy, 57°F"},
    ]


def test_response_of_a_tool_may_be_an_object_and_stand_beside_text() -> None:
    parts = [{"type": "tool_call_response", "id": "call_1", "response": {"state": "packed"}}, text("and then?")]
    assert chat_of([message("user", *parts)]) == [
        {"role": "tool", "tool_call_id": "call_1", "content": '{"state":"packed"}'},
        {"role": "user", "content": "and then?"},
    ]


def test_reasoning_is_kept_beside_the_answer() -> None:
    parts = [{"type": "reasoning", "content": "Think."}, text("Yes.")]
    assert answers_of([message("assistant", *parts)]) == [
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Think."}
    ]


def test_media_become_parts_in_openais_form() -> None:
    parts = [
        text("What is this?"),
        {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://example.com/a.png"},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="},
        {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "aGk="},
        {"type": "file", "file_id": "f-1"},
        {"type": "blob", "mime_type": "application/pdf", "content": "aGk="},
        {"type": "uri", "mime_type": "video/mp4", "uri": "gs://a/b.mp4"},
    ]
    (made,) = chat_of([message("user", *parts)])
    assert made["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}},
        {"type": "file", "file": {"url": "gs://a/b.mp4"}},
    ]


def test_parts_that_the_conventions_may_get_later_are_texts_or_left_out() -> None:
    parts = [{"type": "poem", "content": "Roses"}, text("are red")]
    assert chat_of([message("user", *parts)]) == [{"role": "user", "content": "Roses\nare red"}]


@pytest.mark.parametrize(
    "own",
    [
        {"type": "server_tool_call", "name": "web_search", "id": "ws_1", "server_tool_call": {"type": "web_search"}},
        {"type": "server_tool_call_response", "id": "ws_1", "server_tool_call_response": {"type": "web_search"}},
        {"type": "compaction", "id": "cmp_1"},
    ],
)
def test_what_a_provider_did_itself_is_left_out_and_its_answer_kept(own: dict[str, Any]) -> None:
    answered = message("assistant", own, text("It is open."))
    assert answers_of([answered]) == [{"role": "assistant", "content": "It is open."}]
    called = {"type": "tool_call", "id": "call_1", "name": "look_up", "arguments": {"order_id": "K47"}}
    assert chat_of([message("assistant", own, called)]) == [
        {"role": "assistant", "content": None, "tool_calls": [call()]}
    ]


def test_messages_in_openais_and_anthropics_form_stay_as_they_are() -> None:
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    assert chat_of(asked) == asked
    blocks = [{"type": "tool_result", "tool_use_id": "call_1", "content": "packed"}]
    assert chat_of([{"role": "user", "content": blocks}]) == [
        {"role": "tool", "tool_call_id": "call_1", "content": "packed"}
    ]


def test_system_instructions_come_first_and_once() -> None:
    given = {"gen_ai.input.messages": [message("user", text("hi"))], "gen_ai.output.messages": []}
    parts = [text("You translate."), text("To French.")]
    assert system_of(parts) == [{"role": "system", "content": "You translate.\nTo French."}]
    made = content_of({**given, "gen_ai.system_instructions": json.dumps(parts)})
    assert [each["role"] for each in made.prompt] == ["system", "user"]
    again = content_of({**given, "gen_ai.input.messages": [*made.prompt], "gen_ai.system_instructions": parts})
    assert again.prompt == made.prompt


@pytest.mark.parametrize(
    "definition",
    [
        TOOL,
        {"type": "function", **TOOL["function"]},  # type: ignore[dict-item]
        {"name": "look_up", "description": "Looks.", "input_schema": {"type": "object"}},
        {"name": "look_up", "description": "Looks.", "parameters": '{"type": "object"}'},
    ],
)
def test_tools_are_in_openais_form(definition: dict[str, Any]) -> None:
    assert tools_of(json.dumps([definition])) == [TOOL]
    assert tools_of([json.dumps(definition)]) == [TOOL]


def test_what_a_tool_gave_back_is_an_object_or_a_text() -> None:
    assert output_of('{"state": "packed"}') == {"state": "packed"}
    assert output_of('"packed"') == "packed"
    assert output_of('["a", 1]') == '["a",1]'
    assert output_of("packed") == "packed"
    assert output_of(None) is None
    of_langchain = {"output": {"kwargs": {"content": "packed", "tool_call_id": "call_1"}}}
    assert output_of(of_langchain) == "packed"


def test_traceloops_numbered_attributes() -> None:
    made = content_of(
        {
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": '[{"type": "text", "text": "hi"}]',
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "Help.",
            "gen_ai.prompt.10.role": "tool",
            "gen_ai.prompt.10.content": "packed",
            "gen_ai.prompt.10.tool_call_id": "call_1",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.tool_calls.0.id": "call_1",
            "gen_ai.completion.0.tool_calls.0.name": "look_up",
            "gen_ai.completion.0.tool_calls.0.arguments": '{"order_id":"K47"}',
            "llm.request.functions.0.name": "look_up",
            "llm.request.functions.0.description": "Looks.",
            "llm.request.functions.0.parameters": '{"type": "object"}',
        }
    )
    assert [each["role"] for each in made.prompt] == ["system", "user", "tool"]
    assert made.answers[0]["tool_calls"] == [call()]
    assert made.tools == [TOOL]


def test_openinference_messages_with_parts() -> None:
    prefix = "llm.input_messages.0.message"
    made = content_of(
        {
            "openinference.span.kind": "LLM",
            f"{prefix}.role": "user",
            f"{prefix}.contents.0.message_content.type": "text",
            f"{prefix}.contents.0.message_content.text": "What is this?",
            f"{prefix}.contents.1.message_content.type": "image",
            f"{prefix}.contents.1.message_content.image.image.url": "https://example.com/a.png",
        }
    )
    assert made.prompt[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]


def test_pydantic_ais_events_before_the_conventions() -> None:
    events = [
        {"event.name": "gen_ai.system.message", "content": "Help."},
        {"event.name": "gen_ai.user.message", "content": "hi"},
        {"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "tool_calls": [call()]}},
    ]
    parameters = {
        "function_tools": [{"name": "look_up", "description": "Looks.", "parameters_json_schema": {"type": "object"}}]
    }
    made = content_of({"events": json.dumps(events), "model_request_parameters": json.dumps(parameters)})
    assert [each["role"] for each in made.prompt] == ["system", "user"]
    assert made.answers[0]["tool_calls"] == [call()]
    assert made.tools == [TOOL]


def test_logfires_requests_before_the_conventions() -> None:
    request = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    response = {"message": {"role": "assistant", "content": "hello"}}
    made = content_of({"request_data": json.dumps(request), "response_data": json.dumps(response)})
    assert (made.prompt, made.tools) == (request["messages"], [TOOL])
    assert made.answers[0]["content"] == "hello"


def test_langfuse_reads_texts_and_only_generations_as_chats() -> None:
    generation = {"langfuse.observation.type": "generation", "langfuse.observation.input": "hi"}
    made = content_of({**generation, "langfuse.observation.output": "hello"})
    assert made.prompt == [{"role": "user", "content": "hi"}]
    assert made.answers == [{"role": "assistant", "content": "hello"}]
    agent = {"langfuse.observation.type": "agent", "langfuse.observation.input": "hi"}
    assert not content_of({**agent, "langfuse.observation.output": "hello"}).prompt


def test_events_hold_their_message_in_several_places() -> None:
    body = {"content": "hi"}
    for event in (
        Event("gen_ai.user.message", 1, {}, body),
        Event("gen_ai.user.message", 1, body),
        Event("gen_ai.user.message", 1, {"gen_ai.event.content": json.dumps(body)}),
    ):
        assert message_of_event(event.name, fields_of_event(event)) == ({"role": "user", "content": "hi"}, False)
    assert message_of_event("exception", {}) is None


def test_first_known_attribute_decides_the_kind() -> None:
    assert kind_of({"gen_ai.operation.name": "execute_task", "traceloop.span.kind": "tool"}) == "tool"
    assert kind_of({"gen_ai.operation.name": "embeddings"}) == "other"
    assert kind_of({"openinference.span.kind": "CHAIN", "gen_ai.operation.name": 7}) is None


def test_first_name_of_a_fact_that_is_there_counts() -> None:
    assert text_of({"gen_ai.request.model": "asked", "gen_ai.response.model": "answered"}, "model") == "answered"
    assert text_of({"metadata": '{"thread_id": "t-1"}'}, "session") == "t-1"
    assert usage_of({"gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.output_tokens": 7.0}) == {
        "prompt": 5,
        "completion": 7,
    }
    given = {"llm.invocation_parameters": '{"temperature": 0.2, "model": "m"}', "gen_ai.request.temperature": 0.5}
    assert sampling_of(given) == {"temperature": 0.5}


def test_calls_that_came_item_by_item_are_one_answer_with_their_ids() -> None:
    def asked(call_id: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": [{**call(), "id": call_id}]}

    def gave(call_id: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": "packed"}

    user = {"role": "user", "content": "Where are they?"}
    both = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call(), "id": "call_1"}, {**call(), "id": "call_2"}],
    }
    chat = [user, asked("call_1"), asked("call_2"), gave("call_1"), gave("call_2")]
    assert coherent(chat) == [user, both, *chat[3:]]
    items = [user, asked("fc_1"), asked("fc_2"), gave("call_1"), gave("call_2")]
    assert coherent(items) == [user, both, *chat[3:]]
    spoken = {"role": "assistant", "content": "One moment."}
    assert coherent([user, spoken, asked("call_1"), gave("call_1")])[1] == {**asked("call_1"), "content": "One moment."}
    assert items[1] == asked("fc_1")


def test_calls_whose_results_are_not_all_there_keep_their_ids() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [call(), {**call(), "id": "call_2"}]}
    for results in ([], [{"role": "tool", "tool_call_id": "other", "content": "packed"}]):
        assert coherent([calls, *results]) == [calls, *results]
