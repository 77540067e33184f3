"""`selector_linucb` and `selector_thompson`: tables over (task type, worker), with the head of another planner."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract.workflows import TASK_TYPES, WorkflowExecution
from ratchet.core.planning.files import LINUCB, Description, PlannerFile, read_file, save_planner
from ratchet.core.planning.learned import execution_digest
from ratchet.core.planning.logged import learnable
from ratchet.core.planning.selectors import train_linucb, train_thompson
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.planning.base import Trained


def train(kind: str, rows: Sequence[WorkflowExecution], start: bytes | None) -> Trained:
    """`kind`: LINUCB or THOMPSON of `core.planning.files`. Plans are those of the planner in `start`, if it has a head.

    The tables are made of `rows` alone, whatever `start` has. Raises `DataUnusable` where no worker was asked.
    """
    earlier = read_file(start) if start else None
    types = earlier.description.task_types if earlier else TASK_TYPES
    used = learnable(rows)
    selector = (train_linucb if kind == LINUCB else train_thompson)(used, types)
    if not selector.workers:
        raise DataUnusable(f"none of {len(rows)} executions has a decision: no worker was asked, or none was logged")
    head = {name: tensor for name, tensor in (earlier.tensors if earlier else {}).items() if name.startswith("plan.")}
    trained_on = {execution_digest(row.workflow_id) for row in used}
    if earlier and head:
        trained_on |= set(earlier.description.trained_on)
    description = Description(
        selector=kind, task_types=types, workers=selector.workers, trained_on=tuple(sorted(trained_on))
    )
    file = PlannerFile(description, head | dict(selector.tables))
    return Trained(save_planner(file), len(used), {"workers": float(len(selector.workers))})
