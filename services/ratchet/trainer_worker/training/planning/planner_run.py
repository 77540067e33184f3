"""The training of a planner in its process: reads executions and the planner that serves, and writes a new file."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import msgspec

from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.snapshot import ExecutionRow
from ratchet.core.datasets.domain.executions import execution_of
from ratchet.core.datasets.parquet import read_rows
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.errors import DataUnusable, Diverged, StopRequested
from ratchet.trainer_worker.job import (
    METRICS_FILE,
    PLANNER_FILE,
    RESULT,
    Event,
    Finished,
    JobSpec,
    Progressed,
    Started,
    Stopped,
    encode_event,
)
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.planning.base import TrainPlanner


def train(spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event, begun: threading.Event) -> Event:
    """Train, and leave the planner's file in the job's directory. There are no checkpoints: it takes a minute."""
    learn = cast("TrainPlanner", load_train(spec.config.algorithm))
    try:
        rows = [execution_of(row, spec.role) for row in read_rows(Path(spec.dataset), ExecutionRow)]
        start = Path(spec.planner).read_bytes() if spec.planner else None
    except Rejected as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error
    with (directory / METRICS_FILE).open("a", buffering=1) as metrics:
        run = _Run(events, stop, metrics)
        begun.set()
        run.emit(Started(samples=len(rows), total_steps=1))
        try:
            trained = learn(rows, start, spec.config.hyperparameters, run.report)
        except StopRequested:
            return Stopped(step=run.reached)
        except Rejected as error:
            raise DataUnusable(f"the planner that serves cannot be continued: {error}") from error
    result = directory / RESULT
    result.mkdir()
    (result / PLANNER_FILE).write_bytes(trained.blob)
    return Finished(
        directory=str(result),
        kind=BUNDLE,
        samples=trained.samples,
        metrics=dict(trained.metrics),
        peak_memory_gb=0.0,
    )


class _Run:
    def __init__(self, events: BinaryIO, stop: threading.Event, metrics: TextIO) -> None:
        self._events = events
        self._stop = stop
        self._metrics = metrics
        self._begun_at = self._stepped_at = time.monotonic()
        self._longest_step_s = 0.0
        self.reached = 0

    def emit(self, event: Event) -> None:
        self._events.write(encode_event(event))
        self._events.flush()

    def report(self, step: int, total: int, figures: Mapping[str, float]) -> None:
        """See `base.Report`. Raises `StopRequested`, and `Diverged` for a figure that is no number."""
        now = time.monotonic()
        self._longest_step_s = max(self._longest_step_s, now - self._stepped_at)
        self._stepped_at, self.reached = now, step
        self._metrics.write(msgspec.json.encode({"step": step, **figures}).decode() + "\n")
        if not all(map(math.isfinite, figures.values())):
            raise Diverged(f"train step {step} is no longer finite: {dict(figures)}")
        self.emit(
            Progressed(
                step=step,
                total_steps=total,
                epoch=step,
                total_epochs=total,
                eta_s=(now - self._begun_at) / step * (total - step),
                longest_step_s=self._longest_step_s,
                metrics=dict(figures),
            )
        )
        if self._stop.is_set():
            raise StopRequested
