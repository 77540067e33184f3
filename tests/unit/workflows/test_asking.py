"""What a worker reads of a sub-task, and of the task that it is a part of."""

import pytest

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask
from ratchet.core.planning.network import step_instruction
from ratchet.workflows.domain.asking import system_of, text_of

TASK = "Summarise the report on tides, then translate it."


def planned(made_by: str, words: str) -> Plan:
    return Plan(sub_tasks=(SubTask(task_type="summarization", instruction=words),) * 2, made_by=made_by)


@pytest.mark.parametrize(
    ("made_by", "words"),
    [("llm", "Summarise it."), ("model", step_instruction(TASK, "summarization", 0, 2)), ("single", TASK)],
)
def test_a_worker_reads_the_whole_task_once(made_by: str, words: str) -> None:
    plan = planned(made_by, words)
    assert (system_of(TASK, plan, 0) + text_of(plan.sub_tasks[0], {})).count(TASK) == 1


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_a_step_of_a_planner_names_what_is_to_be_done(task_type: str) -> None:
    assert task_type.replace("_", " ") in step_instruction(TASK, task_type, 1, 3).partition("\n")[0]
