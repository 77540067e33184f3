"""Selectors simpler than a network: LinUCB and Thompson sampling over (task type, worker), learned from logs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.core.contract.workflows import TASK_TYPES, WorkflowExecution
from ratchet.core.planning.base import Choice, with_floor
from ratchet.core.planning.logged import decisions
from ratchet.core.planning.rewards import decision_reward

Table = NDArray[np.float64]

CONTEXT = 2
"""Numbers that LinUCB knows of a sub-task: 1, and its complexity."""
ALPHA = 1.0
"""Standard deviations by which LinUCB overestimates a worker (Li 2010)."""
DRAWS = 1000
"""Of Thompson sampling, for its propensities: a share is then known within .016."""
REWARD_UNIT = 10.0
"""LinUCB learns rewards in this unit: a worker without calls, at 0 + ALPHA, looks about as good as a success."""


@dataclass(frozen=True, slots=True)
class LinUcb:
    """Ridge regression of the reward for each (task type, worker), and the highest upper bound."""

    task_types: tuple[str, ...]
    workers: tuple[str, ...]
    tables: Mapping[str, Table]
    """`linucb.precision` [T, W, CONTEXT, CONTEXT], `linucb.weighted` [T, W, CONTEXT]."""

    def propensities(self, choice: Choice) -> list[float]:
        """The worker with the highest bound, the first of equal ones; the floor makes the choice a random one."""
        context = np.array([1.0, choice.sub_task.complexity])
        bounds = [self._bound(choice.sub_task.task_type, worker.name, context) for worker in choice.workers]
        best = max(range(len(bounds)), key=lambda index: (bounds[index], -index))
        return with_floor([float(index == best) for index in range(len(bounds))])

    def _bound(self, task_type: str, worker: str, context: Table) -> float:
        precision, weighted = np.eye(CONTEXT), np.zeros(CONTEXT)
        if task_type in self.task_types and worker in self.workers:
            place = self.task_types.index(task_type), self.workers.index(worker)
            precision, weighted = self.tables["linucb.precision"][place], self.tables["linucb.weighted"][place]
        solved = np.linalg.solve(precision, np.stack([weighted, context], axis=1))
        return float(context @ solved[:, 0] + ALPHA * np.sqrt(max(0.0, context @ solved[:, 1])))


@dataclass(frozen=True, slots=True)
class Thompson:
    """A Beta posterior of success, and the mean cost and latency, for each (task type, worker)."""

    task_types: tuple[str, ...]
    workers: tuple[str, ...]
    tables: Mapping[str, Table]
    """`thompson.counts` [T, W, 2]: successes, failures; `thompson.expense` [T, W]: reward that a call costs."""

    def propensities(self, choice: Choice) -> list[float]:
        """How often each worker is the best one in `DRAWS` draws, with the floor. The draws are those of the choice."""
        names = [worker.name for worker in choice.workers]
        text = "\0".join([choice.instruction, str(choice.index), *names])
        random = np.random.default_rng(zlib.crc32(text.encode("utf-8", "surrogatepass")))
        draws = np.stack([self._draw(random, choice.sub_task.task_type, name) for name in names])
        wins = np.bincount(draws.argmax(axis=0), minlength=len(names))
        return with_floor([float(count) / DRAWS for count in wins])

    def _draw(self, random: np.random.Generator, task_type: str, worker: str) -> Table:
        succeeded, failed, expense = 0.0, 0.0, 0.0
        if task_type in self.task_types and worker in self.workers:
            place = self.task_types.index(task_type), self.workers.index(worker)
            succeeded, failed = self.tables["thompson.counts"][place]
            expense = float(self.tables["thompson.expense"][place])
        return decision_reward(True, 0.0, 0.0) * random.beta(1.0 + succeeded, 1.0 + failed, DRAWS) - expense


def table_shapes(kind: str, types: int, workers: int) -> dict[str, tuple[int, ...]]:
    """Tables of a selector, for so many types and workers."""
    if kind == "linucb":
        return {"linucb.precision": (types, workers, CONTEXT, CONTEXT), "linucb.weighted": (types, workers, CONTEXT)}
    return {"thompson.counts": (types, workers, 2), "thompson.expense": (types, workers)}


def wrong_table(tables: Mapping[str, Table]) -> str | None:
    """Name of a table, of the right shape, that no training can have made and no choice can be drawn from."""
    if "linucb.precision" in tables:
        precision = tables["linucb.precision"]
        whole = np.allclose(precision, np.swapaxes(precision, -1, -2)) and np.linalg.eigvalsh(precision).min() > 0.5
        return None if whole else "linucb.precision"
    return next((name for name in tables if name.startswith("thompson.") and tables[name].min() < 0), None)


def train_linucb(rows: Sequence[WorkflowExecution], task_types: tuple[str, ...] = TASK_TYPES) -> LinUcb:
    """From all decisions of the logs, whichever planner made them."""
    calls = list(_calls(rows, task_types))
    workers = tuple(sorted({worker for _, worker, _, _, _ in calls}))
    precision = np.tile(np.eye(CONTEXT), (len(task_types), len(workers), 1, 1))
    weighted = np.zeros((len(task_types), len(workers), CONTEXT))
    for task_type, worker, complexity, success, expense in calls:
        place = task_types.index(task_type), workers.index(worker)
        context = np.array([1.0, complexity])
        precision[place] += np.outer(context, context)
        weighted[place] += context * (decision_reward(success, 0.0, 0.0) - expense) / REWARD_UNIT
    return LinUcb(task_types, workers, {"linucb.precision": precision, "linucb.weighted": weighted})


def train_thompson(rows: Sequence[WorkflowExecution], task_types: tuple[str, ...] = TASK_TYPES) -> Thompson:
    """From all decisions of the logs, whichever planner made them."""
    calls = list(_calls(rows, task_types))
    workers = tuple(sorted({worker for _, worker, _, _, _ in calls}))
    counts = np.zeros((len(task_types), len(workers), 2))
    expense_sums = np.zeros((len(task_types), len(workers)))
    for task_type, worker, _, success, expense in calls:
        place = task_types.index(task_type), workers.index(worker)
        counts[(*place, 0 if success else 1)] += 1.0
        expense_sums[place] += expense
    expenses = expense_sums / np.maximum(1.0, counts.sum(axis=2))
    return Thompson(task_types, workers, {"thompson.counts": counts, "thompson.expense": expenses})


def _calls(
    rows: Sequence[WorkflowExecution], task_types: Sequence[str]
) -> Iterator[tuple[str, str, float, bool, float]]:
    """Task type, worker, complexity, success, and the reward lost to cost and latency, of each call that was made."""
    for decision in (decision for row in rows for decision in decisions(row)):
        task, run = decision.choice.sub_task, decision.run
        if task.task_type not in task_types:
            continue
        expense = -decision_reward(False, run.cost_usd, run.latency_ms)
        worker = decision.choice.workers[decision.chosen].name
        yield task.task_type, worker, task.complexity, run.status == "succeeded", expense


SELECTORS: Mapping[str, Any] = {"linucb": LinUcb, "thompson": Thompson}
"""By the kind that a planner's file names."""
