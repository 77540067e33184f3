"""A row holds everything a learner needs to know of one trajectory, or there is a reason why it is not made."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.contract.trajectory import TaskContext, TrajectoryMetadata
from ratchet.contract.turn import Trainable
from ratchet.datasets.domain.rows import Recipe, Scored, SnapshotRow, row_of
from tests.support.training import changed, conversation, trajectory, turn

LEARN = Recipe(transform="identity", needs_calls=True)
READ = Recipe(transform="identity", needs_calls=False)
SCORED = Scored(task_key="group", raw_reward=0.75, baseline=0.5)


def made(found: SnapshotRow | str) -> TrajectoryRow:
    assert isinstance(found, SnapshotRow)
    assert isinstance(found.row, TrajectoryRow)
    return found.row


def test_an_assembled_trajectory_is_told_by_its_turns() -> None:
    turns, prompts = conversation("t", [3, 2])
    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, LEARN))
    assert (row.trajectory_id, row.task_key, row.reward, row.raw_reward, row.baseline) == (
        "t",
        "group",
        0.75,
        0.75,
        0.5,
    )
    assert (row.success, row.policy_version, row.source) == (True, 1, "assembled")
    assert [message["content"] for message in row.messages] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]
    assert [call.prompt_token_ids for call in row.calls] == prompts


def test_a_trajectory_without_turns_has_its_text_and_no_calls() -> None:
    row = made(row_of(trajectory("t", success=False), [], SCORED, READ))
    assert (row.calls, row.tools, row.success, row.policy_version) == ([], [], False, None)
    assert row.messages[0] == {"role": "system", "content": "Help."}


def test_calls_count_for_a_trajectory_that_the_agent_told_itself() -> None:
    turns, _ = conversation("t", [3])
    row = made(row_of(trajectory("t"), turns, SCORED, LEARN))
    assert len(row.calls) == 1


@pytest.mark.parametrize(("stored", "reason"), [(1, "turns_not_stored"), (0, "turns_not_stored")])
def test_a_trajectory_waits_until_all_its_turns_are_stored(stored: int, reason: str) -> None:
    turns, _ = conversation("t", [3, 2])
    assert row_of(trajectory("t", turns=turns), turns[:stored], SCORED, LEARN) == reason


@pytest.mark.parametrize("arm", ["pinned", "mixed"])
@pytest.mark.parametrize("recipe", [LEARN, READ])
def test_a_call_of_evaluation_or_of_another_policy_bars_its_whole_trajectory(arm: str, recipe: Recipe) -> None:
    """The catalogue looks for calls of a few days only: a trajectory that was open for longer is seen whole here."""
    turns, _ = conversation("t", [3, 2])
    early = msgspec.structs.replace(turns[0], policy=msgspec.structs.replace(turns[0].policy, arm=arm))
    assert row_of(trajectory("t"), [early, turns[1]], SCORED, recipe) == "mixed_or_pinned"


def test_a_policy_gradient_needs_a_call_it_can_train_on() -> None:
    turns, _ = conversation("t", [3], trainable=Trainable(ok=False, reason="redacted"))
    told = trajectory("t", turns=turns)
    assert row_of(told, turns, SCORED, LEARN) == "no_trainable_call"
    assert made(row_of(told, turns, SCORED, READ)).reward == 0.75


def test_a_negated_reward_is_mirrored_and_the_raw_one_kept() -> None:
    turns, _ = conversation("t", [3])
    row = made(row_of(trajectory("t", turns=turns), turns, SCORED, Recipe(transform="negate", needs_calls=True)))
    assert (row.reward, row.raw_reward) == (0.25, 0.75)


def test_the_tools_are_those_offered_last_or_those_of_the_task() -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    call = turn("t", 0, full_prompt=[1], tools=tools)
    assert made(row_of(trajectory("t", turns=[call]), [call], SCORED, LEARN)).tools == tools
    task = TaskContext(task_id="task", instructions="Help.", tools=tools)
    assert made(row_of(trajectory("t", task_context=task), [], SCORED, READ)).tools == tools


def test_turns_that_make_no_conversation_are_reported() -> None:
    orphan = changed(turn("t", 1, full_prompt=[1]), parent_turn_id="gone")
    assert row_of(trajectory("t", turns=[orphan]), [orphan], SCORED, READ) == "unreadable_chat"


def test_an_unknown_outcome_is_neither_success_nor_failure() -> None:
    told = trajectory("t", outcome=None, metadata=TrajectoryMetadata(model="m"))
    row = made(row_of(told, [], SCORED, READ))
    assert (row.success, row.source) == (None, "client")


def nested(depth: int) -> dict[str, object]:
    """An object that can just be read, and no more once it stands inside another."""
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("text", ['{"a":' * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "[" * 20_000])
def test_text_that_nests_deeply_is_text_of_a_row(text: str) -> None:
    given = trajectory("t")
    first = given.turns[0]
    action = msgspec.structs.replace(first.action, raw_response=text)
    odd = msgspec.structs.replace(given, turns=[msgspec.structs.replace(first, action=action), *given.turns[1:]])
    row = row_of(odd, [], SCORED, READ)
    assert row == "unreadable_chat" or text in made(row).messages[-1]["content"]


def test_a_chat_that_cannot_be_written_is_left_out_by_reason() -> None:
    given = trajectory("t")
    first = given.turns[0]
    action = msgspec.structs.replace(first.action, type="tool_call", tool_name="f", tool_args=nested(100_000))
    odd = msgspec.structs.replace(given, turns=[msgspec.structs.replace(first, action=action), *given.turns[1:]])
    assert row_of(odd, [], SCORED, READ) == "unreadable_chat"
