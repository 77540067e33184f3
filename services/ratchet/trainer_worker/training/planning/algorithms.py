"""The algorithms that make planners, as `core.rules.algorithms` declares them: from a job's options to each one's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.planning.files import LINUCB, THOMPSON
from ratchet.trainer_worker.training.planning.bandits import train as train_selector
from ratchet.trainer_worker.training.planning.base import Report, Trained

Rows = Sequence[WorkflowExecution]
RENAMED = {"clip_epsilon": "clip"}


def planner_supervised(rows: Rows, start: bytes | None, asked: Hyperparameters, report: Report) -> Trained:
    """Imitates the plans and choices of executions that succeeded."""
    from ratchet.trainer_worker.training.planning.supervised import Supervised, train  # noqa: PLC0415 - torch

    options = Supervised(**_given(asked, "learning_rate", "batch_size", "epochs", "max_grad_norm"))
    return train(rows, start, options, asked.seed or 0, report)


def planner_ppo(rows: Rows, start: bytes | None, asked: Hyperparameters, report: Report) -> Trained:
    """Improves the selector of a planner that `planner_supervised` made."""
    from ratchet.trainer_worker.training.planning.policy_gradient import PolicyGradient, train  # noqa: PLC0415 - torch

    names = ("learning_rate", "batch_size", "epochs", "max_grad_norm", "clip_epsilon", "gamma", "gae_lambda")
    options = PolicyGradient(**_given(asked, *names, "entropy_coefficient"))
    return train(rows, start, options, asked.seed or 0, report)


def selector_linucb(rows: Rows, start: bytes | None, _: Hyperparameters, report: Report) -> Trained:
    """LinUCB by task type and worker, behind the head that plans now."""
    return _selector(LINUCB, rows, start, report)


def selector_thompson(rows: Rows, start: bytes | None, _: Hyperparameters, report: Report) -> Trained:
    """Thompson sampling by task type and worker, behind the head that plans now."""
    return _selector(THOMPSON, rows, start, report)


def _selector(kind: str, rows: Rows, start: bytes | None, report: Report) -> Trained:
    trained = train_selector(kind, rows, start)
    report(1, 1, trained.metrics)
    return trained


def _given(asked: Hyperparameters, *names: str) -> dict[str, Any]:
    """Those that the job names, by the names of options."""
    values = {RENAMED.get(name, name): getattr(asked, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
