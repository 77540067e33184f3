"""What a dispatch does: start its attempt, once."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.bus.consumer import Done, Outcome, Retry
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.contract import TrainingDispatch
from ratchet.contract.state import Job
from ratchet.trainer_worker.domain import may_start
from ratchet.trainer_worker.slots import Slots

BUSY_S = 2.0
"""A dispatch that finds no free slot comes again after this, here or to another worker."""


class Dispatches:
    """Handlers of the work queue. A dispatch is done once its training runs and has said so."""

    def __init__(self, slots: Slots, jobs: Bucket[Job], worker: str) -> None:
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
        attempt = self._slots.start(received)
        await attempt.launched.wait()
        # An attempt that failed before its child ran has spoken for itself.
        return Done([attempt.running_status()] if attempt.has_child else [])
