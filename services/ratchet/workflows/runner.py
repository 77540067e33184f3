"""Runs one workflow: has it planned, has workers do its sub-tasks, and publishes what came of it.

Every step is written before it has an effect, and each write is a compare-and-set on the whole workflow. A runner that
was replaced meets a conflict at its next write, and ends without another call.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from ratchet.bus.tasks import end
from ratchet.core.errors import RatchetError
from ratchet.workflows import metrics
from ratchet.workflows.domain.results import call_of, execution_of, result_of, trajectory_of
from ratchet.workflows.domain.workflow import SUCCEEDED, Step, Workflow, closed, outcome, stopped
from ratchet.workflows.executing import Executor
from ratchet.workflows.held import Held, Lost
from ratchet.workflows.parts import Parts
from ratchet.workflows.planning import Planning, patiently

log = structlog.get_logger()


class Runner:
    """Of one workflow."""

    def __init__(self, parts: Parts, held: Held) -> None:
        self._parts = parts
        self._held = held
        self._outputs: dict[int, str] = {}
        self._cancelled = asyncio.Event()
        self._ends: dict[str, asyncio.Task[None]] = {}
        """By child trajectory: the request that ends it."""

    @property
    def left_s(self) -> float:
        """Until the deadline."""
        return self._held.left_s

    def cancel(self) -> None:
        """Make no further call, and end the workflow."""
        self._cancelled.set()

    def lose(self) -> None:
        """Another process runs it now."""
        self._held.lost.set()

    async def run(self) -> None:
        """Until the workflow is over and published, or another process runs it."""
        try:
            if not self._held.workflow.is_over:
                await self._work_until_over()
                metrics.count_workflow(self._held.workflow)
            await self._publish()
        except Lost:
            log.warning("another process runs the workflow", workflow_id=self._held.workflow.workflow_id)
        finally:
            await end(*self._ends.values())

    async def _work_until_over(self) -> None:
        working = asyncio.create_task(self._work())
        cancelled, lost = asyncio.create_task(self._cancelled.wait()), asyncio.create_task(self._held.lost.wait())
        problem: str | None = None
        try:
            await asyncio.wait(
                {working, cancelled, lost}, timeout=self._held.left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                problem = await self._problem_of(working)
        finally:
            await end(working, cancelled, lost)
        if self._held.lost.is_set():
            raise Lost
        if not working.cancelled():
            await self._finish(problem, cancelled=False)
        elif self._cancelled.is_set():
            await self._finish("it was cancelled", cancelled=True)
        else:
            await self._finish(f"its deadline of {self._held.workflow.deadline_s:g} s has passed", cancelled=False)

    async def _problem_of(self, working: asyncio.Task[None]) -> str | None:
        """Why the work ended before its time; None where it did not."""
        try:
            await working
        except Lost:
            raise
        except RatchetError as error:
            return str(error)
        except Exception as error:
            log.exception("a workflow broke off", workflow_id=self._held.workflow.workflow_id)
            return f"the service failed: {type(error).__name__}"
        return None

    async def _work(self) -> None:
        workflow = self._held.workflow
        inputs = await patiently(lambda: self._parts.store.inputs(workflow.workflow_id), "the inputs")
        planner = await Planning(self._parts, self._held, inputs).run()
        await self._read_outputs()
        for step in self._held.workflow.steps:
            self._end_child(step)
        await Executor(self._parts, self._held, planner, inputs, self._outputs, self._end_child).run()

    async def _read_outputs(self) -> None:
        """What sub-tasks wrote before another process took the workflow over."""
        workflow = self._held.workflow
        done = [index for index, step in enumerate(workflow.steps) if step.state == SUCCEEDED]
        missing = [index for index in done if index not in self._outputs]
        if missing:
            read = lambda: self._parts.store.outputs(workflow, missing)  # noqa: E731
            self._outputs |= await patiently(read, "outputs")

    def _end_child(self, step: Step) -> None:
        """End the trajectory of a sub-task that is over; again after a kill: the same end counts once."""
        if step.trajectory_id is None or not step.is_over or step.trajectory_id in self._ends:
            return
        success = step.state == SUCCEEDED
        ending = self._parts.gateway.end(step.trajectory_id, self._held.workflow, success=success)
        self._ends[step.trajectory_id] = asyncio.create_task(ending)

    async def _finish(self, problem: str | None, *, cancelled: bool) -> None:
        """Write how it ended."""
        ended_at = self._parts.now()

        def finished(now: Workflow) -> Workflow:
            over = now if problem is None else stopped(now, problem, cancelled=cancelled)
            state = outcome(over.plan, over.steps, cancelled=cancelled)
            return replace(over, state=state, result=result_of(over, self._outputs), ended_at=ended_at)

        await self._held.change(finished)

    async def _publish(self) -> None:
        """Publish execution and trajectory: a repetition after a kill has the same ids, and is stored once."""
        workflow = self._held.workflow
        await self._read_outputs()
        for step in workflow.steps:
            self._end_child(step)
        if not workflow.closed and not workflow.unrecorded:
            messages = [call_of(workflow), trajectory_of(workflow, self._outputs), execution_of(workflow)]
            try:
                await patiently(lambda: self._parts.publish(messages), "the broker")
            except RatchetError as error:
                metrics.UNRECORDED.labels(workflow.role).inc()
                log.error("a workflow cannot be recorded", workflow_id=workflow.workflow_id, reason=str(error))
        if self._ends:
            await asyncio.wait(self._ends.values())
        if workflow.unrecorded:
            await patiently(lambda: self._parts.store.forget(workflow), "the end of a workflow")
        await self._held.change(closed)
        await patiently(lambda: self._parts.store.close(workflow.workflow_id), "the end of a workflow")
