"""Logged executions as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ratchet.core.contract.workflows import MOST_SUB_TASKS, Plan
from ratchet.core.planning.encoder import encode
from ratchet.core.planning.logged import Decision
from ratchet.core.planning.network import WORKER_FEATURES, type_number, worker_features
from ratchet.trainer_worker.training.planning.network import Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans as tensors; `N` is the most sub-tasks of any."""

    texts_BF: Tensor
    types_BN: Tensor
    lengths_B: Tensor
    depends_BNN: Tensor
    """1 where the row's sub-task depends on the column's, whatever their order."""
    complexities_BN: Tensor

    @property
    def present_BN(self) -> Tensor:
        """Where a plan has a sub-task."""
        return torch.arange(self.types_BN.shape[1])[None, :] < self.lengths_B[:, None]

    def at(self, places: Tensor) -> Plans:
        """Some of them."""
        return Plans(**{name: getattr(self, name)[places] for name in self.__slots__})


def plans_of(pairs: Sequence[tuple[str, Plan]], task_types: Sequence[str]) -> Plans:
    """From instructions and plans, whose types are all in the vocabulary."""
    count, width = len(pairs), max(len(plan.sub_tasks) for _, plan in pairs)
    types = np.zeros((count, width), np.int64)
    depends = np.zeros((count, width, width), np.float32)
    complexities = np.zeros((count, width), np.float32)
    for row, (_, plan) in enumerate(pairs):
        for index, task in enumerate(plan.sub_tasks):
            types[row, index] = task_types.index(task.task_type)
            complexities[row, index] = task.complexity
            depends[row, index, list(task.depends_on)] = 1.0
    return Plans(
        texts_BF=torch.tensor(np.stack([encode(instruction) for instruction, _ in pairs])),
        types_BN=torch.tensor(types),
        lengths_B=torch.tensor([len(plan.sub_tasks) for _, plan in pairs]),
        depends_BNN=torch.tensor(depends),
        complexities_BN=torch.tensor(complexities),
    )


def choices_of(decisions: Sequence[Decision], task_types: Sequence[str]) -> Choices:
    """From logged decisions, each with at least one worker."""
    width = max(len(decision.choice.workers) for decision in decisions)
    workers = np.zeros((len(decisions), width, WORKER_FEATURES), np.float32)
    capable = np.zeros((len(decisions), width), np.bool_)
    for row, decision in enumerate(decisions):
        count = len(decision.choice.workers)
        workers[row, :count] = worker_features(decision.choice)
        capable[row, :count] = True
    tasks = [decision.choice.sub_task for decision in decisions]
    return Choices(
        texts_DF=torch.tensor(np.stack([encode(decision.choice.instruction) for decision in decisions])),
        types_D=torch.tensor([type_number(task.task_type, task_types) for task in tasks]),
        complexities_D=torch.tensor([task.complexity for task in tasks], dtype=torch.float32),
        places_DP=torch.tensor([_place(decision) for decision in decisions], dtype=torch.float32),
        workers_DWP=torch.tensor(workers),
        capable_DW=torch.tensor(capable),
        chosen_D=torch.tensor([decision.chosen for decision in decisions]),
        logged_D=torch.tensor([math.log(decision.propensity) for decision in decisions], dtype=torch.float32),
    )


def _place(decision: Decision) -> tuple[float, float, float, float]:
    count, index = len(decision.choice.plan.sub_tasks), decision.choice.index
    complexity = decision.choice.sub_task.complexity
    return complexity, index / MOST_SUB_TASKS, (count - index) / MOST_SUB_TASKS, decision.failed_before / 3.0
