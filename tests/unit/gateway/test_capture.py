"""From a call to a turn: what is new, which tokens, and whether a learner may use it."""

from __future__ import annotations

import dataclasses
import tracemalloc
from array import array

import pytest
from hypothesis import given, strategies as st

from ratchet.contract import JsonObject, PolicyClaim, named_id
from ratchet.contract.turn import EngineInfo, Sampling, Usage
from ratchet.gateway.domain.capture import (
    Answer,
    Asked,
    Said,
    prompt_delta,
    trainable_of,
    turn_of,
    without_ids,
    without_tokens,
)
from ratchet.gateway.domain.chat import chat_answer
from ratchet.gateway.domain.completions import completion_answer
from ratchet.gateway.domain.conversations import (
    CONVERSATION_BYTES,
    TRY_BYTES,
    Conversation,
    Conversations,
    PastCall,
    prefix_digests,
)
from ratchet.rules.recorded import ids_digest
from ratchet.service.contracts import load_contracts
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


ASKED = Asked(
    turn_id=named_id("turn", "x"),
    trajectory_id=named_id("trajectory", "x"),
    role="support",
    at=AT,
    policy=PolicyClaim(role="support", version=1, digest="a" * 64, arm="stable", weight=0.0),
    engine=EngineInfo(name="engine_local"),
    turns=0,
)


def said(
    parent: PastCall | None = None, messages: list[JsonObject] | None = None, sampling: Sampling | None = None
) -> Said:
    return Said(
        messages=messages or [USER],
        tools=[{"type": "function", "function": {"name": "lookup"}}],
        sampling=sampling or Sampling(temperature=1.0, top_p=1.0),
        digest="0" * 64,
        index=parent.index + 1 if parent else 0,
        parent=parent,
    )


def past(call: Said, answer: Answer = GOOD, *, redacted: bool = False) -> PastCall:
    whole = [*call.messages, answer.message or {}]
    return PastCall(
        turn_id=ASKED.turn_id,
        index=call.index,
        messages=len(whole),
        digest=prefix_digests(whole)[-1],
        token_ids=array("i", [*(answer.prompt_ids or ()), *(answer.output_ids or ())]),
        tools_digest=turn_of(ASKED, call, answer, 1.0).tools_digest,
        redacted=redacted,
    )


@given(ids, ids)
def test_a_delta_and_its_parent_give_back_the_whole_prompt(prompt: list[int], parent: list[int]) -> None:
    delta = prompt_delta(prompt, parent)
    assert parent[: delta.prefix_length] + delta.suffix == prompt
    assert delta.prefix_digest == (ids_digest(parent[: delta.prefix_length]) if delta.prefix_length else None)


@given(ids, ids)
def test_a_prompt_that_continues_its_parent_carries_only_what_is_new(parent: list[int], new: list[int]) -> None:
    assert prompt_delta(parent + new, parent).suffix == new


def test_a_turn_of_a_good_call_is_trainable_and_keeps_the_contract() -> None:
    turn = turn_of(ASKED, said(), GOOD, 12.0)
    assert turn.trainable.ok
    load_contracts().check_strict(turn)


def test_a_following_turn_carries_the_new_messages_and_no_tools_again() -> None:
    first = past(said())
    second: list[JsonObject] = [USER, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    longer = dataclasses.replace(GOOD, prompt_ids=[1, 2, 3, 4, 5, 6], usage=Usage(prompt=6, completion=2))
    turn = turn_of(ASKED, said(first, second), longer, 1.0)
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
    ],
)
def test_an_answer_whose_counts_do_not_agree_is_not_trainable(answer: Answer, reason: str) -> None:
    assert trainable_of(Sampling(), answer).reason == reason


def test_what_was_redacted_carries_no_tokens_and_neither_does_what_continues_it() -> None:
    safe = without_tokens(turn_of(ASKED, said(), GOOD, 1.0), "redacted", {"email": 1})
    assert (safe.prompt_token_ids, safe.output_token_ids, safe.behavior_logprobs) == (None, None, None)
    assert (safe.trainable.reason, safe.redactions) == ("redacted", {"email": 1})
    later = turn_of(ASKED, said(past(said(), redacted=True), [USER, GOOD.message or {}, USER]), GOOD, 1.0)
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
def test_log_probabilities_of_another_distribution_than_the_one_drawn_from_are_not_trainable(
    mode: str | None, temperature: float, reason: str | None
) -> None:
    answer = dataclasses.replace(GOOD, logprob_mode=mode)
    turn = turn_of(ASKED, said(sampling=Sampling(temperature=temperature)), answer, 1.0)
    assert turn.trainable.reason == reason
    assert turn.logprob_mode == (mode or ("processed" if temperature == 1.0 else None))


def test_an_engines_answer_is_taken_apart() -> None:
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
    answer = completion_answer({"choices": [{**choice, "finish_reason": "length"}], "usage": usage})
    assert answer.message == {"role": "assistant", "content": " ok"}
    assert trainable_of(Sampling(), answer).ok


def test_an_answer_that_is_barred_says_so_and_may_lose_its_tokens() -> None:
    barred = without_ids(GOOD, "unsearchable_prompt")
    turn = turn_of(ASKED, said(), barred, 1.0)
    assert (turn.trainable.reason, turn.prompt_token_ids) == ("unsearchable_prompt", None)
    assert turn.response == GOOD.message


def test_the_longest_fitting_call_is_the_parent_and_empty_members_do_not_matter() -> None:
    talk = Conversation(("t", "support"))
    first = said()
    talk.remember(past(first))
    echoed: list[JsonObject] = [
        USER,
        {"role": "assistant", "content": "hello", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "next"},
    ]
    parent = talk.parent_of(prefix_digests(echoed))
    assert parent is not None
    assert parent.turn_id == ASKED.turn_id
    changed = [USER, {"role": "assistant", "content": "HELLO"}, {"role": "user", "content": "next"}]
    assert talk.parent_of(prefix_digests(changed)) is None


def test_an_answer_sent_back_in_another_order_of_members_is_the_same_answer() -> None:
    function = {"name": "find_order", "arguments": '{"order":"K47"}'}
    answer = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    reordered = {
        "tool_calls": [{"function": dict(reversed(function.items())), "type": "function", "id": "c"}],
        "content": None,
        "role": "assistant",
    }
    asked = {"role": "user", "content": "where is order #K47"}
    assert prefix_digests([asked, answer]) == prefix_digests([asked, reordered])


def test_a_call_made_again_is_the_next_attempt() -> None:
    talk = Conversation(("t", "support"))
    assert [talk.next_attempt(None, 0), talk.next_attempt(None, 0), talk.next_attempt("p", 1)] == [1, 2, 1]


def test_only_the_most_recently_used_trajectories_are_remembered() -> None:
    known = Conversations(2 * (CONVERSATION_BYTES + 3 * TRY_BYTES))
    for name in ("a", "b", "a", "c"):
        known.open(name, "support").next_attempt(None, 0)
    assert len(known) == 2
    assert known.open("a", "support").next_attempt(None, 0) == 3
    assert known.open("b", "support").next_attempt(None, 0) == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 400), st.booleans()), max_size=60))
def test_what_is_remembered_takes_bounded_memory_whatever_the_length_of_the_conversations(
    calls: list[tuple[str, int, bool]],
) -> None:
    limit = 4 * CONVERSATION_BYTES
    known, held = Conversations(limit), dict[str, Conversation]()
    for name, length, late in calls:
        talk = held.get(name) if late else None  # its answer may come when it has been forgotten
        talk = held[name] = talk or known.open(name, "support")
        talk.next_attempt(None, length)
        answer = dataclasses.replace(GOOD, prompt_ids=[7] * length)
        known.remember(talk, past(said(), answer))
    assert known.size <= limit or len(known) == 1


def test_the_costs_of_what_is_remembered_are_no_less_than_measured() -> None:
    def made() -> Conversation:
        talk = Conversation((named_id("t", "x"), "support"))
        for number in range(8):
            talk.next_attempt(named_id("turn", str(number)), number)
            talk.remember(past(said(), dataclasses.replace(GOOD, prompt_ids=[1] * 1000)))
        return talk

    made()
    tracemalloc.start()
    try:
        talks = [made() for _ in range(20)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= sum(talk.size for talk in talks)
