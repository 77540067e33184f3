"""What a process remembers between calls: cached answers, conversations and sets of tools, bounded in bytes."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import msgspec
from hypothesis import given, strategies as st

from ratchet.core.contract import JsonObject, named_id
from ratchet.core.contract.turn import Sampling
from ratchet.core.rules.chat.links import prefix_digests
from ratchet.core.rules.redaction import Redacted
from ratchet.gateway.domain.past_calls import (
    ATTEMPT_BYTES,
    CONVERSATION_BYTES,
    TOOL_SET_BYTES,
    AnswerCache,
    Conversation,
    Conversations,
    ToolSets,
    cache_key,
    system_digest,
)
from tests.unit.gateway.test_recorder_process import job, record_maker, request, turn_of
from tests.unit.gateway.test_turns import GOOD, HEADER, USER, asked, past

GREEDY = Sampling(temperature=0.0)
TAKEN_OUT = {"email": 1}


def test_the_cache_serves_only_registered_policies_at_temperature_zero() -> None:
    cache = AnswerCache(1000)
    assert cache.may_serve("d" * 64, GREEDY)
    assert not cache.may_serve("d" * 64, Sampling(temperature=0.1))
    assert not cache.may_serve("", GREEDY)
    assert not AnswerCache(0).may_serve("d" * 64, GREEDY)


def test_each_policy_route_and_request_has_its_own_answer() -> None:
    key = cache_key("a" * 64, "/completions", {"x": 1, "y": 2})
    assert key == cache_key("a" * 64, "/completions", {"y": 2, "x": 1})
    others = {
        cache_key("b" * 64, "/completions", {"x": 1, "y": 2}),
        cache_key("a" * 64, "chat", {"x": 1, "y": 2}),
        cache_key("a" * 64, "/completions", {"x": 1, "y": 3}),
    }
    assert key not in others
    assert len(others) == 3


def test_least_recently_used_answers_make_room_and_cache_keeps_no_huge_one() -> None:
    cache = AnswerCache(160)
    for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g"):
        cache.put_answer(name, b"0123456789ABCDEF12")
    assert cache.size == sum(1 for _ in range(len(cache))) * 18
    assert cache.get_value(b"a") == b"0123456789ABCDEF12"
    for name in (b"h", b"i", b"j"):
        cache.put_answer(name, b"0123456789ABCDEF12")
    assert cache.size <= 160
    assert (cache.get_value(b"a"), cache.get_value(b"b")) == (b"0123456789ABCDEF12", None)
    cache.put_answer(b"huge", b"x" * 200)
    assert cache.get_value(b"huge") is None


def test_longest_fitting_call_is_parent_and_empty_members_do_not_matter() -> None:
    talk = Conversation(("t", "support"))
    first = asked()
    talk.remember(past(first))
    echoed: list[JsonObject] = [
        USER,
        {"role": "assistant", "content": "hello", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "next"},
    ]
    parent = talk.parent_of(prefix_digests(echoed))
    assert parent is not None
    assert parent.turn_id == HEADER.turn_id
    changed = [USER, {"role": "assistant", "content": "HELLO"}, {"role": "user", "content": "next"}]
    assert talk.parent_of(prefix_digests(changed)) is None


def test_answer_sent_back_in_another_order_of_members_is_the_same_answer() -> None:
    function = {"name": "find_order", "arguments": '{"order":"K47"}'}
    answer = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    reordered = {
        "tool_calls": [{"function": dict(reversed(function.items())), "type": "function", "id": "c"}],
        "content": None,
        "role": "assistant",
    }
    question = {"role": "user", "content": "where is order #K47"}
    assert prefix_digests([question, answer]) == prefix_digests([question, reordered])


def test_a_repeated_call_is_the_next_attempt() -> None:
    talk = Conversation(("t", "support"))
    assert [talk.next_attempt(None, 0), talk.next_attempt(None, 0), talk.next_attempt("p", 1)] == [1, 2, 1]


def test_only_the_most_recently_used_trajectories_are_remembered() -> None:
    known = Conversations(2 * (CONVERSATION_BYTES + 3 * ATTEMPT_BYTES))
    for name in ("a", "b", "a", "c"):
        known.open(name, "support").next_attempt(None, 0)
    assert len(known) == 2
    assert known.open("a", "support").next_attempt(None, 0) == 3
    assert known.open("b", "support").next_attempt(None, 0) == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 400), st.booleans()), max_size=60))
def test_conversations_take_bounded_memory_whatever_their_length(
    calls: list[tuple[str, int, bool]],
) -> None:
    limit = 4 * CONVERSATION_BYTES
    known, held = Conversations(limit), dict[str, Conversation]()
    for name, length, late in calls:
        talk = held.get(name) if late else None  # its answer may come when the memory has dropped it
        talk = held[name] = talk or known.open(name, "support")
        talk.next_attempt(None, length)
        answer = dataclasses.replace(GOOD, prompt_ids=[7] * length)
        known.remember(talk, past(asked(), answer))
    assert known.size <= limit or len(known) == 1


def test_a_conversation_takes_no_more_memory_than_its_size_tells() -> None:
    def made() -> Conversation:
        talk = Conversation((named_id("t", "x"), "support"))
        for number in range(8):
            talk.next_attempt(named_id("turn", str(number)), number)
            talk.remember(past(asked(), dataclasses.replace(GOOD, prompt_ids=[1] * 1000)))
        return talk

    made()
    tracemalloc.start()
    try:
        talks = [made() for _ in range(20)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= sum(talk.size for talk in talks)


def tools(number: int, length: int = 10) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{number}", "description": "x" * length}}]


def size_of(number: int, length: int = 10) -> int:
    return TOOL_SET_BYTES + len(msgspec.json.encode(tools(number, length)))


def test_a_redacted_set_comes_back() -> None:
    sets = ToolSets(10_000)
    sets.put_redacted("a", Redacted(tools(1), TAKEN_OUT))
    sets.put_redacted("b", Redacted(tools(2)))
    assert sets.get_redacted("a", tools(7)) == Redacted(tools(1), TAKEN_OUT)
    assert sets.get_redacted("b", tools(2)) == Redacted(tools(2))
    assert sets.get_redacted("c", tools(3)) is None


def test_the_least_recently_used_sets_make_room_by_bytes() -> None:
    sets = ToolSets(2 * size_of(0, 1_000) + 100)
    for name in ("a", "b"):
        sets.put_redacted(name, Redacted(tools(0, 1_000), TAKEN_OUT))
    sets.get_redacted("a", [])
    sets.put_redacted("c", Redacted(tools(0, 1_000), TAKEN_OUT))
    assert [name for name in "abc" if sets.get_redacted(name, []) is not None] == ["a", "c"]
    assert sets.size == 2 * size_of(0, 1_000)


def test_set_larger_than_all_room_is_not_kept_and_costs_no_other_its_place() -> None:
    sets = ToolSets(10_000)
    sets.put_redacted("a", Redacted(tools(1), TAKEN_OUT))
    sets.put_redacted("b", Redacted(tools(0, 20_000), TAKEN_OUT))
    assert (len(sets), sets.size) == (1, size_of(1))
    assert sets.get_redacted("b", tools(0, 20_000)) is None


def test_an_unchanged_set_is_kept_without_its_text() -> None:
    sets = ToolSets(10_000)
    sets.put_redacted("a", Redacted(tools(0, 1_000_000)))
    assert sets.size == TOOL_SET_BYTES


def test_every_call_with_the_same_tools_is_redacted() -> None:
    maker = record_maker()
    offered = [*tools(0), {"type": "function", "function": {"name": "f", "description": "ask jo@example.com"}}]
    for number in range(2):
        sent = request(tools=offered, user=str(number))
        turn = turn_of(maker.record(job(sent)))
        assert "jo@example.com" not in str(turn.tools)
        assert turn.redactions == {"email": 1}


def test_memory_of_a_recorder_is_bounded_however_many_tools_agents_offer() -> None:
    """Each call brings tools of its own, a twentieth of the bound, with an address to take out."""
    bound = 1_000_000
    maker = record_maker(tool_bytes=bound)
    text = "ask jo@example.com " + "lorem ipsum " * (bound // 240)
    tracemalloc.start()
    try:
        for number in range(40):
            offered = [{"type": "function", "function": {"name": f"f{number}", "description": text}}]
            assert turn_of(maker.record(job(request(tools=offered)))).redactions == {"email": 1}
        assert tracemalloc.get_traced_memory()[0] < 1.3 * bound
    finally:
        tracemalloc.stop()


def test_a_role_that_is_no_text_ends_the_system_prompt() -> None:
    system = {"role": "system", "content": "hi"}
    assert system_digest([system, {"role": ["system"], "content": "ho"}]) == system_digest([system])
