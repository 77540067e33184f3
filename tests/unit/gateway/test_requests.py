"""What an agent may ask on both routes, and how the gateway asks an engine for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import BadRequest, RatchetError
from ratchet.core.service.problems import http_error
from ratchet.dialects.api_dialect import CHAT, ENGINE_FIELDS, TEXT, ApiDialect
from ratchet.dialects.messages.dialect import MESSAGES
from ratchet.dialects.requests import (
    MAX_MEMBERS,
    MAX_MESSAGES,
    STEP_BYTES,
    CallRequest,
    constraint_of,
    end_user_of,
    provider_fields,
    read_fields,
    value_of,
)
from ratchet.dialects.responses.dialect import RESPONSES
from ratchet.gateway.http_api import split_path, unknown_path

HI = b'{"role": "user", "content": "hi"}'
ACCOUNT, SESSION = "0199f3a2-01b8-7f6c-8a55-90d3e7b1c422", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
BODY: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "hi"}]}


def read_chat(body: dict[str, Any]) -> CallRequest:
    return CHAT.read(read_fields(msgspec.json.encode(body)))


def read_text(body: dict[str, Any]) -> CallRequest:
    return TEXT.read(read_fields(msgspec.json.encode(body)))


def engine_body(dialect: ApiDialect, request: CallRequest, policy: str) -> dict[str, Any]:
    """What the engine reads."""
    return msgspec.json.decode(msgspec.json.encode(ENGINE_FIELDS[dialect.name](request, policy)))


def test_a_base_url_may_carry_the_trajectory() -> None:
    assert split_path("/t/abc/v1/chat/completions") == ("abc", "/v1/chat/completions")
    assert split_path("/v1/models") == (None, "/v1/models")
    hint = "a slash in a trajectory's name is written %2F: /t/o%2F5%2F7/v1/chat/completions"
    assert hint in str(unknown_path("/t/o/5/7/v1/chat/completions", "/v1/o/5/v1/chat/completions"))
    assert "%2F" not in str(unknown_path("/t/o/v1/chats", "/v1/chats"))
    assert split_path("/t/abc/openai/deployments/x/completions/") == ("abc", "/v1/completions")


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": ["hi"]}, 400, "messages"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream": True, "stream_options": True}, 400, "stream_options"),
        ({"n": 0}, 400, "n"),
        ({"n": 65}, 400, "n"),
        ({"n": "2"}, 400, "n"),
        ({"tools": {}}, 400, "tools"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"model": 7}, 400, "model"),
        ({"model": "x" * 201}, 400, "model"),
        ({"model": "a\nb"}, 400, "model"),
        ({"model": ""}, 400, "model"),
        ({"adapter_id": 7}, 400, "adapter_id"),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(change: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(RatchetError) as error:
        read_chat({**BODY, **change})
    assert (http_error(error.value).status, error.value.param) == (status, param)


@pytest.mark.parametrize(("beside", "left"), [({}, None), ({"top_k": 3}, {"top_k": 3})])
def test_adapter_id_within_extra_body_names_the_model(beside: dict[str, Any], left: dict[str, Any] | None) -> None:
    sent = {**BODY, "extra_body": {"adapter_id": "support@3", **beside}}
    request = read_chat(sent)
    assert (request.model, request.named_by) == ("support@3", "adapter_id")
    body = engine_body(CHAT, request, "support@3-x")
    assert ("adapter_id" in body, body.get("extra_body")) == (False, left)


def test_adapter_id_at_the_top_counts_before_one_within_extra_body() -> None:
    sent = {**BODY, "adapter_id": "support@3", "extra_body": {"adapter_id": "support@4"}}
    assert read_chat(sent).model == "support@3"


@pytest.mark.parametrize("extra", [None, 7, [], {"top_k": 3}])
def test_extra_body_without_an_adapter_id_passes_as_it_is(extra: object) -> None:
    fields = read_fields(msgspec.json.encode({**BODY, "extra_body": extra}))
    assert bytes(fields["extra_body"]) == msgspec.json.encode(extra)


def test_an_adapter_id_names_the_model_whatever_the_model_is() -> None:
    request = read_chat({**BODY, "adapter_id": "support@3-1a2b3c4d"})
    assert (request.model, request.named_by) == ("support@3-1a2b3c4d", "adapter_id")


@pytest.mark.parametrize("written", ["50.0", "5e1", "5.0E+1", " 50.000 "])
def test_an_integer_may_be_written_as_a_float_and_goes_on_as_an_integer(written: str) -> None:
    members = "".join(f', "{name}": {written}' for name in ("max_tokens", "n", "seed", "top_logprobs"))
    fields = read_fields(b'{"model": "support", "messages": [{"role": "user"}]%s}' % members.encode())
    request = CHAT.read(fields)
    assert (request.sampling.max_tokens, request.choices, request.sampling.seed) == (50, 50, 50)
    for sent in (provider_fields(request, "gpt-x"), ENGINE_FIELDS[CHAT.name](request, "policy")):
        assert [bytes(sent[name]) for name in ("max_tokens", "n", "seed", "top_logprobs")] == [b"50"] * 4


@pytest.mark.parametrize("written", [b"50.0", b"5e1"])
def test_an_integer_may_be_written_as_a_float_in_every_api(written: bytes) -> None:
    for dialect, member, prompt in (
        (CHAT, "max_completion_tokens", b'"messages": [%s]' % HI),
        (MESSAGES, "max_tokens", b'"messages": [%s]' % HI),
        (RESPONSES, "max_output_tokens", b'"input": "hi"'),
        (TEXT, "max_tokens", b'"prompt": "hi"'),
    ):
        call = dialect.read(read_fields(b'{"model": "m", %s, "%s": %s}' % (prompt, member.encode(), written)))
        assert (call.sampling.max_tokens, bytes(provider_fields(call, "m")[member])) == (50, b"50")
    text = TEXT.read(read_fields(b'{"model": "m", "prompt": "x", "logprobs": %s}' % written))
    assert text.wants_logprobs


@pytest.mark.parametrize("written", ["1.5", "1e30", '"5.0"', "9223372036854775808.0"])
def test_what_is_no_integer_of_64_bits_stays_as_it_is_and_is_refused(written: str) -> None:
    fields = read_fields(b'{"model": "m", "messages": [{}], "max_tokens": %s}' % written.encode())
    assert bytes(fields["max_tokens"]) == written.encode()
    with pytest.raises(BadRequest) as refused:
        CHAT.read(fields)
    assert refused.value.param == "max_tokens"


def test_members_that_the_gateway_does_not_read_reach_engine_byte_by_byte() -> None:
    body = b'{"model":"support","messages":[{"role":"user","content":"\\ud83d cut"}],"x":1e-7,"y":%d}' % 10**60
    request = CHAT.read(read_fields(b"\xef\xbb\xbf" + body))
    assert request.messages[0]["content"] == "\ufffd cut"
    sent = msgspec.json.encode(provider_fields(request, "gpt-x"))
    assert sent == body.replace(b'"support"', b'"gpt-x"').replace(b"ud83d", b"ufffd")


def test_halves_of_characters_are_not_looked_for_in_a_body_of_nothing_else() -> None:
    with pytest.raises(RatchetError) as error:
        read_fields(b'{"model": "' + rb"\ud83d" * 100_001 + b'"}')
    assert error.value.code == "invalid_json"


@pytest.mark.parametrize(
    "body", [b'{"model": "\xff"}', b'{"\xff": 1}', b"[]", b"7", b'{"a": ' + b"[" * 100_000, b"{", b""]
)
def test_bytes_that_are_no_json_object_in_utf_8_are_refused(body: bytes) -> None:
    with pytest.raises(RatchetError) as error:
        read_fields(body)
    assert (http_error(error.value).status, error.value.code) == (400, "invalid_json")


def test_the_engine_gets_a_request_for_tokens_and_none_of_our_own_members() -> None:
    body = engine_body(CHAT, read_chat({**BODY, "adapter_id": "support@3", "top_p": 0.9}), "support@3-x")
    assert body["model"] == "support@3-x"
    assert body["logprobs"] is True
    assert body["return_token_ids"] is True
    assert (body["temperature"], body["top_p"]) == (1.0, 0.9)
    assert not {"adapter_id", "stream", "stream_options"} & set(body)


@pytest.mark.parametrize("asked", [{}, {"stream_options": {"x": 1}}, {"stream_options": {"include_usage": False}}])
def test_a_stream_is_asked_for_its_usage_too(asked: dict[str, Any]) -> None:
    request = read_chat({**BODY, "stream": True, **asked})
    assert not request.include_usage
    expected = {**asked.get("stream_options", {}), "include_usage": True}
    assert engine_body(CHAT, request, "p")["stream_options"] == expected
    assert msgspec.json.decode(msgspec.json.encode(provider_fields(request, "m")))["stream_options"] == expected


def test_engine_gets_every_sampling_value_and_none_of_its_defaults_counts() -> None:
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    penalties = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    unset = read_chat({**BODY, "temperature": None, "top_k": None})
    assert {**neutral, **penalties}.items() <= engine_body(CHAT, unset, "p").items()
    assert unset.sampling.temperature == 1.0
    sent = engine_body(CHAT, read_chat({**BODY, "temperature": 0.5, "top_k": 20}), "p")
    assert (sent["temperature"], sent["top_k"], sent["top_p"]) == (0.5, 20, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": {"5": -100}},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        {"function_call": {"name": "look_up"}},
        {"best_of": 3},
        {"guided_json": {}},
        {"structured_outputs": {"regex": "[a-z]+"}},
        {"bad_words": ["no"]},
        {"min_tokens": 5},
        {"ignore_eos": True},
    ],
)
def test_a_request_that_restricts_the_distribution_is_constrained(change: dict[str, Any]) -> None:
    assert constraint_of(read_chat({**BODY, **change})) is not None


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"logit_bias": None, "response_format": None, "tool_choice": None},
        {"logit_bias": {}, "best_of": 1, "response_format": {"type": "text"}, "tool_choice": "auto"},
        {"stop": ["end"], "max_tokens": 5, "seed": 3, "user": "u", "parallel_tool_calls": False},
    ],
)
def test_a_request_with_only_neutral_values_is_free(change: dict[str, Any]) -> None:
    assert constraint_of(read_chat({**BODY, **change})) is None


def test_another_server_gets_the_agents_own_members() -> None:
    asked = {**BODY, "adapter_id": "support@3", "return_token_ids": True, "max_tokens": 5}
    body = msgspec.json.decode(msgspec.json.encode(provider_fields(read_chat(asked), "gpt-x")))
    assert body == {"model": "gpt-x", "messages": BODY["messages"], "max_tokens": 5}


@pytest.mark.parametrize(
    ("prompt", "sent", "searchable"),
    [("once", "once", True), (["once"], "once", True), ([5, 6], [5, 6], False), ([[5, 6]], [5, 6], False)],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, sent: Any, searchable: bool) -> None:
    request = read_text({"model": "support", "prompt": prompt})
    assert engine_body(TEXT, request, "support@1-x")["prompt"] == sent
    assert request.searchable is searchable


@given(prompts=st.integers(1, 8), n=st.integers(1, 8))
def test_each_answer_belongs_to_its_prompt(prompts: int, n: int) -> None:
    request = read_text({"model": "support", "prompt": [f"p{number}" for number in range(prompts)], "n": n})
    assert request.choices == prompts * n
    belongs = [request.messages_of(choice)[0]["content"] for choice in range(request.choices)]
    assert belongs == [f"p{choice // n}" for choice in range(request.choices)]


@pytest.mark.parametrize("prompt", [None, [], 7, ["one", [2]], [[1], []], [[1], ["a"]], [True], [{}], ["x"] * 65])
def test_a_prompt_of_another_kind_is_refused(prompt: Any) -> None:
    with pytest.raises(RatchetError) as error:
        read_text({"model": "support", "prompt": prompt})
    assert (http_error(error.value).status, error.value.param) == (400, "prompt")


def test_a_text_prompt_is_a_users_message_and_token_ids_are_only_counted() -> None:
    assert read_text({"model": "support", "prompt": "once"}).messages == [{"role": "user", "content": "once"}]
    ids = read_text({"model": "support", "prompt": [5, 6]}).messages
    assert ids == [{"role": "user", "content": [{"type": "token_ids", "count": 2}]}]


def test_engine_gets_a_request_for_logprobs_also_where_agent_wants_none() -> None:
    assert engine_body(TEXT, read_text({"model": "support", "prompt": "x"}), "p")["logprobs"] == 0
    asked = read_text({"model": "support", "prompt": "x", "logprobs": 3})
    assert engine_body(TEXT, asked, "p")["logprobs"] == 3
    assert asked.wants_logprobs


@pytest.mark.parametrize(
    "value",
    [
        "x" * STEP_BYTES,
        [1.5] * STEP_BYTES,
        {"a": {"b": [[["x" * STEP_BYTES, {"c": {}}], None]]}},
        [{"role": "user", "content": [{"type": "text", "text": "x" * STEP_BYTES}, *[{"n": 1}] * STEP_BYTES]}],
        [[[[[[[["x" * STEP_BYTES]]]]]]]],
    ],
)
@pytest.mark.parametrize("indent", [0, 2])
def test_a_large_member_that_is_read_in_steps_is_what_it_is(value: object, indent: int) -> None:
    body = msgspec.json.format(msgspec.json.encode({"metadata": value}), indent=indent)
    assert value_of(read_fields(body), "metadata") == value


@pytest.mark.parametrize("message", [b'{"a" 1}', b'"', b'"\\ud800"', b"[" * 5000 + b"]" * 5000])
def test_a_large_member_that_is_no_json_is_refused_by_its_name(message: bytes) -> None:
    text = b'"%s"' % (b"x" * STEP_BYTES)
    fields = {"messages": msgspec.Raw(b'[{"content": %s, "more": %s}]' % (text, message))}
    with pytest.raises(BadRequest, match="messages is not JSON"):
        value_of(fields, "messages")


def test_more_messages_than_any_provider_takes_are_refused() -> None:
    body = msgspec.json.encode({"model": "support", "messages": [{"role": "user"}] * (MAX_MESSAGES + 1)})
    with pytest.raises(BadRequest, match="at most 100000"):
        CHAT.read(read_fields(body))


USERS = [
    (CHAT, {"user": "alice", "safety_identifier": "hash"}, "alice"),
    (CHAT, {"safety_identifier": "alice", "metadata": {"user_id": "hash"}}, "alice"),
    (CHAT, {"user": "", "metadata": {"user_id": "alice"}}, "alice"),
    (RESPONSES, {"user": "alice"}, "alice"),
    (RESPONSES, {"safety_identifier": "alice"}, "alice"),
    (MESSAGES, {"metadata": {"user_id": "alice"}}, "alice"),
    (MESSAGES, {"metadata": {"user_id": f"user_0a1b_account_{ACCOUNT}_session_{SESSION}"}}, ACCOUNT),
    (MESSAGES, {"metadata": {"user_id": f"user_0a1b_account__session_{SESSION}"}}, "user_0a1b_account_"),
    (MESSAGES, {"metadata": {"user_id": f'{{"account_uuid":"{ACCOUNT}","session_id":"{SESSION}"}}'}}, ACCOUNT),
    (MESSAGES, {"metadata": {"user_id": f"acme_account_{ACCOUNT}"}}, f"acme_account_{ACCOUNT}"),
    (CHAT, {"user": 7, "metadata": ["alice"]}, None),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "members", "user"), USERS)
def test_each_api_has_members_that_name_the_end_user(
    dialect: ApiDialect, members: dict[str, Any], user: str | None
) -> None:
    body = {**BODY, "input": "hi", "max_tokens": 9, **members}
    assert end_user_of(dialect.read(read_fields(msgspec.json.encode(body)))) == user


def test_claude_code_without_an_account_names_its_device() -> None:
    texts = [f'{{"device_id":"d","account_uuid":"","session_id":"{session}"}}' for session in (ACCOUNT, SESSION)]
    first, second = [end_user_of(read_chat({**BODY, "user": text})) for text in texts]
    assert first == second
    assert first is not None
    assert '"device_id":"d"' in first


def test_a_request_has_at_most_a_thousand_members() -> None:
    members = {f"member{number}": number for number in range(MAX_MEMBERS + 1)}
    with pytest.raises(BadRequest, match="the body has 1001 members"):
        read_fields(msgspec.json.encode(members))
