"""Drafts of tasks from solved runs: each is a line that a task file takes."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.message import encode
from ratchet.core.contract import Outcome
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.datasets.domain.selection import HELD_OUT, is_held_out
from ratchet.core.evaluation.task_files import parse_tasks
from ratchet.core.rules.chat import trajectory_turns
from ratchet.extras.exporters import KINDS
from ratchet.extras.exporters.tasks import settle
from tests.support.messages import AT, trajectory

CALL = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"id":"K47"}'}}
TOOLS = [{"type": "function", "function": {"name": "lookup"}}]
PROMPT = [{"role": "system", "content": "Help customers."}, {"role": "user", "content": "where is it?"}]
RUN = [
    *PROMPT,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "shipped"},
    {"role": "assistant", "content": "It is on its way."},
]
SOLVED = Outcome(status="success", verified_by="environment")


HELD = next(key for key in map(str, range(99)) if is_held_out(key, HELD_OUT))
TRAINS = next(key for key in map(str, range(99)) if not is_held_out(key, HELD_OUT))


def drafted(chat: list, outcome: Outcome | None = SOLVED, key: str = HELD) -> dict | None:
    instructions, turns = trajectory_turns(chat, started_at=AT)
    context = TaskContext(task_id=key, instructions=instructions, tools=TOOLS)
    return KINDS["tasks"].record(encode(trajectory(turns=turns, task_context=context, outcome=outcome)), None)


def test_a_task_asks_for_the_first_answer_of_a_solved_run() -> None:
    draft = drafted(RUN)
    assert draft is not None
    assert draft["messages"] == PROMPT
    assert draft["expect"] == {"tool_calls": {"calls": [{"name": "lookup", "arguments": {"id": "K47"}}]}}
    assert draft["tools"] == TOOLS


@pytest.mark.parametrize("chat", [RUN, [*PROMPT, RUN[-1]]], ids=["call", "text"])
def test_a_draft_is_a_line_of_a_task_file_that_its_own_answer_solves(chat: list) -> None:
    draft = drafted(chat)
    assert draft is not None
    ((line,), _) = settle([draft])
    (task,) = parse_tasks(msgspec.json.encode(line), "t.jsonl").tasks
    scores: list[float] = []
    for answer in (chat[2], {"role": "assistant", "content": "No."}):
        conversation = task.begin()
        conversation.reply(answer)
        scores.append(conversation.grade().score)
    assert scores == [1, 0]


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Outcome(status="success"),
        Outcome(status="partial", verified_by="human"),
        Outcome(status="failure", verified_by="human"),
    ],
)
def test_a_run_that_was_not_verified_as_solved_is_no_task(outcome: Outcome | None) -> None:
    assert drafted(RUN, outcome) is None


def test_settle_keeps_a_prompt_once_and_reports_what_contradicts_or_trains() -> None:
    other = [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "Yes."}]
    contradicting = [other[0], {"role": "assistant", "content": "No."}]
    runs = [drafted(chat) for chat in (RUN, RUN, other, contradicting)] + [drafted(RUN, key=TRAINS)]
    kept, left_out = settle([run for run in runs if run is not None])
    assert [task["messages"] for task in kept] == [PROMPT]
    assert left_out == {
        "of tasks that train": 1,
        "whose prompt has contradicting answers": 2,
        "that repeat another": 1,
    }
