"""The suites whose tasks are a role's own, in files: `heldout` and `regression`."""

from __future__ import annotations

from ratchet.core.evaluation.suites.base import Suite

HELDOUT = Suite(
    summary="What the role is for: its held-out tasks, those of RATCHET_CANARY_TASK_FILES.",
    task_type="heldout",
    tasks=None,
)
REGRESSION = Suite(
    summary="What was solved in production and checked, and trains nothing: a file of `ratchet export tasks`.",
    task_type="regression",
    tasks=None,
)
