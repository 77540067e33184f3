"""The trainings of this worker: at most so many at a time, each attempt once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ratchet.bus.received import Received
from ratchet.contract import TrainingDispatch
from ratchet.trainer_worker import metrics
from ratchet.trainer_worker.attempt import Attempt
from ratchet.trainer_worker.domain import StopReason

REMEMBERED = 1000
"""Ended attempts that are remembered, so that a dispatch that comes again starts nothing."""

Key = tuple[str, int]


def key_of(dispatch: TrainingDispatch) -> Key:
    """What makes two dispatches the same."""
    return dispatch.training_job_id, dispatch.attempt


class Slots:
    """A component: `run` lasts until `stop`, which lets running trainings save what they have."""

    def __init__(self, count: int, make: Callable[[Received[TrainingDispatch]], Attempt]) -> None:
        self._count = count
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
        return len(self._running) < self._count and not self._stopping.is_set()

    def start(self, received: Received[TrainingDispatch]) -> Attempt:
        """Begin an attempt in a free slot."""
        key = key_of(received.message)
        attempt = self._make(received)
        self._running[key] = attempt
        metrics.BUSY.set(len(self._running))
        task = asyncio.create_task(attempt.run())
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._end(key))
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
        """No further training; ask the running ones to save and end."""
        self._stopping.set()
        for attempt in self._running.values():
            attempt.request_stop(StopReason.SHUTDOWN)

    def _end(self, key: Key) -> None:
        self._ended.append(key)
        del self._running[key], self._tasks[key]
        metrics.BUSY.set(len(self._running))
