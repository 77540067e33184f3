"""`algorithms.base.Run` of one of several ranks: the first one reports and saves, and all do what it decides."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ratchet.trainer_worker.training.algorithms.base import Run, TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint
from ratchet.trainer_worker.training.ranks import Ranks


class RankRun:
    """Every rank calls the same methods in the same order: what one asks, all ask."""

    def __init__(self, ranks: Ranks, resume: Checkpoint | None, own: Run | None = None) -> None:
        """`own`: the first rank's."""
        self.resume = resume
        self._ranks = ranks
        self._own = own

    def explained(self, findings: Sequence[str]) -> None:
        """See `Run`."""
        if self._own is not None:
            self._own.explained(findings)

    def started(self, samples: int, total_steps: int) -> None:
        """See `Run`."""
        if self._own is not None:
            self._own.started(samples, total_steps)

    def stepped(self, step: TrainStep) -> None:
        """See `Run`."""
        if self._own is not None:
            self._own.stepped(step)

    def stop_requested(self) -> bool:
        """See `Run`."""
        return self._ranks.of_leader(self._own is not None and self._own.stop_requested())

    def checkpoint_due(self, step: int) -> bool:
        """See `Run`."""
        return self._ranks.of_leader(self._own is not None and self._own.checkpoint_due(step))

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """See `Run`. Every rank writes; only rank 0's files are kept."""
        if self._own is not None:
            self._own.save(step, write)
            return
        with tempfile.TemporaryDirectory(prefix="rank-") as folder:
            write(Path(folder))
