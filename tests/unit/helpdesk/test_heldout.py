"""The held-out tickets as a task file: playing by the rules solves each, talking solves none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.playing import SAMPLED, Answer, Plan, Try, play
from ratchet.core.evaluation.task_files import parse_tasks
from ratchet_helpdesk.clerk import EXPERT, play as play_ticket
from ratchet_helpdesk.heldout import build, held_out_file
from ratchet_helpdesk.world import HELD_OUT, MAX_CALLS, ChatMessage, draw_tasks
from ratchet_helpdesk.worlds import HELPDESK, RECEPTION, World

TICKETS, SEED = 20, 3


class Clerk:
    """A `Player` that answers as an expert would; with `words`, it says those."""

    def __init__(self, words: str | None = None) -> None:
        self._words = words
        self._known: Mapping[str, list[ChatMessage]] = {
            task.task_id: play_ticket(task, EXPERT, random.Random(0)).messages
            for task in draw_tasks(HELD_OUT, TICKETS, SEED)
        }

    async def answer(self, task: Task, temperature: float, seed: int, trajectory_id: str) -> Answer:
        if self._words is not None:
            return Answer(message={"role": "assistant", "content": self._words}, completion_tokens=1)
        right = self._known[task.id][len(task.messages)]
        return Answer(message=right, completion_tokens=2)


async def tried(player: Any, world: World = HELPDESK) -> list[Try]:
    file = parse_tasks(held_out_file(world, TICKETS, SEED), "tickets")
    return await play(player, file.tasks, Plan(greedy=False, samples=1), clock=lambda: 0.0)


async def test_heldout_tickets_are_solved_by_an_expert_over_several_messages() -> None:
    tries = await tried(Clerk())
    assert [(one.success, one.why, one.mode) for one in tries] == [(True, "right", SAMPLED)] * TICKETS
    assert all(one.calls == one.valid_calls >= 2 for one in tries)
    assert {one.completion_tokens for one in tries} <= {2 * messages for messages in range(3, MAX_CALLS + 1)}


@pytest.mark.parametrize(("world", "why"), [(HELPDESK, "no act"), (RECEPTION, "no call")])
async def test_heldout_tickets_are_not_solved_by_words(world: World, why: str) -> None:
    tries = await tried(Clerk("I will see to it."), world)
    assert {(one.success, one.why, one.calls) for one in tries} == {(False, why, 0)}


def test_heldout_tickets_are_those_of_the_demos_tables() -> None:
    file = parse_tasks(held_out_file(HELPDESK, TICKETS, SEED), "tickets")
    assert [graded.task.id for graded in file.tasks] == [task.task_id for task in draw_tasks(HELD_OUT, TICKETS, SEED)]


@pytest.mark.parametrize(
    "expectation", [{"world": "nowhere", "task": {}}, {"world": "helpdesk", "task": {"task_id": 1}}, {}, 7]
)
def test_heldout_grader_refuses_what_is_not_a_ticket(expectation: object) -> None:
    with pytest.raises(Rejected):
        build(msgspec.json.decode(msgspec.json.encode(expectation)))
