"""The one thread that computes: takes waiting jobs, keeps a running batch per policy, steps them in turn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import torch

from ratchet.engine_local.domain.admission import admissible
from ratchet.engine_local.torch_batch import Batch, Job
from ratchet.engine_local.torch_policies import Served
from ratchet.errors import Unavailable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is computed at once."""

    rows: int
    """Rows of one policy's batch."""
    prefill_tokens: int
    """Prompt tokens computed in one pass."""
    prefix_tokens: int
    """Tokens whose keys and values are kept per policy after their sequence ended."""
    linger_s: float
    """How long an idle policy's first job waits for company."""


class TorchWorker:
    """Computes jobs on a thread of its own, so that the event loop never waits for a forward pass."""

    def __init__(self, limits: Limits, seed: int, threads: int = 1) -> None:
        """`threads`: CPU threads of one forward pass."""
        self._limits = limits
        self._threads = threads
        self._seed = seed
        self._changed = threading.Condition()
        self._waiting: dict[Served, deque[tuple[float, Job]]] = {}
        self._batches: dict[Served, Batch] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self._thread.start()

    def submit(self, served: Served, job: Job) -> None:
        """Compute `job` with this policy; answers through the job's own callbacks."""
        with self._changed:
            if self._closing:
                raise Unavailable("the engine is stopping")
            self._waiting.setdefault(served, deque()).append((time.monotonic(), job))
            self._changed.notify()

    def forget(self, served: Served) -> None:
        """Free what is kept for a policy that answers no more requests."""
        with self._changed:
            self._batches.pop(served, None)
            self._waiting.pop(served, None)

    async def check(self) -> str | None:
        """Readiness: None while the thread runs, else the reason."""
        return None if self._thread.is_alive() else "the torch thread has ended"

    def close(self) -> None:
        """Finish nothing more; what is not done fails."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while self._wait_for_work():
            for served, batch in self._working():
                try:
                    batch.step()
                    batch.join(self._joining(served, batch))
                except Exception as error:  # the boundary: no job may hang because another one failed
                    log.exception("batch failed")
                    batch.fail(error)
        self._give_up()

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to compute. False once the engine stops."""
        with self._changed:
            while not self._closing:
                pause = self._pause_s()
                if pause is not None and pause <= 0:
                    return True
                self._changed.wait(pause)
        return False

    def _pause_s(self) -> float | None:
        """Seconds until there is something to compute; None when nothing is known to come."""
        if any(len(batch) for batch in self._batches.values()):
            return 0.0
        queues = [queue for queue in self._waiting.values() if queue]
        if not queues:
            return None
        if any(len(queue) >= self._limits.rows for queue in queues):
            return 0.0
        return min(queue[0][0] for queue in queues) + self._limits.linger_s - time.monotonic()

    def _working(self) -> list[tuple[Served, Batch]]:
        """The policies with rows or waiting jobs."""
        with self._changed:
            for served, queue in self._waiting.items():
                if queue and served not in self._batches:
                    self._batches[served] = self._new_batch(served)
            return [(served, batch) for served, batch in self._batches.items() if len(batch) or self._waiting[served]]

    def _joining(self, served: Served, batch: Batch) -> Sequence[Job]:
        """The jobs that join the batch now; they leave the queue."""
        with self._changed:
            queue = self._waiting.get(served) or deque[tuple[float, Job]]()
            while queue and queue[0][1].cancelled:
                queue.popleft()
            if not queue or self._lingers(queue, batch):
                return []
            free = self._limits.rows - len(batch)
            jobs = [job for _, job in queue][: max(0, free)]
            count = admissible([batch.new_tokens(job) for job in jobs], free, self._limits.prefill_tokens)
            for _ in range(count):
                queue.popleft()
        return [job for job in jobs[:count] if not job.cancelled]

    def _lingers(self, queue: deque[tuple[float, Job]], batch: Batch) -> bool:
        """Jobs wait a moment for more of them: one pass for several costs little more than one for a single job."""
        enough = max(1, (len(batch) + len(queue)) // 4) if len(batch) else self._limits.rows
        return len(queue) < enough and time.monotonic() - queue[0][0] < self._limits.linger_s

    def _new_batch(self, served: Served) -> Batch:
        return Batch(served.network, served.text.end_ids, self._limits.prefix_tokens, self._seed)

    def _give_up(self) -> None:
        error = Unavailable("the engine is stopping")
        for batch in self._batches.values():
            batch.fail(error)
        for queue in self._waiting.values():
            for _, job in queue:
                job.failed(error)
