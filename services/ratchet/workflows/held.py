"""A workflow in the hands of the process that runs it: what it is now, and how it is changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec.structs import replace

from ratchet.core.errors import Conflict, Unavailable
from ratchet.workflows import metrics
from ratchet.workflows.domain.workflow import Workflow
from ratchet.workflows.kv_workflows import WorkflowStore

log = structlog.get_logger()

PAUSE_S = 0.5
"""Between tries to write while the broker is away."""


def warn_of_budget(before: Workflow, now: Workflow) -> None:
    """Say once, when most of the budget is spent."""
    if now.warning is not None and before.warning is None:
        log.warning("most of a budget is spent", workflow_id=now.workflow_id, reason=now.warning)
        metrics.BUDGET_WARNINGS.labels(now.role).inc()


class Lost(Exception):
    """Another process runs the workflow now."""


class Held:
    """Writes are one after the other, each a compare-and-set on the one before."""

    def __init__(
        self,
        store: WorkflowStore,
        workflow: Workflow,
        revision: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workflow = workflow
        self._store = store
        self._revision = revision
        self._monotonic = monotonic
        self._until = monotonic() + workflow.left_s
        self._lock = asyncio.Lock()
        self.lost = asyncio.Event()
        """Set once another process runs it."""

    @property
    def left_s(self) -> float:
        """Until its deadline; of one that is over, what was left then."""
        return self.workflow.left_s if self.workflow.is_over else max(0.0, self._until - self._monotonic())

    async def change(self, change: Callable[[Workflow], Workflow]) -> Workflow:
        """Write what `change` makes of it, and return that. Raises `Lost`, and `Rejected` for what is too large.

        A write goes on where its caller is cancelled: it would not be known whether it had come about.
        """
        writing = asyncio.ensure_future(self._write(change))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(writing)

    async def _write(self, change: Callable[[Workflow], Workflow]) -> Workflow:
        async with self._lock:
            changed = change(self.workflow)
            if changed == self.workflow:
                return changed
            changed = replace(changed, left_s=self.left_s)
            while not self.lost.is_set():
                try:
                    self._revision = await self._store.update(changed, self._revision)
                except Conflict:
                    await self._look(changed)
                except Unavailable as error:
                    log.warning("a workflow waits for the broker", reason=str(error))
                    await asyncio.sleep(PAUSE_S)
                    continue
                warn_of_budget(self.workflow, changed)
                self.workflow = changed
                return changed
            raise Lost

    async def _look(self, written: Workflow) -> None:
        """A write of ours whose answer was lost is there; any other one is of another process. Raises `Lost`."""
        entry = None
        while entry is None:
            with suppress(Unavailable):
                entry = await self._store.get(written.workflow_id)
                if entry is None:
                    break
            await asyncio.sleep(0 if entry is not None else PAUSE_S)
        if entry is None or entry.value != written:
            self.lost.set()
            raise Lost
        self._revision = entry.revision
