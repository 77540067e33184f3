"""A row holds everything a learner needs to know of one trajectory; otherwise a reason says why it cannot be made."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata
from ratchet.core.contract.turn import Applied, Trainable, Turn
from ratchet.core.datasets.domain.rows import UNREADABLE_CHAT, Scored, SnapshotRow, row_of
from ratchet.core.datasets.domain.sequences import unpacked
from ratchet.core.datasets.selector import scored
from tests.support.training import changed, conversation, trajectory, turn
from tests.unit.core.datasets.test_selection import candidate

SCORED = Scored(task_key="group", reward=0.25, raw_reward=0.75, baseline=0.5)


def made(result: SnapshotRow | str) -> TrajectoryRow:
    assert isinstance(result, SnapshotRow)
    assert isinstance(result.row, TrajectoryRow)
    return result.row


def test_the_row_of_an_assembled_trajectory_follows_its_turns() -> None:
    turns, prompts = conversation("t", [3, 2])
    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=True))
    assert (row.trajectory_id, row.task_key) == ("t", "group")
    assert (row.reward, row.raw_reward, row.baseline) == (0.25, 0.75, 0.5)
    assert (row.success, row.policy_version, row.source) == (True, 1, "assembled")
    assert [message["content"] for message in row.messages] == ["question 0", "answer 0", "question 1", "answer 1"]
    assert [call.prompt_token_ids for call in unpacked(row).calls] == prompts
    assert row.token_ids == [*prompts[-1], 101, 201]


@pytest.mark.parametrize("needs_calls", [True, False])
def test_a_row_is_what_the_engine_got_of_a_bundle(needs_calls: bool) -> None:
    head: list[JsonObject] = [{"role": "system", "content": "You are ours."}, {"role": "user", "content": "one"}]
    tools: list[JsonObject] = [{"type": "function", "function": {"name": "refund"}}]
    (first, second), _ = conversation("t", [3, 2])
    whole = Applied(digest="a" * 64, replaced=1, head=head, tools=tools)
    first = msgspec.structs.replace(first, applied=whole)
    second = msgspec.structs.replace(second, applied=Applied(digest="a" * 64))
    turns = [first, second]
    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=needs_calls))
    contents = [message["content"] for message in row.messages]
    assert contents == ["You are ours.", "one", "answer 0", "question 1", "answer 1"]
    assert row.tools == tools


def test_a_branch_has_the_tools_of_the_call_that_it_continues() -> None:
    (first, second), _ = conversation("t", [3, 2])
    tools: list[JsonObject] = [{"type": "function", "function": {"name": "refund"}}]
    turns = [
        msgspec.structs.replace(first, tools=tools, tools_digest="a" * 64),
        msgspec.structs.replace(second, tools_digest="a" * 64),
    ]
    branch = trajectory("t", turns=[second])
    assert made(row_of(branch, turns, SCORED, needs_calls=False)).tools == tools


def test_a_row_has_no_tool_that_a_bundle_hid() -> None:
    (first, second), _ = conversation("t", [3, 2])
    tools: list[JsonObject] = [{"type": "function", "function": {"name": "refund"}}]
    hidden = Applied(digest="a" * 64, replaced=0, head=[], tools=[])
    turns = [msgspec.structs.replace(first, tools=tools, tools_digest="b" * 64, applied=hidden), second]
    assert made(row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=False)).tools == []


def test_no_row_is_made_where_what_the_engine_got_is_not_there() -> None:
    (first, second), _ = conversation("t", [3, 2])
    first, second = (msgspec.structs.replace(turn, applied=Applied(digest="a" * 64)) for turn in (first, second))
    turns = [first, second]
    assert row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=False) == UNREADABLE_CHAT


def test_a_trajectory_without_turns_has_its_text_and_no_calls() -> None:
    row = made(row_of(trajectory("t", success=False), [], SCORED, needs_calls=False))
    assert (row.spans, row.tools, row.success, row.policy_version) == ([], [], False, None)
    assert row.messages[0] == {"role": "system", "content": "Help."}


def test_the_calls_of_a_trajectory_that_the_agent_reported_itself_count() -> None:
    turns, _ = conversation("t", [3])
    row = made(row_of(trajectory("t"), turns, SCORED, needs_calls=True))
    assert len(row.spans) == 1


@pytest.mark.parametrize("stored", [1, 0])
def test_a_trajectory_waits_until_all_its_turns_are_stored(stored: int) -> None:
    turns, _ = conversation("t", [3, 2])
    assert row_of(trajectory("t", turns=turns), turns[:stored], SCORED, needs_calls=True) == "turns_not_stored"


@pytest.mark.parametrize("arm", ["pinned", "mixed"])
@pytest.mark.parametrize("needs_calls", [True, False])
def test_call_of_evaluation_or_of_another_policy_bars_its_whole_trajectory(arm: str, needs_calls: bool) -> None:
    """The catalogue reads calls of a few days only; the row sees every call of a long trajectory."""
    turns, _ = conversation("t", [3, 2])
    early = msgspec.structs.replace(turns[0], policy=msgspec.structs.replace(turns[0].policy, arm=arm))
    assert row_of(trajectory("t"), [early, turns[1]], SCORED, needs_calls) == "mixed_or_pinned"


def test_a_policy_gradient_needs_a_call_it_can_train_on() -> None:
    turns, _ = conversation("t", [3], trainable=Trainable(ok=False, reason="redacted"))
    redacted = trajectory("t", turns=turns)
    assert row_of(redacted, turns, SCORED, needs_calls=True) == "no_trainable_call"
    assert made(row_of(redacted, turns, SCORED, needs_calls=False)).raw_reward == 0.75


def test_a_negated_reward_is_mirrored_and_the_raw_one_kept() -> None:
    scores = scored([candidate("t", reward=0.75)], "negate")
    assert (scores["t"].reward, scores["t"].raw_reward) == (0.25, 0.75)


def test_the_tools_are_those_offered_last_or_those_of_the_task() -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    call = turn("t", 0, full_prompt=[1], tools=tools)
    assert made(row_of(trajectory("t", turns=[call]), [call], SCORED, needs_calls=True)).tools == tools
    task = TaskContext(task_id="task", instructions="Help.", tools=tools)
    assert made(row_of(trajectory("t", task_context=task), [], SCORED, needs_calls=False)).tools == tools


def test_turns_that_make_no_conversation_are_reported() -> None:
    orphan = changed(turn("t", 1, full_prompt=[1]), parent_turn_id="gone")
    assert row_of(trajectory("t", turns=[orphan]), [orphan], SCORED, needs_calls=False) == "unreadable_chat"


def test_an_unknown_outcome_is_neither_success_nor_failure() -> None:
    unjudged = trajectory("t", outcome=None, metadata=TrajectoryMetadata(model="m"))
    row = made(row_of(unjudged, [], SCORED, needs_calls=False))
    assert (row.success, row.source) == (None, "client")


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("text", ['{"a":' * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "[" * 20_000])
def test_a_row_keeps_deeply_nested_text_as_text(text: str) -> None:
    plain = trajectory("t")
    first = plain.turns[0]
    action = msgspec.structs.replace(first.action, raw_response=text)
    odd = msgspec.structs.replace(plain, turns=[msgspec.structs.replace(first, action=action), *plain.turns[1:]])
    row = row_of(odd, [], SCORED, needs_calls=False)
    assert row == "unreadable_chat" or text in made(row).messages[-1]["content"]


def test_a_chat_that_cannot_be_written_is_left_out_by_reason() -> None:
    plain = trajectory("t")
    first = plain.turns[0]
    action = msgspec.structs.replace(first.action, type="tool_call", tool_name="f", tool_args=nested(100_000))
    odd = msgspec.structs.replace(plain, turns=[msgspec.structs.replace(first, action=action), *plain.turns[1:]])
    assert row_of(odd, [], SCORED, needs_calls=False) == "unreadable_chat"


def test_compacted_conversation_has_a_part_for_each_history() -> None:
    """Its agent keeps the question and its first answer, and drops what came between: the head stands in both parts."""
    head = [{"role": "user", "content": "Sum up the orders."}]
    first = bare("t", 0, head, "First I look at the list.")
    whole = [*head, answer("First I look at the list."), {"role": "user", "content": "Go on."}]
    second = bare("t", 1, whole, "Now I look at the stock.")
    later = [*whole[:2], {"role": "user", "content": "You looked at the stock."}]
    third = bare("t", 2, later, "Then I write the sum.", parent=second.turn_id)
    turns = [first, second, third]

    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=False))
    parts = [(part.messages, part.learn_from) for part in row.earlier] + [(row.messages, row.learn_from)]
    assert [messages for messages, _ in parts] == [
        [*whole, answer("Now I look at the stock.")],
        [*later, answer("Then I write the sum.")],
    ]
    learnt = [
        message["content"]
        for messages, learn_from in parts
        for message in messages[learn_from:]
        if message["role"] == "assistant"
    ]
    assert learnt == ["First I look at the list.", "Now I look at the stock.", "Then I write the sum."]


def test_a_conversation_that_no_agent_compacted_has_one_part() -> None:
    turns, _ = conversation("t", [3, 2])
    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, needs_calls=False))
    assert (row.learn_from, row.earlier) == (0, [])


def answer(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


def bare(name: str, index: int, prompt: list[JsonObject], text: str, parent: str | None = None) -> Turn:
    """A call whose turn holds its whole prompt, and at most names the call that it continues."""
    return changed(
        turn(name, index),
        messages=prompt,
        response=answer(text),
        parent_turn_id=parent,
        parent_messages=0 if parent else None,
    )
