"""A cell of the learning report, on few tickets and a model that was hardly trained: it ends, and a refusal is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.local.demo.plan import FULL, Supervised
from ratchet_helpdesk.world import Verdict
from tools.learning.cells import Experiment, Variant
from tools.learning.measure import Lessons, label_row, name_in, pair_rows, rows_of
from tools.learning.offline import PlayedByPolicy
from tools.learning.workshop import Lesson, Workshop
from tools.learning.worlds.helpdesk import Helpdesk

FEW = Supervised(examples=16, steps=1, learning_rate=1e-3, batch=16)
PLAN = replace(
    FULL, drills=FEW, tickets=FEW, rollouts=replace(FULL.rollouts, heldout_tasks=2), cycle=replace(FULL.cycle, epochs=1)
)
ONE_TICKET = Experiment(
    name="one ticket",
    title="One ticket",
    asks="",
    variants=(Variant(name="solved", algorithm="sft", solved_only=True),),
    cycles=2,
    trajectories=4,
)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Helpdesk(PLAN), tmp_path_factory.mktemp("seed"))


def played(number: int, *, solved: bool, ticket: int = 0) -> PlayedByPolicy:
    """A try that said its number."""
    task = Helpdesk(PLAN).training(1, ticket)[0]
    messages = [
        {"role": "system", "content": "help"},
        {"role": "user", "content": "where is it"},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    verdict = Verdict(success=solved, fault="", model_calls=1, tool_calls=0, valid_tool_calls=0)
    return PlayedByPolicy(f"{task.task_id}#{number}", task, verdict, messages, [])


def test_solved_tries_are_preferred_to_unsolved_ones_of_same_ticket_alone() -> None:
    (pair,) = pair_rows([played(1, solved=True), played(2, solved=False), played(3, solved=True, ticket=1)])
    assert [message["role"] for message in pair.prompt] == ["system", "user"]
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == ("answer 1", "answer 2")


def test_a_thumb_is_about_all_that_follows_the_opening() -> None:
    row = label_row(played(1, solved=False))
    assert ([message["role"] for message in row.prompt], row.label) == (["system", "user"], False)
    assert [message["content"] for message in row.completion] == ["answer 1"]


def test_a_policy_that_is_there_is_not_made_again(workshop: Workshop) -> None:
    first = workshop.first()
    assert workshop.first() == first
    lesson = Lesson("sft", {}, 1, lambda: [played(1, solved=True).logged()])
    learnt = workshop.learn(first, lesson, "lesson")
    assert learnt.figures()["rows"] == 1

    def never() -> list[object]:
        raise AssertionError("it was trained again")

    assert workshop.learn(first, Lesson("sft", {}, 1, never), "lesson") == learnt


def test_cell_whose_training_is_refused_has_the_reason_and_exams_before(workshop: Workshop) -> None:
    measured, refused = Lessons(ONE_TICKET, "solved", workshop).measured()
    assert [one.cycle for one in measured] == [0]
    assert refused is not None
    assert refused.startswith("cycle 1: ")


def test_a_variant_that_learns_from_signal_alone_leaves_out_equal_tries() -> None:
    tries = [played(1, solved=True), played(2, solved=False), played(3, solved=True, ticket=1)]
    rows = rows_of(Variant(name="signal", algorithm="sft", decisive_only=True), tries, [], 1)
    assert [row.trajectory_id for row in rows] == [one.trajectory_id for one in tries[:2]]


def test_lone_tries_are_compared_with_what_their_ticket_was_worth_before() -> None:
    first, again = played(1, solved=True), played(2, solved=False)
    history = [(name_in(1, first), first.task.task_id, 1.0), (name_in(2, again), again.task.task_id, 0.0)]
    remembering, forgetful = (Variant(name="lone", tries=1, remembers=remembers) for remembers in (True, False))
    assert [row.baseline for row in rows_of(remembering, [again], history, 2)] == [1.0]
    assert [row.baseline for row in rows_of(forgetful, [again], history, 2)] == [None]


def test_rejection_sampling_learns_from_solved_tickets_alone() -> None:
    tries = [played(1, solved=True), played(2, solved=False)]
    rows = rows_of(Variant(name="rejection", algorithm="sft", solved_only=True), tries, [], 1)
    assert [row.trajectory_id for row in rows] == [tries[0].trajectory_id]
