"""Which worker does a sub-task: drawn by the propensities of the planner, the same one however often it is drawn."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.core.contract.workflows import Worker, WorkerMeasures, WorkerOption

MOST_WEIGHT = 100
"""A worker's means follow about so many of its newest calls."""


@dataclass(frozen=True, slots=True)
class Known:
    """A worker of the registry, and what was measured of it."""

    worker: Worker
    measured: WorkerMeasures | None = None

    @property
    def corrected(self) -> Worker:
        """The worker with its measured latency in the place of the expected one. Its price is what calls are charged
        by, so it is measured as it stands."""
        measured = self.measured
        return self.worker if measured is None else replace(self.worker, latency_ms=measured.latency_ms)


def capable(known: Sequence[Known], task_type: str) -> list[Known]:
    """Those that can do a type of sub-task, by name."""
    able = [each for each in known if task_type in each.worker.capabilities]
    return sorted(able, key=lambda each: each.worker.name)


def drawn(seed: str, index: int, options: Sequence[WorkerOption]) -> WorkerOption:
    """One of the options. The draw follows from the workflow's seed and the sub-task: a runner that goes on draws the
    same, and no caller can pick it."""
    digest = hashlib.sha256(f"{seed}.{index}".encode()).digest()
    point = random.Random(digest).random() * sum(option.propensity for option in options)
    for option in options:
        point -= option.propensity
        if point < 0:
            return option
    return options[-1]


def measured(before: WorkerMeasures | None, *, success: bool, latency_ms: float, cost_usd: float) -> WorkerMeasures:
    """A worker's measures after one more call."""
    calls = before.calls + 1 if before is not None else 1
    weight = 1 / min(calls, MOST_WEIGHT)

    def mean(old: float, new: float) -> float:
        return old + weight * (new - old)

    old = before or WorkerMeasures(calls=0, success=0.0, latency_ms=0.0, cost_usd=0.0)
    return WorkerMeasures(
        calls=calls,
        success=min(1.0, max(0.0, mean(old.success, float(success)))),
        latency_ms=max(0.0, mean(old.latency_ms, latency_ms)),
        cost_usd=max(0.0, mean(old.cost_usd, cost_usd)),
    )
