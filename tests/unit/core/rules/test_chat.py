"""Chat -> entries -> chat gives the chat back, for every chat the OpenAI format allows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import JsonObject, Trajectory, Turn, decode, encode, named_id
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    PolicyClaim,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.contract.turn import EngineInfo, Trainable
from ratchet.core.rules.chat import (
    Call,
    ChatError,
    assembled_turns,
    chain_of_turns,
    chat_messages,
    chat_of_turns,
    trajectory_turns,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)


def trajectory_of(instructions: str, turns: list[TrajectoryTurn]) -> Trajectory:
    return Trajectory(
        trajectory_id=named_id("t"),
        session_id="s",
        agent_id="a",
        start_timestamp=AT,
        end_timestamp=AT,
        turns=turns,
        task_context=TaskContext(task_id="1", instructions=instructions),
        metadata=TrajectoryMetadata(model="m"),
    )


def there_and_back(chat: list[JsonObject]) -> list[JsonObject]:
    """The chat after it went through the entries and their JSON form."""
    body = encode(trajectory_of(*trajectory_turns(chat, started_at=AT)))
    return chat_messages(decode(body, Trajectory))


def comparable(chat: list[JsonObject]) -> list[JsonObject]:
    """`chat` up to the documented differences: what follows the last answer, ids, names of results."""
    last = max(index for index, message in enumerate(chat) if message["role"] == "assistant")
    ids: dict[str, str] = {}
    seen: list[JsonObject] = []
    for message in chat[: last + 1]:
        copy = {name: value for name, value in message.items() if name == "content" or value not in (None, [])}
        copy.setdefault("content", None)
        if copy["role"] == "tool":
            copy = {"role": "tool", "content": copy["content"], "of": ids[copy["tool_call_id"]]}
        if "tool_calls" in copy:
            numbered = []
            for call in copy["tool_calls"]:
                ids[call["id"]] = str(len(ids))
                numbered.append({**call, "id": ids[call["id"]]})
            copy["tool_calls"] = numbered
        seen.append(copy)
    return seen


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['{"role":"assistant","content":"nested"}', '{"messages":[]}', "{", "", '{"content":[]}']
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=3)
contents = texts | parts
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=3)
arguments = (
    objects.map(lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    | objects.map(json.dumps)
    | st.sampled_from(
        ["", "not json", "[1]", '{"a":1,"a":2}', '{"a":1e999}', '{"a": NaN}', '{"a":"\\ud800"}', '{"a":1.0}']
    )
    | texts
)
extras = st.sampled_from(
    [{}, {}, {"refusal": None}, {"reasoning_content": "hm"}, {"name": "clerk"}, {"annotations": []}]
)


@st.composite
def exchanges(draw: st.DrawFn, number: int) -> list[JsonObject]:
    """An assistant message with the results of its calls."""
    count = draw(st.integers(0, 3))
    ids = [f"id-{number}-{place}" for place in range(count)]
    message: JsonObject = {"role": "assistant", "content": draw(contents | st.none()), **draw(extras)}
    if ids:
        message["tool_calls"] = [
            {
                "id": call,
                "type": "function",
                "function": {"name": draw(st.sampled_from(["f", "g"])), "arguments": draw(arguments)},
            }
            for call in ids
        ]
    answered = draw(st.permutations(ids)) if draw(st.booleans()) else ids[: draw(st.integers(0, count))]
    results = [{"role": "tool", "tool_call_id": call, "content": draw(contents)} for call in answered]
    return [message, *results]


@st.composite
def chats(draw: st.DrawFn) -> list[JsonObject]:
    asides = st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "user", "user", "system", "developer"]), "content": contents},
            optional={"name": st.just("zoe")},
        ),
        max_size=2,
    )
    chat: list[JsonObject] = draw(asides)
    if draw(st.booleans()):
        chat = [{"role": "system", "content": draw(contents)}, *chat]
    for number in range(draw(st.integers(1, 4))):
        chat += draw(exchanges(number))
        chat += draw(asides)
    return chat


@given(chats())
def test_entries_give_the_chat_back(chat: list[JsonObject]) -> None:
    assert comparable(there_and_back(chat)) == comparable(chat)


@given(chats())
def test_a_second_round_trip_changes_nothing(chat: list[JsonObject]) -> None:
    once = there_and_back(chat)
    assert there_and_back(once) == once


@given(chats())
def test_entries_are_numbered_from_one_and_grouped_by_call(chat: list[JsonObject]) -> None:
    _, turns = trajectory_turns(chat, started_at=AT)
    assert [turn.turn_id for turn in turns] == list(range(1, len(turns) + 1))
    calls = [max(1, len(message.get("tool_calls", []))) for message in chat if message["role"] == "assistant"]
    assert len(turns) == sum(calls)


def support_chat() -> list[JsonObject]:
    lookup = {"id": "a", "type": "function", "function": {"name": "get_user", "arguments": '{"id":"mia"}'}}
    order = {"id": "b", "type": "function", "function": {"name": "get_order", "arguments": '{"id": 7}'}}
    return [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where is my order?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [lookup, order]},
        {"role": "tool", "tool_call_id": "a", "content": "Mia"},
        {"role": "tool", "tool_call_id": "b", "content": '{"state":"sent"}'},
        {"role": "assistant", "content": "It is on its way."},
        {"role": "user", "content": "Thanks!"},
    ]


def test_an_entry_holds_observation_action_and_result() -> None:
    instructions, turns = trajectory_turns(support_chat(), started_at=AT)
    first, second, third = turns
    assert instructions == "Be kind."
    assert first.observation == Observation(type="user_message", content="Where is my order?")
    assert first.thought_process == ["Let me look."]
    assert (first.action.tool_name, first.action.tool_args) == ("get_user", {"id": "mia"})
    assert first.result == TurnResult(success=True, output="Mia")
    assert (second.action.tool_args, second.result.output) == ({"id": 7}, '{"state":"sent"}')
    assert first.turn_ref == second.turn_ref is not None
    assert third.observation == Observation(type="tool_result", content='{"state":"sent"}')
    assert (third.action.type, third.action.raw_response) == ("response", "It is on its way.")


def test_arguments_stay_verbatim_even_when_they_are_not_json() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"id": 7'}}
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    _, turns = trajectory_turns(chat, started_at=AT)
    assert turns[0].action.tool_args is None
    assert there_and_back(chat)[1]["tool_calls"][0]["function"]["arguments"] == '{"id": 7'


def test_a_call_without_a_result_is_not_a_success() -> None:
    _, turns = trajectory_turns(support_chat()[:3], started_at=AT)
    assert [turn.result.success for turn in turns] == [False, False]


def test_results_of_the_last_calls_are_kept() -> None:
    assert [message["role"] for message in there_and_back(support_chat()[:5])[-2:]] == ["tool", "tool"]


def test_legacy_function_calls_read_as_tool_calls() -> None:
    chat: list[JsonObject] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "done"},
        {"role": "assistant", "content": "ok"},
    ]
    called, result = there_and_back(chat)[1:3]
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert result == {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "name": "f", "content": "done"}


def test_model_calls_give_entries_their_id_and_time() -> None:
    later = AT + timedelta(seconds=5)
    calls = {2: Call(named_id("call"), later)}
    _, turns = trajectory_turns(support_chat(), started_at=AT, calls=calls)
    assert [turn.turn_ref for turn in turns] == [named_id("call"), named_id("call"), None]
    assert [turn.timestamp for turn in turns] == [later, later, later]


def test_a_chat_in_which_the_assistant_never_speaks_has_no_entries() -> None:
    assert trajectory_turns(support_chat()[:2], started_at=AT) == ("", [])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "robot", "content": "x"}, "message 1 has the role 'robot'"),
        ({"role": ["user"], "content": "x"}, "message 1 has the role"),
        ({"content": "x"}, "message 1 has the role None"),
        ("hi", "message 1 is not an object"),
        ({"role": "user", "content": 3}, "message 1 has content"),
        ({"role": "user", "content": [3]}, "message 1 has a content part"),
        ({"role": "assistant", "content": None, "tool_calls": {}}, "message 1 has tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": [3]}, "message 1 has a tool call"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, "message 1 has a tool call"),
        ({"role": "assistant", "content": None, "function_call": "f"}, "message 1 has a tool call"),
    ],
)
def test_a_malformed_message_is_named(message: Any, problem: str) -> None:
    with pytest.raises(ChatError, match=problem.replace("[", r"\[")):
        trajectory_turns([{"role": "user", "content": "x"}, message], started_at=AT)


def entry(number: int, observation: Observation, action: Action, result: TurnResult) -> TrajectoryTurn:
    return TrajectoryTurn(turn_id=number, timestamp=AT, observation=observation, action=action, result=result)


def test_an_agents_own_trajectory_reads_as_a_chat() -> None:
    turns = [
        entry(
            1,
            Observation(type="user_message", content="Research this"),
            Action(type="subordinate_call", tool_args={"task": "read"}),
            TurnResult(success=True),
        ),
        entry(
            2,
            Observation(type="subordinate_response", content={"found": 3}),
            Action(type="memory_update", tool_args={"note": "3"}),
            TurnResult(success=False, error="memory is full"),
        ),
        entry(
            3,
            Observation(type="system_message", content="Be brief"),
            Action(type="response", tool_args={"text": "Three."}),
            TurnResult(success=True),
        ),
    ]
    read = [(message["role"], message["content"]) for message in chat_messages(trajectory_of("Help.", turns))]
    assert read == [
        ("system", "Help."),
        ("user", "Research this"),
        ("assistant", None),
        ("tool", '{"found":3}'),
        ("assistant", None),
        ("tool", "memory is full"),
        ("system", "Be brief"),
        ("assistant", "Three."),
    ]


def model_call(number: int, parent: int | None, messages: list[JsonObject], **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "turn_id": f"turn-{number}",
        "trajectory_id": named_id("t"),
        "timestamp": AT + timedelta(seconds=number),
        "index": number,
        "request_digest": "d",
        "messages": messages,
        "policy": PolicyClaim(role="default", version=1, digest="", arm="stable", weight=0.0),
        "engine": EngineInfo(name="e"),
        "trainable": Trainable(ok=False),
        "parent_turn_id": None if parent is None else f"turn-{parent}",
        "response": {"role": "assistant", "content": f"answer {number}"},
    }
    return Turn(**(fields | changes))


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def test_gateway_turns_add_up_to_chat_without_retries_and_side_questions() -> None:
    first = model_call(0, None, [user("hi")])
    failed = model_call(1, 0, [user("more")], response=None, error="time-out")
    orphan = model_call(2, 0, [user("more")], index=1)
    second = model_call(3, 0, [user("more")], index=1, attempt=2)
    third = model_call(4, 3, [user("last")], index=2)
    aside = model_call(5, None, [user("give this a title")], index=3)
    turns = [aside, third, failed, first, orphan, second]
    assert [turn.turn_id for turn in chain_of_turns(turns)] == ["turn-0", "turn-3", "turn-4"]
    assert [message["content"] for message in chat_of_turns(turns, "turn-4")] == [
        "hi",
        "answer 0",
        "more",
        "answer 3",
        "last",
        "answer 4",
    ]


def test_a_call_that_repeats_the_whole_history_stands_for_it() -> None:
    first = model_call(0, None, [user("hi")])
    again = model_call(1, None, [user("hi"), {"role": "assistant", "content": "edited"}, user("more")])
    assert [message["content"] for message in chat_of_turns([first, again], "turn-1")] == [
        "hi",
        "edited",
        "more",
        "answer 1",
    ]


def test_assembled_entries_carry_the_ids_and_times_of_their_calls() -> None:
    turns = [model_call(0, None, [user("hi")]), model_call(1, 0, [user("more")])]
    _, entries = assembled_turns(turns)
    assert [entry.turn_ref for entry in entries] == ["turn-0", "turn-1"]
    assert [entry.timestamp for entry in entries] == [turn.timestamp for turn in turns]


def test_missing_parent_is_an_error_and_call_without_answer_makes_no_entry() -> None:
    with pytest.raises(ChatError, match="turn-0, which is not there"):
        chain_of_turns([model_call(1, 0, [user("more")])])
    assert assembled_turns([model_call(0, None, [user("hi")], response=None)]) == ("", [])
