"""The three sets of tasks of a search share no task, by what is asked and expected, whatever a task is called."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.contract.evaluation_task import Expected, Task, TextExpected
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.task_files import tasks_by_digest
from ratchet.rl_coordinator.jobs.task_sets import require_disjoint


def tasks(*answers: str, prefix: str = "t") -> dict[str, str]:
    lines = [
        msgspec.json.encode(
            Task(
                id=f"{prefix}{answer}",
                messages=[{"role": "user", "content": f"What is {answer}?"}],
                expect=Expected(text=TextExpected(any_of=[answer])),
            )
        )
        for answer in answers
    ]
    return tasks_by_digest(b"\n".join(lines), "tasks")


def test_only_sets_with_a_common_task_are_refused() -> None:
    answers = {"1", "2", "3", "4"}
    refused: set[str] = set()
    for answer in answers:
        try:
            require_disjoint(tasks("1", "2"), tasks("3"), [*tasks(answer)])
        except Rejected:
            refused.add(answer)
    assert refused == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("validation", "gate", "reason"),
    [
        (tasks("2", "3"), [], "prompts.train_tasks and prompts.validation_tasks share 1 task, such as 't2'"),
        (tasks("3"), [*tasks("1", "2")], "prompts.train_tasks and the gate's held-out tasks share 2 tasks"),
        (tasks("3"), [*tasks("3")], "prompts.validation_tasks and the gate's held-out tasks share 1 task"),
        (tasks("2", prefix="renamed"), [], "share 1 task, such as 't2'"),
    ],
)
def test_common_task_is_refused_in_words(validation: dict[str, str], gate: list[str], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        require_disjoint(tasks("1", "2"), validation, gate)


def test_line_that_is_no_task_is_named_by_its_number() -> None:
    with pytest.raises(Rejected, match=r"^tasks: line 2: "):
        tasks_by_digest(b"\n{}", "tasks")
