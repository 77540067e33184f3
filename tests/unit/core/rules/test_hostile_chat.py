"""Texts of agents and models never break the mapping of chats and trajectories: they are read, or raise `ChatError`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import Trajectory, Turn, encode
from ratchet.core.contract.trajectory import Action, Observation, TrajectoryTurn, TurnResult
from ratchet.core.rules.chat import (
    MAX_DEPTH,
    ChatError,
    assembled_turns,
    chat_messages,
    chat_of_turns,
    text_of,
    trajectory_turns,
)
from tests.support.hostile import HOSTILE_TEXTS, OFF_UNICODE
from tests.support.messages import AT, trajectory, turn

TEXTS = st.sampled_from([*HOSTILE_TEXTS, *OFF_UNICODE]) | st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.fixed_dictionaries(
    {"id": JSON, "type": st.sampled_from(["function", "custom", "x"]), "function": JSON, "custom": JSON}
) | st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": JSON})})
CHAT = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
        optional={
            "content": TEXTS | JSON,
            "tool_calls": st.lists(CALLS, max_size=2) | JSON,
            "tool_call_id": JSON,
            "function_call": JSON,
            "name": TEXTS,
            "reasoning_content": JSON,
        },
    ),
    max_size=6,
)
CONTENT = TEXTS | st.dictionaries(st.sampled_from(["messages", "content", "x"]), JSON | CHAT, max_size=2)


def trajectory_with(text: str, *, as_result: bool = False) -> Trajectory:
    """A trajectory with `text` as the observation, the answer (or the text beside a call) and the result."""
    answer = TrajectoryTurn(
        turn_id=1,
        timestamp=AT,
        observation=Observation(type="user_message", content=text),
        action=Action(type="tool_call" if as_result else "response", raw_response=text),
        result=TurnResult(success=True, output=text),
    )
    return trajectory(turns=[answer])


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_a_hostile_answer_of_a_model_comes_back_unchanged(text: str) -> None:
    answer = {"role": "assistant", "content": text}
    _, entries = assembled_turns([turn(response=answer)])
    assert chat_messages(trajectory(turns=entries))[-1] == answer


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_arguments_of_a_tool_come_back_unchanged(text: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": text}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    _, entries = assembled_turns([turn(response=answer)])
    answered = chat_messages(msgspec.json.decode(encode(trajectory(turns=entries)), type=Trajectory))
    assert answered[-1]["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize("as_result", [True, False])
@pytest.mark.parametrize("text", [*HOSTILE_TEXTS, *OFF_UNICODE])
def test_a_trajectory_with_hostile_texts_reads_as_a_chat(text: str, as_result: bool) -> None:
    messages = chat_messages(trajectory_with(text, as_result=as_result))
    assert {message["role"] for message in messages} <= {"system", "user", "assistant", "tool"}
    assert all(isinstance(text_of(message.get("content")), str) for message in messages)


def test_json_in_a_text_is_read_up_to_a_depth_and_is_text_beyond() -> None:
    def arguments(depth: int) -> Any:
        text = '{"a":' * depth + "1" + "}" * depth
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": text}}
        _, entries = trajectory_turns([{"role": "assistant", "content": None, "tool_calls": [call]}], started_at=AT)
        return entries[0].action.tool_args

    assert arguments(MAX_DEPTH - 1) is not None
    assert arguments(MAX_DEPTH + 1) is None


@given(CHAT)
def test_any_chat_is_read_or_refused(chat: list[dict[str, Any]]) -> None:
    with suppress(ChatError):
        _, entries = trajectory_turns(chat, started_at=AT)
        assert bool(entries) == any(message["role"] == "assistant" for message in chat)
        if entries:
            assert chat_messages(trajectory(turns=entries))[-1]["role"] in {"assistant", "tool"}


@given(CHAT, st.dictionaries(st.sampled_from(["content", "tool_calls", "role", "x"]), JSON, max_size=3))
def test_any_call_of_the_gateway_is_read_or_refused(chat: list[dict[str, Any]], response: dict[str, Any]) -> None:
    call: Turn = turn(messages=chat, response=response)
    with suppress(ChatError):
        _, entries = assembled_turns([call])
        assert entries
    with suppress(ChatError):
        assert chat_of_turns([call], call.turn_id)[-1]["role"] == "assistant"


@given(
    st.lists(
        st.builds(
            TrajectoryTurn,
            turn_id=st.integers(1, 3),
            timestamp=st.just(AT),
            observation=st.builds(
                Observation,
                type=st.sampled_from(["user_message", "tool_result", "subordinate_response", "system_message", "x"]),
                content=CONTENT,
            ),
            action=st.builds(
                Action,
                type=st.sampled_from(["tool_call", "subordinate_call", "response", "memory_update", "x"]),
                tool_name=st.none() | TEXTS,
                tool_args=st.none() | st.dictionaries(TEXTS, JSON, max_size=2),
                raw_response=st.none() | TEXTS,
            ),
            result=st.builds(TurnResult, success=st.booleans(), output=st.none() | CONTENT, error=st.none() | TEXTS),
            thought_process=st.none() | st.lists(TEXTS, max_size=2),
            turn_ref=st.none() | st.sampled_from(["a", "b"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_trajectory_is_a_chat_whose_members_every_reader_can_read(turns: list[TrajectoryTurn]) -> None:
    with suppress(ChatError):
        for message in chat_messages(trajectory(turns=turns)):
            assert isinstance(message["role"], str)
            assert isinstance(text_of(message.get("content")), str)
            assert all(isinstance(call, dict) for call in message.get("tool_calls") or [])


def test_a_mistake_of_the_caller_is_not_reported_as_a_broken_chat() -> None:
    """A caller's own mistake surfaces: reported as bad data, it would end as one more dead letter."""
    nothing: Any = None
    with pytest.raises(TypeError):
        trajectory_turns(nothing, started_at=AT)
    with pytest.raises(TypeError):
        chat_messages(trajectory(turns=nothing))


def test_a_value_without_json_is_a_broken_chat() -> None:
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "audio": object()}]
    with pytest.raises(ChatError, match="is not JSON: TypeError"):
        trajectory_turns(chat, started_at=AT)


def test_an_id_that_is_not_text_is_a_broken_chat() -> None:
    result = {"role": "tool", "tool_call_id": {"no": "text"}, "content": "x"}
    with pytest.raises(ChatError, match="message 1 has a tool_call_id that is not text"):
        trajectory_turns([{"role": "assistant", "content": "y"}, result], started_at=AT)
