"""The workflows that this process runs: those that it was asked for, and those whose runner was killed.

Who runs a workflow renews its lease every `RENEW_S`. Others measure with their own monotonic clocks for how long it has
not changed, and take it over after `TAKEOVER_S`: no instant is compared between hosts. Taking over is a compare-and-set
on the lease, then one on the workflow itself, at which the runner before, should it live, meets a conflict.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from ratchet.bus.kv import Entry
from ratchet.bus.tasks import UntilStopped, end
from ratchet.core.errors import Conflict, Rejected, Unavailable, Unreadable, WrongState
from ratchet.workflows import metrics
from ratchet.workflows.domain.workflow import Inputs, Lease, Workflow, taken_over
from ratchet.workflows.held import Held, warn_of_budget
from ratchet.workflows.parts import Parts
from ratchet.workflows.runner import Runner

log = structlog.get_logger()

MOST = 100
"""Workflows under way in a process; each has up to five calls under way."""
TRIES, PAUSE_S = 10, 0.1
"""Looks for a workflow that another request begins; who was killed over it is waited for by its caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations that no installation has had to change; tests pass shorter ones."""

    look_s: float = 0.5
    """A workflow that was cancelled at another process ends within a second."""
    renew_s: float = 4.0
    takeover_s: float = 15.0


TIMING = Timing()


@dataclass(slots=True)
class _Mine:
    """A workflow that runs here."""

    runner: Runner
    task: asyncio.Task[None]
    renewed_at: float


@dataclass
class Runners:
    """A component."""

    parts: Parts
    timing: Timing = TIMING
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    _mine: dict[str, _Mine] = field(default_factory=dict[str, _Mine], init=False)
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]], init=False)
    """Of each lease of another process: its revision, and when it was first seen."""
    _working: UntilStopped = field(default_factory=UntilStopped, init=False)

    async def run(self) -> None:
        """Look after workflows until stopped; then give them back, so that another process goes on at once."""
        try:
            await self._working.run(self._work())
        finally:
            await self._give_back()

    async def stop(self) -> None:
        """Return from `run`."""
        self._working.stop()

    async def begin(self, workflow: Workflow, inputs: Inputs) -> Workflow:
        """Run a workflow; one that there is already is not begun again. Returns it as it stands.

        Raises `WrongState` where another order has its id, and `Unavailable` where too many run here, or the broker
        does not answer.
        """
        store, workflow_id = self.parts.store, workflow.workflow_id
        for _ in range(TRIES):
            existing = await store.get(workflow_id)
            if existing is not None:
                if existing.value.order != workflow.order:
                    raise WrongState(
                        f"the workflow {workflow_id} has another instruction or other inputs", param="workflow_id"
                    )
                return existing.value
            if len(self._mine) >= MOST:
                raise Unavailable(f"{MOST} workflows are under way here: try again later")
            if not await store.has_room():
                raise Unavailable("the bucket of workflows is almost full: try again later")
            with suppress(Conflict):  # asked for twice at once
                return await self._create(replace(workflow, holder=self.holder), inputs)
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"the workflow {workflow_id} is being begun: try again later")

    async def _create(self, workflow: Workflow, inputs: Inputs) -> Workflow:
        """The lease comes first: what a kill leaves behind is taken over, or closed. Raises `Conflict`."""
        lease = Lease(holder=self.holder, beat=1, left_s=workflow.left_s)
        await self.parts.store.hold(workflow.workflow_id, lease, None)
        try:
            await self.parts.store.create(workflow, inputs)
        except Conflict:  # it was run to its end between the look for it and the lease
            await self.parts.store.close(workflow.workflow_id)
            raise
        await self._go_on(workflow.workflow_id, lease, workflow.left_s)
        return workflow

    async def cancel(self, workflow_id: str) -> bool:
        """End a workflow, whichever process runs it; False where it is over."""
        mine = self._mine.get(workflow_id)
        if mine is not None and not mine.task.done():
            mine.runner.cancel()
            return True
        return await self.parts.store.ask_to_cancel(workflow_id)

    async def look(self) -> None:
        """Renew what runs here, end what was cancelled, and take over what no process runs. Raises `Unavailable`."""
        for workflow_id, mine in [*self._mine.items()]:
            if mine.task.done():
                del self._mine[workflow_id]
        leases = await self.parts.store.leases()
        for workflow_id, entry in leases.items():
            mine = self._mine.get(workflow_id)
            if mine is not None:
                await self._renew(workflow_id, mine, entry)
                continue
            try:
                await self._take_over(workflow_id, entry)
            except (Unreadable, Rejected) as error:
                log.error("a workflow cannot be taken over", workflow_id=workflow_id, reason=str(error))
        self._seen = {workflow_id: seen for workflow_id, seen in self._seen.items() if workflow_id in leases}
        metrics.ACTIVE.set(len(self._mine))

    async def _work(self) -> None:
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("who runs workflows is not known", reason=str(error))
            await asyncio.sleep(self.timing.look_s)

    async def _renew(self, workflow_id: str, mine: _Mine, entry: Entry[Lease]) -> None:
        if entry.value.holder != self.holder:
            mine.runner.lose()
            return
        if entry.value.cancel:
            mine.runner.cancel()
        if self.parts.monotonic() - mine.renewed_at < self.timing.renew_s:
            return
        renewed = replace(entry.value, beat=entry.value.beat + 1, left_s=mine.runner.left_s)
        with suppress(Conflict):  # cancelled, taken over or closed meanwhile: the next look sees which
            await self.parts.store.hold(workflow_id, renewed, entry.revision)
            mine.renewed_at = self.parts.monotonic()

    async def _take_over(self, workflow_id: str, entry: Entry[Lease]) -> None:
        """Once its lease has not changed for long enough, or was given back."""
        now_s = self.parts.monotonic()
        seen = self._seen.get(workflow_id)
        if seen is None or seen[0] != entry.revision:
            seen = self._seen[workflow_id] = (entry.revision, now_s)
        silent_s = now_s - seen[1]
        if (entry.value.holder and silent_s < self.timing.takeover_s) or len(self._mine) >= MOST:
            return
        lease = replace(entry.value, holder=self.holder, beat=entry.value.beat + 1)
        with suppress(Conflict):  # another process was faster
            await self.parts.store.hold(workflow_id, lease, entry.revision)
            log.info("takes a workflow over", workflow_id=workflow_id)
            await self._go_on(workflow_id, lease, max(0.0, entry.value.left_s - silent_s))

    async def _go_on(self, workflow_id: str, lease: Lease, left_s: float) -> None:
        """Run a workflow whose lease this process has just got."""
        entry = await self.parts.store.get(workflow_id)
        if entry is None or entry.value.closed:
            await self.parts.store.close(workflow_id)
            return
        workflow = taken_over(entry.value, self.holder, left_s)
        revision = entry.revision
        if workflow != entry.value:
            revision = await self.parts.store.update(workflow, revision)
            warn_of_budget(entry.value, workflow)
        held = Held(self.parts.store, workflow, revision, self.parts.monotonic)
        runner = Runner(self.parts, held)
        if lease.cancel:
            runner.cancel()
        task = asyncio.create_task(runner.run(), name=f"workflow {workflow_id}")
        task.add_done_callback(_log_failure)
        self._mine[workflow_id] = _Mine(runner, task, self.parts.monotonic())

    async def _give_back(self) -> None:
        mine = {workflow_id: each for workflow_id, each in self._mine.items() if not each.task.done()}
        await end(*(each.task for each in mine.values()))
        for workflow_id, each in mine.items():
            with suppress(Conflict, Unavailable):
                entry = await self.parts.store.lease(workflow_id)
                if entry is not None and entry.value.holder == self.holder:
                    freed = replace(entry.value, holder="", left_s=each.runner.left_s)
                    await self.parts.store.hold(workflow_id, freed, entry.revision)


def _log_failure(task: asyncio.Task[None]) -> None:
    """A runner that failed gives its workflow up: its lease lapses, and it is taken over."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a workflow's runner failed", workflow=task.get_name(), error=type(error).__name__, reason=str(error))
