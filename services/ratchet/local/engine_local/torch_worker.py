"""The one thread that computes: takes waiting jobs, keeps a running batch per policy, steps them in turn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import torch

from ratchet.core.errors import Unavailable
from ratchet.local.engine_local import metrics
from ratchet.local.engine_local.registry import Registry
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_policies import Served

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
    """How long an idle policy's first job waits for others to be computed together with."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a policy has the engine do."""

    waiting: int = 0
    """Rows that wait for room in the batch."""
    running: int = 0
    """Rows that are computed together."""
    busy_s: float = 0.0
    """Time of all passes for it, since it was first asked."""


Post = Callable[[Callable[[], None]], object]
"""Calls a function on the event loop's thread, as `call_soon_threadsafe` does."""


class TorchWorker:
    """Computes jobs on a thread of its own, so that the event loop never waits for a forward pass.

    What a pass brings to its jobs reaches the loop together: one wake-up for all rows, none when no job has to know.
    """

    def __init__(self, limits: Limits, seed: int, post: Post, threads: int = 1) -> None:
        """Jobs hear of their progress by way of `post`; `threads`: CPU threads of one forward pass."""
        self._limits = limits
        self._post = post
        self._threads = threads
        self._seed = seed
        self._changed = threading.Condition()
        self._waiting: dict[Served, deque[tuple[float, Job]]] = {}
        self._batches: dict[Served, Batch] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self._thread.start()

    def submit(self, served: Served, job: Job) -> None:
        """Compute `job` with this policy; its `on_progress` receives what becomes of it."""
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

    def load_of(self, served: Served) -> Load:
        """How busy a policy is."""
        with self._changed:
            waiting = sum(not job.cancelled for _, job in self._waiting.get(served, ()))
            batch = self._batches.get(served)
            return Load(waiting) if batch is None else Load(waiting, len(batch), batch.busy_s)

    async def check(self) -> str | None:
        """Readiness: None while the thread runs, else the reason."""
        return None if self._thread.is_alive() else "the torch thread has ended"

    def close(self) -> None:
        """Stop computing; jobs that are not done fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while self._wait_for_work():
            for served, batch in self._working():
                self._report(self._pass(served, batch))
        error = Unavailable("the engine is stopping")
        for batch in self._batches.values():
            self._report(batch.fail(error))
        for queue in self._waiting.values():
            self._report([Update(job, end=error) for _, job in queue])

    def _pass(self, served: Served, batch: Batch) -> list[Update]:
        """A token for every row, and the first one for those that join."""
        updates: list[Update] = []
        joining: Sequence[Job] = ()
        began = time.monotonic()
        try:
            updates += batch.step()
            joining = self._joining(served, batch)
            updates += batch.join(joining)
        except Exception as error:  # the boundary: no job may hang because another one failed
            log.exception("batch failed")
            updates += batch.fail(error)
            ended = {update.job for update in updates if update.end is not None}
            updates += [Update(job, end=error) for job in joining if job not in ended]
        batch.busy_s += time.monotonic() - began
        return updates

    def _report(self, updates: Sequence[Update]) -> None:
        if updates:
            self._post(partial(report, updates))

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to compute. False once the engine stops."""
        with self._changed:
            while not self._closing:
                queues = [queue for queue in self._waiting.values() if queue]
                if any(len(batch) for batch in self._batches.values()):
                    return True
                if any(len(queue) >= self._limits.rows for queue in queues):
                    return True
                oldest = min((queue[0][0] for queue in queues), default=None)
                pause_s = None if oldest is None else oldest + self._limits.linger_s - time.monotonic()
                if pause_s is not None and pause_s <= 0:
                    return True
                self._changed.wait(pause_s)
        return False

    def _working(self) -> list[tuple[Served, Batch]]:
        """The policies with rows or waiting jobs."""
        with self._changed:
            for served, queue in self._waiting.items():
                if queue and served not in self._batches:
                    ends, kept = served.text.end_ids, self._limits.prefix_tokens
                    self._batches[served] = Batch(served.network, ends, kept, self._seed)
            return [(served, batch) for served, batch in self._batches.items() if len(batch) or self._waiting[served]]

    def _joining(self, served: Served, batch: Batch) -> Sequence[Job]:
        """The jobs that join the batch now; they leave the queue."""
        with self._changed:
            queue = self._waiting.get(served) or deque[tuple[float, Job]]()
            while queue and queue[0][1].cancelled:
                queue.popleft()
            if not queue:
                return []
            # Jobs wait a moment for more of them: one pass for several costs little more than one for a single job.
            enough = max(1, (len(batch) + len(queue)) // 4) if len(batch) else self._limits.rows
            if len(queue) < enough and time.monotonic() - queue[0][0] < self._limits.linger_s:
                return []
            free = self._limits.rows - len(batch)
            jobs = [job for _, job in queue][: max(0, free)]
            count = admissible(batch.new_tokens(jobs), free, self._limits.prefill_tokens)
            for _ in range(count):
                queue.popleft()
        return [job for job in jobs[:count] if not job.cancelled]


class LoadReport:
    """Sets the metrics of the policies in memory, and removes those of policies that have left."""

    def __init__(self, registry: Registry[Served], load_of: Callable[[Served], Load]) -> None:
        self._registry = registry
        self._load_of = load_of
        self._seen: dict[str, tuple[Served, float]] = {}
        """By name: the policy that was reported, and its busy time then."""

    async def observe(self) -> None:
        """To be called again and again."""
        present = {entry.name: entry.served for entry in self._registry}
        for name in self._seen.keys() - present.keys():
            del self._seen[name]
            for metric in (metrics.BUSY, metrics.RUNNING, metrics.WAITING):
                metric.remove(name)
        for name, served in present.items():
            load = self._load_of(served)
            known, busy_s = self._seen.get(name, (served, 0.0))
            metrics.WAITING.labels(name).set(load.waiting)
            metrics.RUNNING.labels(name).set(load.running)
            # A policy that left and came back, or was asked for the first time since, counts from nothing again.
            metrics.BUSY.labels(name).inc(load.busy_s - busy_s if known is served else load.busy_s)
            self._seen[name] = (served, load.busy_s)


def report(updates: Sequence[Update]) -> None:
    """Give each job what is new."""
    for update in updates:
        update.job.on_progress(update)


def admissible(new_tokens: Sequence[int], free_rows: int, budget: int) -> int:
    """How many of the first requests are computed together, padded to the longest, within `budget` tokens.

    `new_tokens` are the prompt tokens still to compute, in order of arrival; none where an earlier request has the
    prompt. At least one request whenever a row is free, so that a prompt longer than the budget is not stuck.
    """
    width = computed = 0
    for count, tokens in enumerate(new_tokens[:free_rows]):
        width, computed = max(width, tokens), computed + (tokens > 0)
        if count and width * computed > budget:
            return count
    return min(len(new_tokens), free_rows)
