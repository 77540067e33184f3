"""Has workers do a plan's sub-tasks: in their order, at most five at a time, and never beyond the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace as replaced

import structlog
from msgspec.structs import replace

from ratchet.bus.tasks import end
from ratchet.core.contract.workflows import Plan, Worker, WorkerOption
from ratchet.core.errors import Unavailable, Unreadable
from ratchet.core.planning.base import Choice, Planner
from ratchet.core.planning.logged import options_of
from ratchet.workflows.domain.asking import Answer, Asked, CallFailed, inputs_of, most_usd, system_of, text_of
from ratchet.workflows.domain.choosing import Known, capable, drawn
from ratchet.workflows.domain.workflow import (
    FAILED,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    WAITING,
    Inputs,
    Step,
    Workflow,
    ready,
    without_the_doomed,
)
from ratchet.workflows.held import Held
from ratchet.workflows.kv_workflows import digest_of
from ratchet.workflows.parts import Parts, new_id
from ratchet.workflows.planning import patiently

log = structlog.get_logger()

AT_ONCE = 5
"""Sub-tasks of a workflow under way at the same time."""
RETRIES = 2
"""Of a sub-task."""


class _Unable(Exception):
    """A sub-task cannot be begun; `str()` says why."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A sub-task's worker, and what it is asked."""

    worker: Worker
    options: tuple[WorkerOption, ...]
    propensity: float
    asked: Asked
    most_usd: float


class Executor:
    """Of one workflow."""

    def __init__(
        self,
        parts: Parts,
        held: Held,
        planner: Planner,
        inputs: Inputs,
        outputs: dict[int, str],
        ended: Callable[[Step], None],
    ) -> None:
        """`outputs`: of the sub-tasks that are done, by index. `ended`: takes each that is over."""
        self._parts = parts
        self._held = held
        self._planner = planner
        self._inputs = inputs
        self._outputs = outputs
        self._ended = ended
        self._first_at: dict[int, float] = {}
        """When the first call of a sub-task began, by the monotonic clock."""
        self._freed = asyncio.Event()
        """Set when a call gives back what it had reserved."""

    async def run(self) -> None:
        """Until no sub-task can go on."""
        running: dict[asyncio.Task[None], int] = {}
        try:
            while True:
                workflow = await self._held.change(without_the_doomed)
                begun = {*running.values()}
                waiting = [index for index in ready(workflow) if index not in begun]
                for index in waiting[: AT_ONCE - len(running)]:
                    running[asyncio.create_task(self._do(index))] = index
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    task.result()
        finally:
            await end(*running)

    @property
    def _plan(self) -> Plan:
        assert self._held.workflow.plan is not None  # noqa: S101 - planning comes first
        return self._held.workflow.plan

    async def _do(self, index: int) -> None:
        """One sub-task, until it is over."""
        try:
            chosen = await self._choose(index)
        except _Unable as error:
            await self._finish(index, FAILED, str(error))
            return
        again = True
        while again:
            async with self._parts.slots.of(chosen.worker):
                again = await self._reserve(index, chosen) and await self._ask(index, chosen)
            if again:
                await asyncio.sleep(self._parts.pause_s * 2 ** (self._held.workflow.steps[index].retries - 1))

    async def _choose(self, index: int) -> _Chosen:
        """The worker that the planner's selector chooses; of a sub-task that goes on, the one that was chosen."""
        workflow, plan = self._held.workflow, self._plan
        part, step = plan.sub_tasks[index], workflow.steps[index]
        known = capable(await patiently(self._parts.registry.every, "the registry"), part.task_type)
        options, name = step.options, step.worker
        text = text_of(part, inputs_of(plan, index, self._inputs.texts, self._outputs))
        if name is None:
            options = self._options(index, known, len(text))
            name = drawn(workflow.seed, index, options).worker
        worker = next((each.worker for each in known if each.worker.name == name), None)
        if worker is None:
            raise _Unable(f"the worker {name}, which was chosen for it, has left the registry")
        asked = Asked(
            task_type=part.task_type,
            text=text,
            system=system_of(workflow.instruction, plan, index),
            trajectory_id=step.trajectory_id or new_id(),
            user=self._inputs.user,
            session=workflow.session,
        )
        propensity = next(option.propensity for option in options if option.worker == name)
        return _Chosen(worker, options, propensity, asked, most_usd(worker, asked))

    def _options(self, index: int, known: Sequence[Known], chars: int) -> tuple[WorkerOption, ...]:
        """Those of the capable that take an input of so many characters: the draw is among what can be done."""
        plan = self._plan
        if not known:
            raise _Unable(f"the registry has no worker that can do {plan.sub_tasks[index].task_type}")
        able = [each for each in known if chars <= each.worker.limits.max_input_chars]
        if not able:
            most = max(known, key=lambda each: each.worker.limits.max_input_chars).worker
            raise _Unable(f"its input has {chars} characters, and {most.name} takes {most.limits.max_input_chars}")
        workers = [each.corrected for each in able]
        choice = Choice(self._held.workflow.instruction, plan, index, workers, [each.measured for each in able])
        return options_of(choice, self._planner.propensities(choice))

    async def _reserve(self, index: int, chosen: _Chosen) -> bool:
        """Set aside the most that the call may cost, as soon as the budget has room for it; False: it never will."""

        def begin(workflow: Workflow) -> Workflow:
            if not workflow.has_room(chosen.most_usd):
                return workflow
            return workflow.with_step(index, self._begun(workflow.steps[index], chosen))

        while True:
            self._freed.clear()
            workflow = await self._held.change(begin)
            if workflow.steps[index].state == RUNNING:
                return True
            if workflow.reserved_usd <= 0:
                break
            await self._freed.wait()
        left = max(0.0, workflow.budget_usd - workflow.cost_usd)
        why = f"a call of {chosen.worker.name} may cost ${chosen.most_usd:.6g}, and ${left:.6g} of the budget is left"
        step = workflow.steps[index]
        if step.retries:
            await self._finish(index, FAILED, f"{step.error}; {why}")
        else:
            await self._finish(index, SKIPPED, why, chosen)
        return False

    def _begun(self, step: Step, chosen: _Chosen) -> Step:
        return replace(
            step,
            state=RUNNING,
            options=chosen.options,
            worker=chosen.worker.name,
            propensity=chosen.propensity,
            trajectory_id=chosen.asked.trajectory_id if chosen.worker.model is not None else None,
            started_at=step.started_at or self._parts.now(),
            reserved_usd=chosen.most_usd,
        )

    async def _ask(self, index: int, chosen: _Chosen) -> bool:
        """Make the call that was reserved, and settle it. Whether it is to be made again."""
        began = self._parts.monotonic()
        first = self._first_at.setdefault(index, began - self._held.workflow.steps[index].latency_ms / 1000)
        try:
            answer = await self._parts.ask(
                chosen.worker, replaced(chosen.asked, unrecorded=self._held.workflow.unrecorded)
            )
        except CallFailed as failure:
            why, over = str(failure), self._parts.monotonic()
            cost = chosen.most_usd if failure.cost_usd is None else failure.cost_usd
            again = failure.again and self._held.workflow.steps[index].retries < RETRIES

            def failed(now: Workflow) -> Workflow:
                step = _paid(now.steps[index], cost, (over - first) * 1000, why)
                state, retries = (WAITING, step.retries + 1) if again else (FAILED, step.retries)
                return now.with_step(index, replace(step, state=state, retries=retries))

            workflow = await self._held.change(failed)
            self._freed.set()
            if not again:
                self._ended(workflow.steps[index])
            await self._note(chosen.worker, success=False, took_s=over - began, cost_usd=cost)
            return again
        over = self._parts.monotonic()
        cost = chosen.most_usd if answer.cost_usd is None else answer.cost_usd
        await self._succeed(index, answer, cost, (over - first) * 1000)
        await self._note(chosen.worker, success=True, took_s=over - began, cost_usd=cost)
        return False

    async def _succeed(self, index: int, answer: Answer, cost_usd: float, latency_ms: float) -> None:
        self._outputs[index] = answer.text
        workflow_id, digest = self._held.workflow.workflow_id, digest_of(answer.text)
        await patiently(lambda: self._parts.store.keep_output(workflow_id, index, answer.text), "an output")

        def succeeded(now: Workflow) -> Workflow:
            step = replace(
                _paid(now.steps[index], cost_usd, latency_ms, None),
                state=SUCCEEDED,
                output_digest=digest,
                output_chars=len(answer.text),
            )
            return replace(now.with_step(index, step), unrecorded=now.unrecorded or answer.unrecorded)

        workflow = await self._held.change(succeeded)
        self._freed.set()
        self._ended(workflow.steps[index])

    async def _finish(self, index: int, state: str, why: str, chosen: _Chosen | None = None) -> None:
        def finished(now: Workflow) -> Workflow:
            step = now.steps[index]
            if chosen is not None:
                step = replace(step, options=chosen.options, worker=chosen.worker.name, propensity=chosen.propensity)
            return now.with_step(index, replace(step, state=state, error=why))

        self._ended((await self._held.change(finished)).steps[index])

    async def _note(self, worker: Worker, *, success: bool, took_s: float, cost_usd: float) -> None:
        with suppress(Unavailable, Unreadable):  # one call more or less changes no mean
            await self._parts.registry.note(worker.name, success=success, latency_ms=took_s * 1000, cost_usd=cost_usd)


def _paid(step: Step, cost_usd: float, latency_ms: float, error: str | None) -> Step:
    """A call of it is over, and paid."""
    cost = step.cost_usd + max(0.0, cost_usd)
    return replace(step, reserved_usd=0.0, cost_usd=cost, latency_ms=max(0.0, latency_ms), error=error)
