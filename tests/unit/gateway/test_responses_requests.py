"""A Responses request as a chat request: what an agent of the chat API would have sent, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from ratchet.core.errors import BadRequest, NotFound
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.requests import constraint_of, is_multimodal, read_fields
from ratchet.dialects.responses.requests import read, responses_param, to_chat as to_chat_of
from ratchet.dialects.responses.wire import NotForPolicies

A = TypeVar("A")
B = TypeVar("B")
USER = {"role": "user", "content": "Where is it?"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "look_up", "arguments": "{}"}
CHAT_CALL = {"id": "call_a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
RESULT = {"type": "function_call_output", "call_id": "call_a", "output": "today"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Today.", "annotations": [], "logprobs": []}],
}
LOOK_UP: dict[str, Any] = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
REFUND: dict[str, Any] = {"type": "function", "name": "refund", "description": "Pays back.", "strict": True}


def asked(**members: Any) -> dict[str, Any]:
    return {"model": "support", "input": "Where is it?", **members}


def to_chat(body: dict[str, Any]) -> dict[str, Any]:
    return to_chat_of(read(body))


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return to_chat(asked(input=list(items)))["messages"]


def test_text_instructions_and_sampling_are_a_chat_request() -> None:
    body = asked(instructions="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=64, user="u", seed=3)
    assert to_chat(body) == {
        "model": "support",
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 64,
        "user": "u",
        "seed": 3,
    }


def test_the_items_of_one_answer_are_one_assistant_message() -> None:
    assert messages(USER, THOUGHT, TEXT, CALL, {**CALL, "call_id": "call_b"}, RESULT) == [
        USER,
        {
            "role": "assistant",
            "content": "Today.",
            "reasoning_content": "Hm.",
            "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "call_b"}],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "today"},
    ]


def test_assistant_messages_of_the_agents_own_stay_apart() -> None:
    own = {"role": "assistant", "content": "a"}
    assert messages(USER, own, own, TEXT) == [
        USER,
        own,
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "Today."}]},
    ]


def test_answers_on_both_sides_of_a_result_stay_apart() -> None:
    assert [message["role"] for message in messages(USER, CALL, RESULT, THOUGHT, TEXT)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_parts_take_their_form_in_chat() -> None:
    parts = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "file_data": "data:text/plain;base64,AA==", "filename": "a.txt"},
    ]
    only = {"type": "input_text", "text": "Hi."}
    assert messages(
        {"role": "developer", "content": [only]}, {"type": "message", "role": "user", "content": parts}
    ) == [
        {"role": "system", "content": "Hi."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}},
            ],
        },
    ]


def test_refusals_and_results_of_several_parts_are_kept() -> None:
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    output = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(USER, CALL, {**RESULT, "output": output}, refusal)[2:] == [
        {
            "role": "tool",
            "tool_call_id": "call_a",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "refusal": "No."},
    ]


def test_reasoning_that_only_its_provider_can_read_is_left_out() -> None:
    encrypted = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAA"}
    summary = {"type": "reasoning", "id": "rs_3", "summary": [{"type": "summary_text", "text": "Briefly."}]}
    assert messages(USER, encrypted, TEXT, USER, summary, TEXT)[1::2] == [
        {"role": "assistant", "content": "Today."},
        {"role": "assistant", "content": "Today.", "reasoning_content": "Briefly."},
    ]


def test_tools_keep_their_schema_and_only_what_asks_for_it_is_strict() -> None:
    free, strict = to_chat(asked(tools=[LOOK_UP])), to_chat(asked(tools=[LOOK_UP, REFUND]))
    assert free["tools"] == [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    assert strict["tools"][1]["function"] == {"name": "refund", "description": "Pays back.", "strict": True}
    read = [constraint_of(CHAT.read(read_fields(msgspec.json.encode(chat)))) for chat in (free, strict)]
    assert [one is not None for one in read] == [False, True]


@pytest.mark.parametrize(
    ("choice", "chosen", "offered"),
    [
        (None, None, ["look_up", "refund"]),
        ("required", "required", ["look_up", "refund"]),
        (
            {"type": "function", "name": "refund"},
            {"type": "function", "function": {"name": "refund"}},
            ["look_up", "refund"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "refund"}]},
            "auto",
            ["refund"],
        ),
    ],
)
def test_the_choice_of_a_tool(choice: Any, chosen: Any, offered: list[str]) -> None:
    chat = to_chat(asked(tools=[LOOK_UP, REFUND], tool_choice=choice))
    assert chat.get("tool_choice") == chosen
    assert [tool["function"]["name"] for tool in chat["tools"]] == offered


def test_choice_without_tools_reaches_engine_only_where_it_means_something() -> None:
    assert "tool_choice" not in to_chat(asked(tool_choice="auto"))
    assert to_chat(asked(tool_choice="required"))["tool_choice"] == "required"


def test_formats_efforts_and_log_probabilities_are_chats() -> None:
    schema = {"type": "json_schema", "name": "verdict", "schema": {"type": "object"}, "strict": True}
    chat = to_chat(
        asked(
            text={"format": schema, "verbosity": "low"},
            reasoning={"effort": "low", "summary": "auto"},
            include=["message.output_text.logprobs", "reasoning.encrypted_content"],
            top_logprobs=3,
            stream=True,
            stream_options={"include_obfuscation": False},
        )
    )
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "verdict", "schema": {"type": "object"}, "strict": True},
    }
    assert (chat["reasoning_effort"], chat["logprobs"], chat["top_logprobs"]) == ("low", True, 3)
    assert (chat["stream"], chat["stream_options"]) == (True, {"include_usage": True})
    assert chat.keys().isdisjoint({"text", "reasoning", "include", "verbosity"})
    assert to_chat(asked(text={"format": {"type": "json_object"}}))["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [LOOK_UP, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}, "tools[0].tools[0].type"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": {"type": ["function"]}}, "tool_choice"),
        ({"input": [USER, {"type": "computer_call", "call_id": "c"}]}, "input[1].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}]}, "input[0].content[0]"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
    ],
)
def test_what_only_providers_can_do_is_refused_for_policies_alone(members: dict[str, Any], param: str) -> None:
    with pytest.raises(NotForPolicies) as caught:
        to_chat(asked(**members))
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")
    assert read(asked(**members)).chat["messages"]


def test_tools_of_namespaces_and_of_the_input_are_offered_with_all_others() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    run = {"type": "custom", "name": "run", "description": "Runs it.", "format": grammar}
    functions = {"type": "namespace", "name": "functions", "description": "", "tools": [run, LOOK_UP]}
    added = {"type": "additional_tools", "role": "developer", "tools": [functions, {**LOOK_UP, "name": "add"}]}
    team = {"type": "namespace", "name": "team", "description": "A team.", "tools": [REFUND]}
    chat = to_chat(asked(input=[added, USER], tools=[team, LOOK_UP]))
    assert chat["messages"] == [USER]
    offered = {tool["function"]["name"]: tool["function"].get("description") for tool in chat["tools"]}
    described = "Runs it.\n\nThe input must match this lark grammar:\nstart: /.+/"
    expected = {"team__refund": "A team.\n\nPays back.", "look_up": None, "functions__run": described}
    assert offered == {**expected, "functions__look_up": None, "add": None}
    forced = asked(input=[added, USER], tool_choice={"type": "custom", "name": "run", "namespace": "functions"})
    assert to_chat(forced)["tool_choice"]["function"] == {"name": "functions__run"}


def test_calls_of_a_namespace_and_messages_between_agents_are_chats() -> None:
    custom = {
        "type": "custom_tool_call",
        "call_id": "call_b",
        "name": "run",
        "input": "x = 1",
        "namespace": "functions",
    }
    parts = [
        {"type": "input_text", "text": "Sender: /root\n"},
        {"type": "encrypted_content", "encrypted_content": "go"},
    ]
    written = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": parts}
    called, heard = messages({**CALL, "namespace": "team"}, custom, written)
    names = [call["function"]["name"] for call in called["tool_calls"]]
    assert names == ["team__look_up", "functions__run"]
    assert heard == {
        "role": "user",
        "content": [{"type": "text", "text": "Sender: /root\n"}, {"type": "text", "text": "go"}],
    }


def test_what_has_no_form_in_chat_stays_in_the_recorded_messages() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    recorded = read(asked(input=[USER, search, TEXT, {"type": "shell_call_output", "call_id": "s", "output": []}])).chat
    assert recorded["messages"][1]["content"] == [search, {"type": "text", "text": "Today."}]
    assert recorded["messages"][2]["role"] == "tool"
    assert is_multimodal(recorded["messages"])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        (
            {"input": [USER, {"role": "user", "content": [{"type": "input_text", "text": 3}]}]},
            "input[1].content[0].text",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": 3}]}, "input[0].type"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"metadata": "x"}, "metadata"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_wrong_types_are_refused_by_name_for_everybody(members: dict[str, Any], param: str) -> None:
    for function in (read, to_chat):
        with pytest.raises(BadRequest) as caught:
            function(asked(**members))
        assert caught.value.param == param
        assert not isinstance(caught.value, NotForPolicies)


def test_parameters_of_chat_are_named_with_their_place_here() -> None:
    with pytest.raises(BadRequest, match=r"text\.format") as caught:
        to_chat(asked(response_format={"type": "json_object"}))
    assert caught.value.param == "response_format"
    assert responses_param("max_completion_tokens") == "max_output_tokens"
    assert responses_param("messages[0].content") == "input"
    assert responses_param("temperature") == "temperature"
    assert responses_param(None) is None


def test_allowed_tool_that_is_not_offered_and_an_empty_input_are_refused() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "refund"}]}
    with pytest.raises(BadRequest, match="does not offer"):
        to_chat(asked(tools=[LOOK_UP], tool_choice=choice))
    with pytest.raises(BadRequest, match="at least one item"):
        to_chat(asked(input=[]))


def test_a_history_of_a_hundred_thousand_items_is_read_in_order() -> None:
    items = [USER, CALL, RESULT] * 33_334
    assert len(messages(*items)) == len(items)


def test_nesting_without_end_neither_breaks_reading_nor_is_looked_into() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(100_000):
        inner["a"] = inner = {}
    schema = {"type": "json_schema", "name": "x", "schema": deep}
    chat = to_chat(asked(tools=[{**LOOK_UP, "parameters": deep}], text={"format": schema}))
    assert chat["tools"][0]["function"]["parameters"] is not None
    for members in ({"input": [deep]}, {"input": [{"role": "user", "content": [deep]}]}, {"metadata": deep}):
        try:
            to_chat(asked(**members))
        except BadRequest:
            continue
        assert members.keys() == {"metadata"}


names = st.sampled_from(
    [
        *("input", "instructions", "tools", "tool_choice", "text", "format", "reasoning", "effort", "content", "type"),
        *("role", "call_id", "name", "arguments", "output", "summary", "include", "stream", "mode", "text", "id"),
        *("image_url", "conversation", "previous_response_id", "max_output_tokens", "schema", "custom", "top_logprobs"),
    ]
)
words = st.sampled_from(
    [
        *("user", "assistant", "message", "function_call", "function_call_output", "reasoning", "item_reference"),
        *("output_text", "input_text", "input_image", "refusal", "function", "custom", "allowed_tools", "auto", ""),
        *("json_schema", "json_object", "text", "custom_tool_call", "custom_tool_call_output"),
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | words | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=3), inner, max_size=5),
    max_leaves=30,
)


@given(st.dictionaries(names, values, max_size=8))
@example({"input": [{"type": "function_call", "call_id": "", "name": "", "arguments": ""}], "tools": [{"type": ""}]})
def test_any_json_is_read_or_refused(body: dict[str, Any]) -> None:
    refused, request = refusal_of(read, body)
    if request is None:
        assert refused is not None
        return
    assert request.chat.get("model") == body.get("model")
    assert all(isinstance(message["role"], str) for message in request.chat["messages"])
    refused, chat = refusal_of(to_chat_of, request)
    assert (refused, chat) == ((request.obstacle, None) if request.obstacle else (None, request.chat))


def refusal_of(function: Callable[[A], B], argument: A) -> tuple[BadRequest | NotFound | None, B | None]:
    """Why the agent is refused, and what a function makes of its argument otherwise; any other error fails the test."""
    try:
        return None, function(argument)
    except (BadRequest, NotFound) as error:
        return error, None


@given(st.lists(st.sampled_from([USER, THOUGHT, TEXT, CALL, RESULT, {"role": "assistant", "content": "a"}])))
def test_no_text_is_lost_or_repeated(items: list[dict[str, Any]]) -> None:
    folded = read(asked(input=items)).chat["messages"]
    text = msgspec.json.encode(folded).decode()
    assert text.count("Today.") == items.count(TEXT)
    assert text.count("look_up") == items.count(CALL)
    assert text.count("Where is it?") == items.count(USER)
    assert text.count("Hm.") == items.count(THOUGHT)
