"""What each training of planners gives back, and reports meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.contract.workflows import WorkflowExecution

Report = Callable[[int, int, Mapping[str, float]], None]
"""Step, total steps and figures, after each train step or epoch. It may raise to stop the training."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A planner that was trained."""

    blob: bytes
    """Its file (`core.planning.files`)."""
    samples: int
    """Executions that it learned from."""
    metrics: Mapping[str, float]


class TrainPlanner(Protocol):
    """The code of an algorithm that makes planners."""

    def __call__(
        self, rows: Sequence[WorkflowExecution], start: bytes | None, asked: Hyperparameters, report: Report, /
    ) -> Trained:
        """`start`: the file of the planner that serves; None for version 0. Raises `DataUnusable`."""
        ...
