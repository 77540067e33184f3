"""A search for a bundle in this process, with the worker's part of it: it stores checkpoints and says so."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.core.contract.bundle import NO_BUNDLE, Bundle
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import (
    CallBudget,
    Dataset,
    Hyperparameters,
    PromptSearch,
    TaskFileRef,
    TrainingConfig,
)
from ratchet.core.datasets.parquet import RowWriter
from ratchet.trainer_worker.job import STORED, Event, JobSpec, Saved, SearchSpec, decode_event
from ratchet.trainer_worker.training.prompts.prompt_run import train
from tests.support.prompted_helpdesk import REFLECTOR, ROLE, task_lines

JOB_ID = "6a3f0c1e-0000-4000-8000-000000000002"
SOME_FILE = TaskFileRef(uri="s3://test/blobs/x.jsonl", sha256="0" * 64)


class WorkerSide(io.RawIOBase):
    """Takes a search's events, and stores its checkpoints as long as `stores`."""

    def __init__(self, directory: Path) -> None:
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda _: None
        self.stores = True
        self._directory = directory

    def writable(self) -> bool:
        return True

    def write(self, line: Any) -> int:
        event = decode_event(bytes(line).rstrip())
        self.events.append(event)
        if isinstance(event, Saved) and self.stores:
            (self._directory / STORED).write_text(str(event.step))
        self.on_event(event)
        return len(line)

    @property
    def saved(self) -> list[Saved]:
        return [event for event in self.events if isinstance(event, Saved)]


def search_spec(
    directory: Path, url: str, *, start: Bundle = NO_BUNDLE, rows: list[TrajectoryRow] | None = None, **more: Any
) -> JobSpec:
    """A job of the help desk; the rest of its options change it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, seed in (("train.jsonl", 3), ("validation.jsonl", 7)):
        (directory / name).write_bytes(task_lines(seed=seed))
    dataset = directory / "rows.parquet"
    writer = RowWriter(dataset, TrajectoryRow)
    writer.add(rows or [])
    writer.close()
    prices = more.get("prices")
    search = PromptSearch(
        reflector=more.get("reflector", REFLECTOR),
        train_tasks=SOME_FILE,
        validation_tasks=SOME_FILE,
        budget=more.get("budget", CallBudget(calls=2000)),
        reflector_prices=prices,
        answer_prices=prices,
    )
    config = TrainingConfig(
        algorithm=more.get("algorithm", "gepa"),
        base_model="stable",
        dataset=Dataset(source="s3", sample_size=100),
        hyperparameters=more.get("hyper", Hyperparameters(seed=3)),
        prompts=search,
    )
    given = SearchSpec(
        start=start,
        train=str(directory / "train.jsonl"),
        validation=str(directory / "validation.jsonl"),
        model=ROLE,
        pinned=False,
        gateway=url,
        composed_by=more.get("composed_by"),
    )
    return JobSpec(
        training_job_id=JOB_ID,
        attempt=more.get("attempt", 1),
        role=ROLE,
        config=config,
        dataset=str(dataset),
        base="",
        base_name="",
        threads=1,
        resume=more.get("resume"),
        search=given,
    )


async def searched(spec: JobSpec, directory: Path, worker: WorkerSide, stop: threading.Event | None = None) -> Event:
    """How it ends; it raises what it raises."""
    return await asyncio.to_thread(train, spec, directory, worker, stop or threading.Event(), threading.Event())  # type: ignore[arg-type]
