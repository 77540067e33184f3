"""What an agent may ask on both routes, and how the gateway asks an engine for it."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contract import named_id
from ratchet.errors import RatchetError
from ratchet.gateway.domain.forms import chat_engine_body, read_chat, read_text, text_engine_body
from ratchet.gateway.domain.requests import check_trajectory_id, provider_body
from ratchet.gateway.http_api import split_path
from ratchet.service.problems import http_error

BODY: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "hi"}]}


def test_a_base_url_may_carry_the_trajectory() -> None:
    assert split_path("/t/abc/v1/chat/completions") == ("abc", "/v1/chat/completions")
    assert split_path("/v1/models") == (None, "/v1/models")


def test_a_trajectory_id_is_a_uuid() -> None:
    plain = named_id("x")
    assert check_trajectory_id(plain.upper()) == plain
    with pytest.raises(RatchetError) as error:
        check_trajectory_id("ticket-17")
    assert http_error(error.value).status == 400


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": ["hi"]}, 400, "messages"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream": True, "stream_options": True}, 400, "stream_options"),
        ({"n": 2}, 400, "n"),
        ({"tools": {}}, 400, "tools"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"model": 7}, 400, "model"),
        ({"model": "Not A Role"}, 404, "model"),
        ({"adapter_id": "support@x"}, 404, "adapter_id"),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(change: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(RatchetError) as error:
        read_chat({**BODY, **change})
    assert (http_error(error.value).status, error.value.param) == (status, param)


def test_an_adapter_id_pins_a_version_whatever_the_model_is() -> None:
    model = read_chat({**BODY, "adapter_id": "support@3-1a2b3c4d"}).model
    assert (model.role, model.version, model.digest) == ("support", 3, "1a2b3c4d")


def test_the_engine_gets_a_request_for_tokens_and_none_of_our_own_members() -> None:
    body = chat_engine_body(
        read_chat({**BODY, "adapter_id": "support@3", "stream": True, "stream_options": {}, "top_p": 0.9}),
        "support@3-x",
    )
    assert body["model"] == "support@3-x"
    assert body["logprobs"] is True
    assert body["return_token_ids"] is True
    assert (body["temperature"], body["top_p"]) == (1.0, 0.9)
    assert not {"adapter_id", "stream", "stream_options"} & set(body)


def test_the_engine_gets_every_sampling_value_so_that_none_of_its_defaults_counts() -> None:
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    penalties = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    unset = read_chat({**BODY, "temperature": None, "top_k": None})
    assert {**neutral, **penalties}.items() <= chat_engine_body(unset, "p").items()
    assert unset.sampling.temperature == 1.0
    sent = chat_engine_body(read_chat({**BODY, "temperature": 0.5, "top_k": 20}), "p")
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
    assert read_chat({**BODY, **change}).constrained


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
    assert not read_chat({**BODY, **change}).constrained


def test_another_server_gets_the_agents_own_members() -> None:
    asked = {**BODY, "adapter_id": "support@3", "stream": True, "return_token_ids": True, "max_tokens": 5}
    body = provider_body(read_chat(asked), "gpt-x")
    assert body == {"model": "gpt-x", "messages": BODY["messages"], "max_tokens": 5}


@pytest.mark.parametrize(
    ("prompt", "sent", "searchable"),
    [("once", "once", True), (["once"], "once", True), ([5, 6], [5, 6], False), ([[5, 6]], [5, 6], False)],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, sent: Any, searchable: bool) -> None:
    request = read_text({"model": "support", "prompt": prompt})
    assert text_engine_body(request, "support@1-x")["prompt"] == sent
    assert request.searchable is searchable


@pytest.mark.parametrize("prompt", [None, [], 7, ["one", "two"], [[1], [2]], [True], [{}]])
def test_a_prompt_of_another_kind_is_refused(prompt: Any) -> None:
    with pytest.raises(RatchetError) as error:
        read_text({"model": "support", "prompt": prompt})
    assert (http_error(error.value).status, error.value.param) == (400, "prompt")


def test_a_text_prompt_is_a_users_message_and_token_ids_are_only_counted() -> None:
    assert read_text({"model": "support", "prompt": "once"}).messages == [{"role": "user", "content": "once"}]
    ids = read_text({"model": "support", "prompt": [5, 6]}).messages
    assert ids == [{"role": "user", "content": [{"type": "token_ids", "count": 2}]}]


def test_the_engine_gets_a_request_for_log_probabilities_also_where_the_agent_wants_none() -> None:
    assert text_engine_body(read_text({"model": "support", "prompt": "x"}), "p")["logprobs"] == 0
    asked = read_text({"model": "support", "prompt": "x", "logprobs": 3})
    assert text_engine_body(asked, "p")["logprobs"] == 3
    assert asked.wants_logprobs
