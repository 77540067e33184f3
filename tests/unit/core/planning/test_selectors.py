"""LinUCB and Thompson sampling learn from logs whom to ask."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask, Worker, WorkflowExecution
from ratchet.core.planning.base import Choice
from ratchet.core.planning.learned import Selector
from ratchet.core.planning.selectors import train_linucb, train_thompson
from ratchet.core.planning.simulator import WORKERS, Teacher, World, play_many

Trained = Callable[[list[WorkflowExecution]], Selector]
TRAININGS = [pytest.param(train_linucb, id="linucb"), pytest.param(train_thompson, id="thompson")]


@pytest.fixture(scope="module")
def rows() -> list[WorkflowExecution]:
    return play_many(World(6), Teacher(), 600, 2)


def choice_of(task_type: str, *more: Worker) -> Choice:
    workers = [hidden.worker for hidden in WORKERS if task_type in hidden.worker.capabilities]
    plan = Plan(sub_tasks=(SubTask(task_type=task_type, instruction="x"),), made_by="llm")
    return Choice("x", plan, 0, [*workers, *more], [None] * (len(workers) + len(more)))


@pytest.mark.parametrize("train", TRAININGS)
def test_a_selector_asks_a_worker_that_did_well(train: Trained, rows: list[WorkflowExecution]) -> None:
    choice = choice_of("transcription")
    chances = train(rows).propensities(choice)
    likeliest = choice.workers[chances.index(max(chances))].name
    assert likeliest in ("audio", "llm-large", "llm-medium")
    assert chances[[worker.name for worker in choice.workers].index("llm-small")] < 0.2


def test_linucb_prefers_a_worker_that_it_does_not_know(rows: list[WorkflowExecution]) -> None:
    new = Worker(name="new", model_type="code", capabilities=("code",), cost_per_token=0.0)
    chances = train_linucb(rows).propensities(choice_of("code", new))
    assert chances[-1] == max(chances) > 0.5


def test_thompson_tries_a_worker_that_it_does_not_know(rows: list[WorkflowExecution]) -> None:
    new = Worker(name="new", model_type="code", capabilities=("code",), cost_per_token=0.0)
    chances = train_thompson(rows).propensities(choice_of("code", new))
    assert chances[-1] > 0.04  # twice the floor


@pytest.mark.parametrize("train", TRAININGS)
def test_a_selector_knows_nothing_of_a_type_without_a_log(train: Trained, rows: list[WorkflowExecution]) -> None:
    bare = [row for row in rows if row.plan and all(task.task_type != "planning" for task in row.plan.sub_tasks)]
    choice = choice_of("planning")
    choice = replace(choice, workers=choice.workers[::-1])  # the best one last: LinUCB takes the first of equal ones
    assert train(bare).propensities(choice) == pytest.approx(train([]).propensities(choice))
    assert train(rows).propensities(choice) != pytest.approx(train([]).propensities(choice))


def test_selectors_of_no_rows_have_no_preference_but_the_order() -> None:
    choice = choice_of(TASK_TYPES[0])
    count = len(choice.workers)
    first, *others = train_linucb([]).propensities(choice)
    assert (first, others) == (pytest.approx(1 - 0.02 * (count - 1)), pytest.approx([0.02] * (count - 1)))
    assert train_thompson([]).propensities(choice) == pytest.approx([1 / count] * count, abs=0.06)
