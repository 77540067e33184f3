"""The turns of one trajectory id fall into conversations, on any gateway and in any spelling."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any

import pytest

from ratchet.bus.message import JsonObject, named_id
from ratchet.core.contract import PolicyClaim, Turn
from ratchet.core.contract.turn import EngineInfo, Trainable
from ratchet.core.rules.chat import (
    ChatError,
    Conversation,
    Earlier,
    beginnings,
    chat_of_turns,
    conversations,
    entries_of,
    prompt_of_turn,
    split,
)
from tests.support.messages import AT

LONG = "an answer that is long enough to be one of a kind, about the matter "


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def assistant(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


def call(name: str, prompt: list[JsonObject], answer: JsonObject | str | None = None, **members: Any) -> Turn:
    """A turn whose id is its name, and which holds its whole prompt; a later letter or number is later."""
    response = assistant(answer or LONG + name) if not isinstance(answer, dict) else answer
    fields: dict[str, Any] = {
        "turn_id": name,
        "trajectory_id": named_id("t"),
        "timestamp": AT + timedelta(seconds=int("".join(filter(str.isdigit, name)) or 0)),
        "index": 0,
        "request_digest": "d",
        "messages": prompt,
        "policy": PolicyClaim(role="default", version=1, digest="", arm="stable", weight=0.0),
        "engine": EngineInfo(name="e"),
        "trainable": Trainable(ok=False),
        "response": response,
    }
    return Turn(**(fields | members))


def tool_call(call_id: str) -> JsonObject:
    function = {"name": "look_up", "arguments": '{"a":1}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def names(turns: list[Turn]) -> list[list[str]]:
    return [[turn.turn_id for turn in one.calls] for one in conversations(turns)]


def rows(one: Conversation) -> list[list[str]]:
    return [[segment.calls[place].turn_id for place in sorted(segment.calls)] for segment in one.segments()]


def samples(count: int, calls: int, *, same: bool) -> list[Turn]:
    """Runs side by side under one id: `a1 b1 a2 b2`."""
    turns: list[Turn] = []
    chats = {letter: [user("why?" if same else f"why {letter}?")] for letter in "abcdefgh"[:count]}
    for number, letter in itertools.product(range(calls), chats):
        turn = call(f"{letter}{number * count + ord(letter) - ord('a') + 1}", list(chats[letter]))
        turns.append(turn)
        chats[letter] += [turn.response or {}, user(f"and {number}?")]
    return turns


@pytest.mark.parametrize("same", [True, False])
def test_interleaved_runs_keep_apart_in_whatever_order_their_turns_come(same: bool) -> None:
    turns = samples(3, 3, same=same)
    expected = [["a1", "a4", "a7"], ["b2", "b5", "b8"], ["c3", "c6", "c9"]]
    for seed in range(5):
        mixed = random.Random(seed).sample(turns, len(turns))
        assert sorted(names(mixed)) == expected
        assert names(mixed) == names(turns)
    digests = {one.prompt_digest for one in conversations(turns)}
    assert len(digests) == (1 if same else 3)


def test_the_conversation_that_spans_the_others_comes_first() -> None:
    planner = [user("plan it")]
    first = call("p1", planner)
    worker = [call("w2", [user("do a")]), call("w3", [user("do a"), assistant(LONG + "w2"), user("more")])]
    worker.append(call("w4", [*worker[1].messages, assistant(LONG + "w3"), user("more")]))
    last = call("p9", [*planner, assistant(LONG + "p1"), user("done: a")])
    assert names([*worker, last, first]) == [["p1", "p9"], ["w2", "w3", "w4"]]


def test_a_call_continues_what_another_gateway_answered() -> None:
    """Each of two gateways knows only its own calls: the third turn names the first one."""
    first = call("a1", [user("hi")])
    second = call("a2", [user("hi"), assistant(LONG + "a1"), user("more")])
    third = call("a3", [assistant(LONG + "a1")], parent_turn_id="a1")
    third = call("a3", [user("more"), assistant(LONG + "a2"), user("last")], parent_turn_id="a1")
    (one,) = conversations([third, first, second])
    assert [turn.turn_id for turn in one.calls] == ["a1", "a2", "a3"]
    assert rows(one) == [["a1", "a2", "a3"]]
    assert [message["content"] for message in chat_of_turns([first, second, third], "a3")][-2:] == ["last", LONG + "a3"]


def test_respelled_answers_are_no_reason_to_begin_anew() -> None:
    first = call("a1", [user("hi")], tool_call("c1"))
    spaced: dict[str, Any] = {**tool_call("c1"), "content": "", "name": "model"}
    spaced["tool_calls"] = [
        {**spaced["tool_calls"][0], "index": 0, "function": {"name": "look_up", "arguments": '{ "a" : 1.0 }'}}
    ]
    second = call("a2", [user("hi"), spaced, result("c1")])
    (one,) = conversations([first, second])
    assert rows(one) == [["a1", "a2"]]


def test_a_compacted_history_is_another_part_of_the_same_conversation() -> None:
    first = call("a1", [user("hi")], tool_call("c1"))
    second = call("a2", [user("hi"), tool_call("c1"), result("c1")], tool_call("c2"))
    compacted = [{"role": "system", "content": "so far: much"}, tool_call("c2"), result("c2")]
    third = call("a3", compacted, parent_turn_id="a2", parent_messages=0)
    for turns in ([first, second, third], [first, second, call("a3", compacted)]):
        (one,) = conversations(turns)
        assert rows(one) == [["a1"], ["a2", "a3"]]
        instructions, entries = entries_of(one)
        assert (instructions, [entry.turn_ref for entry in entries]) == ("", ["a1", "a2", "a3"])
        assert [entry.turn_id for entry in entries] == [1, 2, 3]
        assert entries[1].observation.content == {"messages": compacted[:1]}
        assert chat_of_turns(turns, "a3") == [*compacted, assistant(LONG + "a3")]


def test_summary_in_the_place_of_the_whole_history_needs_link_of_gateway() -> None:
    first = call("a1", [user("hi")])
    summed = [user("the story so far: ..., go on")]
    assert rows(conversations([first, call("a2", summed, parent_turn_id="a1", parent_messages=0)])[0]) == [
        ["a1"],
        ["a2"],
    ]
    assert names([first, call("a2", summed)]) == [["a2"], ["a1"]]


def test_another_system_prompt_before_same_history_is_same_conversation() -> None:
    """A hand-over, or a prompt that holds the state of the world."""
    first = call("a1", [{"role": "system", "content": "A"}, user("hi")], tool_call("c1"))
    second = call("a2", [{"role": "system", "content": "B"}, user("hi"), tool_call("c1"), result("c1")])
    (one,) = conversations([first, second])
    assert rows(one) == [["a1", "a2"]]
    assert chat_of_turns([first, second], "a2")[0]["content"] == "B"


def test_a_clock_in_the_system_prompt_changes_nothing() -> None:
    first = call("a1", [{"role": "system", "content": "12:01"}, user("hi")], "ok")
    second = call("a2", [{"role": "system", "content": "12:02"}, user("hi"), assistant("ok"), user("more")], "ok")
    assert names([first, second]) == [["a1", "a2"]]


def test_longest_fork_goes_on_and_others_share_its_beginning() -> None:
    first = call("a1", [user("hi")])
    history = [user("hi"), assistant(LONG + "a1")]
    abandoned = call("a2", [*history, user("one way")])
    second = call("a3", [*history, user("other way")])
    third = call("a4", [*history, user("other way"), assistant(LONG + "a3"), user("on")])
    turns = [first, abandoned, second, third]
    assert names(turns) == [["a1", "a3", "a4"], ["a2"]]
    _, branch = conversations(turns)
    assert branch.is_branch
    assert [message["content"] for message in branch.segments()[0].messages] == [
        "hi",
        LONG + "a1",
        "one way",
        LONG + "a2",
    ]
    assert [entry.turn_ref for entry in entries_of(branch)[1]] == [None, "a2"]


def test_a_prompt_that_drops_the_last_answer_continues_the_one_before() -> None:
    first = call("a1", [user("hi")])
    second = call("a2", [user("more")], parent_turn_id="a1")
    again = call("a3", [user("differently")], parent_turn_id="a2", parent_messages=2)
    assert prompt_of_turn([first, second, again], "a3") == [user("hi"), assistant(LONG + "a1"), user("differently")]
    assert names([first, second, again]) == [["a1", "a3"], ["a2"]]


def test_short_answers_that_anyone_gives_link_nothing() -> None:
    sample = call("a1", [user("examples first")], "ok")
    other = call("b2", [user("q"), assistant("ok"), user("another question")], "ok")
    assert sorted(names([sample, other])) == [["a1"], ["b2"]]


def test_ids_of_tool_calls_that_come_again_link_nothing() -> None:
    one, other = (call(name, [user(f"question {name}")], tool_call("call_1")) for name in ("a1", "b2"))
    following = call("b3", [user("another beginning"), result("call_1")])
    assert sorted(names([one, other, following])) == [["a1"], ["b2"], ["b3"]]


@pytest.mark.parametrize("kept", [None, 2, 5])
def test_conversation_without_its_beginning_is_refused_alone(kept: int | None) -> None:
    lost = call("a2", [user("more")], parent_turn_id="a1" if kept != 5 else "b1", parent_messages=kept)
    whole = call("b1", [user("hi")])
    every = {one.root.turn_id: one for one in conversations([lost, whole])}
    assert every["b1"].segments()
    with pytest.raises(ChatError, match="is not there") if kept != 2 else pytest.raises(ChatError):
        every["a2"].segments()


def test_turns_that_name_each_other_do_not_go_round_for_ever() -> None:
    turns = [call(f"a{number}", [user("x")], parent_turn_id=f"a{(number + 1) % 5}") for number in range(5)]
    assert sum(len(one.calls) for one in conversations(turns)) >= 1
    later = call("a9", [assistant(LONG + "a1"), user("x")])
    circle = [call("a1", [assistant(LONG + "a9"), user("y")]), later]
    assert sum(len(one.calls) for one in conversations(circle)) == 2


def test_equal_prompts_are_attempts_of_one_call_unless_two_are_continued() -> None:
    first = call("a1", [user("hi")])
    history = [user("hi"), assistant(LONG + "a1"), user("on")]
    attempts = [call(name, history) for name in ("a2", "a3", "a4")]
    parts = split([first, *attempts])
    assert [[turn.turn_id for turn in one.calls] for one in parts.conversations] == [["a1", "a4"]]
    assert [turn.turn_id for turn in parts.repeated] == ["a2", "a3"]
    continued = [call(f"a{n + 4}", [*history, assistant(LONG + f"a{n}"), user("and?")]) for n in (2, 3)]
    parts = split([first, *attempts, *continued])
    assert sorted([turn.turn_id for turn in one.calls] for one in parts.conversations) == [
        ["a1", "a3", "a7"],
        ["a2", "a6"],
    ]
    assert [turn.turn_id for turn in parts.repeated] == ["a4"]


def test_a_judge_of_a_conversation_is_no_part_of_it() -> None:
    """It reads the conversation with its tool calls under a prompt of its own, whichever gateway linked it."""
    system = {"role": "system", "content": "You are a clerk."}
    chat = [system, user("hi")]
    first = call("a1", chat, tool_call("c1"))
    chat = [*chat, tool_call("c1"), result("c1")]
    second = call("a2", chat)
    judge = [{"role": "system", "content": "You are a judge."}, *chat[1:], assistant(LONG + "a2"), user("Rate it.")]
    for members in ({}, {"parent_turn_id": "a2", "parent_messages": 0}):
        turns = [first, second, call("j3", judge, "5", **members)]
        assert names(turns) == [["a1", "a2"], ["j3"]]
        assert not conversations(turns)[1].is_branch
    explicit = call("a3", judge, parent_turn_id="a2", parent_messages=0, trajectory_by="previous_response")
    assert names([first, second, explicit]) == [["a1", "a2", "a3"]]


def test_samples_of_a_saved_transcript_are_conversations_of_their_own() -> None:
    """Word for word the same, and each goes on with its own answer; none is taken for another attempt."""
    first = call("a1", [user("hi")], tool_call("c1"))
    transcript = [user("hi"), tool_call("c1"), result("c1")]
    samples = [call(f"s{n}", transcript) for n in (2, 3, 4)]
    following = [call(f"s{n + 3}", [*transcript, assistant(LONG + f"s{n}"), user("and?")]) for n in (2, 3, 4)]
    parts = split([first, *samples, *following])
    every = sorted([turn.turn_id for turn in one.calls] for one in parts.conversations)
    assert every == [["a1", "s4", "s7"], ["s2", "s5"], ["s3", "s6"]]
    assert parts.repeated == []


@pytest.mark.parametrize("seed", range(5))
def test_every_answered_call_is_in_one_conversation_or_counted(seed: int) -> None:
    """Trees of calls that fork, repeat prompts and begin anew; then more of them, after a first assembly."""
    chance = random.Random(seed)
    chats: list[list[JsonObject]] = [[user("hi")]]
    turns: list[Turn] = []
    for number in range(1, 120):
        prompt = chance.choice(chats)
        if chance.random() < 0.5:
            prompt = [*prompt, user(chance.choice(["a", "b"]))]
        turns.append(call(f"t{number}", prompt, chance.choice(["ok", LONG + str(number)])))
        chats.append([*prompt, turns[-1].response or {}])
    early = split(turns[:60]).conversations
    held = [Earlier(frozenset(turn.turn_id for turn in one.calls), chance.random() < 0.5) for one in early]
    for parts in (split(turns), split(turns, held)):
        calls = [turn.turn_id for one in parts.conversations for turn in one.calls]
        assert sorted([*calls, *(turn.turn_id for turn in parts.repeated)]) == sorted(t.turn_id for t in turns)
    later = {turn.turn_id: one.root.turn_id for one in split(turns, held).conversations for turn in one.calls}
    assert all(later[turn.turn_id] == one.root.turn_id for one in early for turn in one.calls)
    assert {turn.turn_id for one in early for turn in one.calls} <= later.keys()
    assert set(beginnings(turns)) >= {one.root.turn_id for one in early}


def test_long_runs_and_many_samples_take_time_in_proportion() -> None:
    """Ten thousand calls in one chain, and two thousand samples of one question: no recursion, nothing squared."""
    chain = [
        call(f"a{number}", [user(f"{number}")], parent_turn_id=f"a{number - 1}" if number else None)
        for number in range(10_000)
    ]
    (one,) = conversations(chain[::-1])
    assert len(one.calls) == 10_000
    assert len(one.segments()) == 1
    assert len(conversations([call(f"s{number}", [user("same")]) for number in range(2000)])) == 2000


def test_answers_that_many_calls_give_cost_no_more_for_each_of_them() -> None:
    """Few-shot prompts behind one client's headers. Squared, these would take minutes."""
    shots = [{"role": "system", "content": "classify"}, user("ex1"), assistant("A")]
    turns = [call(f"a{number}", [*shots, user(f"item {number}?")], "A") for number in range(5000)]
    assert len(conversations(turns)) == 5000
    again = [call(f"b{number + 5000}", [*turns[0].messages, assistant("A"), user("?")], "A") for number in range(5000)]
    assert len(conversations([turns[0], *again])) == 1
