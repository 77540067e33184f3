"""What each training of planners gives back, and reports meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
