"""LinUCB and Thompson sampling learn from logs whom to ask."""

from collections.abc import Callable

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
    return play_many(World(4), Teacher(), 600, 2)


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


@pytest.mark.parametrize("train", TRAININGS)
def test_a_selector_tries_a_worker_that_it_does_not_know(train: Trained, rows: list[WorkflowExecution]) -> None:
    chances = train(rows).propensities(
        choice_of("code", Worker(name="new", model_type="code", capabilities=("code",), cost_per_token=0.0))
    )
    assert chances[-1] >= 0.02


@pytest.mark.parametrize("train", TRAININGS)
def test_a_selector_chooses_for_a_type_without_a_log(train: Trained, rows: list[WorkflowExecution]) -> None:
    bare = [row for row in rows if row.plan and all(task.task_type != "planning" for task in row.plan.sub_tasks)]
    assert sum(train(bare).propensities(choice_of("planning"))) == pytest.approx(1.0)


@pytest.mark.parametrize("train", TRAININGS)
def test_a_selector_of_no_rows_has_no_workers(train: Trained) -> None:
    assert train([]).propensities(choice_of(TASK_TYPES[0]))
