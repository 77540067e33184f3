"""From a call to a turn: the new messages, the tokens, and whether a learner may use them."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from ratchet.core.contract import JsonObject, PolicyClaim, named_id
from ratchet.core.contract.traces import read_traceparent, span_id_of
from ratchet.core.contract.turn import EngineInfo, Sampling, Usage
from ratchet.core.rules.chat.links import prefix_digests
from ratchet.core.rules.recorded import ids_digest, without_tokens
from ratchet.core.service.asgi import Request
from ratchet.core.service.contracts import load_contracts
from ratchet.dialects.answers import Answer
from ratchet.gateway.calls import passed_headers
from ratchet.gateway.domain.past_calls import PastCall
from ratchet.gateway.domain.turns import (
    TurnHeader,
    TurnRequest,
    prompt_delta,
    trainable_of,
    turn_of,
    without_ids,
)
from tests.support.messages import AT

ids = st.lists(st.integers(0, 50_000), max_size=40)
GOOD = Answer(
    message={"role": "assistant", "content": "hello"},
    prompt_ids=[1, 2, 3],
    output_ids=[4, 5],
    logprobs=[-0.1, -0.2],
    usage=Usage(prompt=3, completion=2),
    finish_reason="stop",
)
USER: JsonObject = {"role": "user", "content": "hi"}


HEADER = TurnHeader(
    turn_id=named_id("turn", "x"),
    trajectory_id=named_id("trajectory", "x"),
    role="support",
    at=AT,
    policy=PolicyClaim(role="support", version=1, digest="a" * 64, arm="stable", weight=0.0),
    engine=EngineInfo(name="engine_local"),
    turns=0,
)


def asked(
    parent: PastCall | None = None, messages: list[JsonObject] | None = None, sampling: Sampling | None = None
) -> TurnRequest:
    return TurnRequest(
        messages=messages or [USER],
        tools=[{"type": "function", "function": {"name": "lookup"}}],
        sampling=sampling or Sampling(temperature=1.0, top_p=1.0),
        digest="0" * 64,
        index=parent.index + 1 if parent else 0,
        parent=parent,
    )


def past(call: TurnRequest, answer: Answer = GOOD, *, redacted: bool = False) -> PastCall:
    whole = [*call.messages, answer.message or {}]
    return PastCall(
        turn_id=HEADER.turn_id,
        index=call.index,
        messages=len(whole),
        digest=prefix_digests(whole)[-1],
        token_ids=array("i", [*(answer.prompt_ids or ()), *(answer.output_ids or ())]),
        tools_digest=turn_of(HEADER, call, answer, 1.0).tools_digest,
        redacted=redacted,
    )


@given(ids, ids)
def test_a_prompt_delta_and_its_parent_give_back_the_whole_prompt(prompt: list[int], parent: list[int]) -> None:
    delta = prompt_delta(prompt, parent)
    assert parent[: delta.prefix_length] + delta.suffix == prompt
    assert delta.prefix_digest == (ids_digest(parent[: delta.prefix_length]) if delta.prefix_length else None)


@given(ids, ids)
def test_a_prompt_that_continues_its_parent_carries_only_what_is_new(parent: list[int], new: list[int]) -> None:
    assert prompt_delta(parent + new, parent).suffix == new


def test_the_turn_of_a_good_call_is_trainable_and_keeps_the_contract() -> None:
    turn = turn_of(HEADER, asked(), GOOD, 12.0)
    assert turn.trainable.ok
    load_contracts().check_strict(turn)


def test_a_following_turn_carries_the_new_messages_and_no_tools_again() -> None:
    first = past(asked())
    second: list[JsonObject] = [USER, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    longer = dataclasses.replace(GOOD, prompt_ids=[1, 2, 3, 4, 5, 6], usage=Usage(prompt=6, completion=2))
    turn = turn_of(HEADER, asked(first, second), longer, 1.0)
    assert turn.messages == [{"role": "user", "content": "more"}]
    assert turn.parent_turn_id == first.turn_id
    assert turn.tools is None
    assert turn.tools_digest == first.tools_digest
    assert turn.prompt_token_ids is not None
    assert (turn.prompt_token_ids.prefix_length, turn.prompt_token_ids.suffix) == (5, [6])


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(top_p=0.9), "top_p"),
        (Sampling(top_k=40), "top_k"),
        (Sampling(top_k=0), None),
        (Sampling(min_p=0.1), "min_p"),
        (Sampling(presence_penalty=0.5), "penalty"),
        (Sampling(frequency_penalty=0.5), "penalty"),
        (Sampling(repetition_penalty=1.1), "penalty"),
        (Sampling(repetition_penalty=1.0), None),
        (Sampling(temperature=0.7), "unknown_logprobs"),
        (Sampling(temperature=0.0), "greedy"),
    ],
)
def test_sampling_that_distorts_the_logged_distribution_is_not_trainable(
    sampling: Sampling, reason: str | None
) -> None:
    assert trainable_of(sampling, GOOD).reason == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(message=None, error="boom"), "error"),
        (Answer(message=USER), "no_token_ids"),
        (Answer(message=USER, prompt_ids=[1], output_ids=[2]), "no_logprobs"),
        (Answer(message=USER, prompt_ids=[1], output_ids=[2], logprobs=[0.0, 0.0]), "count_mismatch"),
        (Answer(USER, [1], [2], [0.0], usage=Usage(prompt=1, completion=2)), "count_mismatch"),
        (Answer(USER, [1], [2], [0.0], usage=Usage(prompt=9, completion=1)), "count_mismatch"),
        (dataclasses.replace(GOOD, usage=None), "no_usage"),
    ],
)
def test_an_answer_whose_counts_do_not_agree_is_not_trainable(answer: Answer, reason: str) -> None:
    assert trainable_of(Sampling(), answer).reason == reason


@pytest.mark.parametrize("logprob", [0.01, 2e-6, float("nan"), float("inf"), float("-inf"), -9999.0, None, "-0.1"])
def test_a_log_probability_that_no_drawn_token_has_is_not_trainable(logprob: Any) -> None:
    answer = dataclasses.replace(GOOD, logprobs=[-0.1, logprob])
    assert trainable_of(Sampling(), answer).reason == "impossible_logprobs"


@pytest.mark.parametrize("logprob", [0, 0.0, 9e-7, -9998.9, -1])
def test_certain_and_very_unlikely_tokens_are_trainable(logprob: float) -> None:
    assert trainable_of(Sampling(), dataclasses.replace(GOOD, logprobs=[-0.1, logprob])).ok


@pytest.mark.parametrize("finish_reason", [None, "error", "abort"])
def test_a_part_of_an_answer_is_not_trainable(finish_reason: str | None) -> None:
    part = dataclasses.replace(GOOD, finish_reason=finish_reason)
    assert trainable_of(Sampling(temperature=1.0, top_p=1.0), part).reason == "error"


def test_redacted_turn_and_its_continuation_carry_no_tokens() -> None:
    safe = without_tokens(turn_of(HEADER, asked(), GOOD, 1.0), "redacted", {"email": 1})
    assert (safe.prompt_token_ids, safe.output_token_ids, safe.behavior_logprobs) == (None, None, None)
    assert (safe.trainable.reason, safe.redactions) == ("redacted", {"email": 1})
    later = turn_of(HEADER, asked(past(asked(), redacted=True), [USER, GOOD.message or {}, USER]), GOOD, 1.0)
    assert later.trainable.reason == "redacted"
    assert later.output_token_ids is None


@pytest.mark.parametrize(
    ("mode", "temperature", "reason"),
    [
        ("processed", 0.7, None),
        ("raw", 0.7, "raw_logprobs"),
        (None, 0.7, "unknown_logprobs"),
        ("raw", 1.0, None),
        (None, 1.0, None),
    ],
)
def test_only_logprobs_of_distribution_that_was_drawn_from_are_trainable(
    mode: str | None, temperature: float, reason: str | None
) -> None:
    answer = dataclasses.replace(GOOD, logprob_mode=mode)
    turn = turn_of(HEADER, asked(sampling=Sampling(temperature=temperature)), answer, 1.0)
    assert turn.trainable.reason == reason
    assert turn.logprob_mode == (mode or ("processed" if temperature == 1.0 else None))


def test_a_barred_answer_becomes_a_turn_with_the_reason_and_without_tokens() -> None:
    barred = without_ids(GOOD, "unsearchable_prompt")
    turn = turn_of(HEADER, asked(), barred, 1.0)
    assert (turn.trainable.reason, turn.prompt_token_ids) == ("unsearchable_prompt", None)
    assert turn.response == GOOD.message


def test_engine_continues_a_trace_from_the_calls_own_span() -> None:
    agents = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    request = Request("POST", "/", {b"traceparent": agents, b"tracestate": b"a=b", b"x-other": b"c"}, b"")
    passed = [(b"traceparent", agents), (b"tracestate", b"a=b")]
    assert passed_headers(request) == passed_headers(request, HEADER) == passed
    call = structs.replace(HEADER, trace=read_traceparent(agents.decode()))
    span_id = span_id_of(HEADER.turn_id).encode()
    own = b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + span_id + b"-01"
    assert passed_headers(request, call) == [(b"traceparent", own), (b"tracestate", b"a=b")]
