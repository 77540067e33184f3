"""What a dispatch does: start its attempt in a free slot, once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ratchet.bus.consumer import Done, Outcome, Retry
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.state import Job
from ratchet.core.service.audit import Act, AuditLog, By
from ratchet.trainer_worker import metrics
from ratchet.trainer_worker.attempt import Attempt
from ratchet.trainer_worker.domain import StopReason, Worker, may_start
from ratchet.trainer_worker.slots import Slot

BUSY_S = 2.0
"""A dispatch that finds no free slot comes again after this, here or to another worker."""

REMEMBERED = 1000
"""Ended attempts that are remembered, so that a dispatch that comes again starts nothing."""

Key = tuple[str, int]


def key_of(dispatch: TrainingDispatch) -> Key:
    """What makes two dispatches the same."""
    return dispatch.training_job_id, dispatch.attempt


class Slots:
    """A component: `run` lasts until `stop`, which lets running trainings save what they have."""

    def __init__(self, slots: Sequence[Slot], make: Callable[[Received[TrainingDispatch], Slot], Attempt]) -> None:
        self._free = list(reversed(slots))
        """The one to be used next is last."""
        self._make = make
        self._running: dict[Key, Attempt] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._ended: deque[Key] = deque(maxlen=REMEMBERED)
        self._stopping = asyncio.Event()

    def known(self, dispatch: TrainingDispatch) -> bool:
        """Whether this attempt runs here, or has."""
        return key_of(dispatch) in self._running or key_of(dispatch) in self._ended

    def free(self) -> bool:
        """Whether another training fits."""
        return bool(self._free) and not self._stopping.is_set()

    def start(self, received: Received[TrainingDispatch]) -> Attempt:
        """Begin an attempt in a free slot."""
        key = key_of(received.message)
        slot = self._free.pop()
        attempt = self._make(received, slot)
        self._running[key] = attempt
        metrics.BUSY.set(len(self._running))
        task = self._tasks[key] = asyncio.create_task(attempt.run())

        def free_the_slot(_: asyncio.Task[None]) -> None:
            self._ended.append(key)
            self._free.append(slot)
            del self._running[key], self._tasks[key]
            metrics.BUSY.set(len(self._running))

        task.add_done_callback(free_the_slot)
        return attempt

    async def run(self) -> None:
        """Wait for the stop, then for the trainings."""
        await self._stopping.wait()
        try:
            await asyncio.gather(*self._tasks.values())
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def stop(self) -> None:
        """Start no further training, and ask the running ones to save and end."""
        self._stopping.set()
        for attempt in self._running.values():
            attempt.request_stop(StopReason.SHUTDOWN)


class Dispatches:
    """Handlers of the work queue. A dispatch is done once its training runs and a status says so."""

    def __init__(self, slots: Slots, jobs: Bucket[Job], worker: Worker, audit: AuditLog) -> None:
        self._audit = audit
        self._slots = slots
        self._jobs = jobs
        self._worker = worker

    async def on_dispatches(self, batch: Sequence[Received[TrainingDispatch]]) -> Sequence[Outcome]:
        """One outcome for each."""
        return [await self._on_dispatch(received) for received in batch]

    async def _on_dispatch(self, received: Received[TrainingDispatch]) -> Outcome:
        dispatch = received.message
        if self._slots.known(dispatch):
            return Done()
        job = await self._jobs.get(dispatch.training_job_id)
        if not may_start(job.value if job else None, dispatch.attempt, self._worker):
            return Done()
        if not self._slots.free():
            return Retry("no free slot", delay_s=BUSY_S)
        await self._audit.record(_training(dispatch, self._worker))
        if not self._slots.free():  # the worker stops meanwhile
            return Retry("no free slot", delay_s=BUSY_S)
        attempt = self._slots.start(received)
        await attempt.launched.wait()
        # An attempt that failed before its child ran has published its own end.
        return Done([attempt.running_status()] if attempt.has_child else [])


def _training(dispatch: TrainingDispatch, worker: Worker) -> Act:
    """The start of a training, and the data that it learns from."""
    request, snapshot = dispatch.request, dispatch.request.training_config.dataset.snapshot
    data = [f"snapshot {snapshot.digest}"] if snapshot is not None else []
    return Act("train", By(f"trainer_worker {worker.name}"), request.role, [dispatch.training_job_id, *data])
