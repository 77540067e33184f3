"""A workflow as its runner keeps it in bucket `workflows`, and how it changes.

Key `<id>` holds all of it but the texts, so that every decision is one compare-and-set: the choice of a worker, the
amount that its call may cost, and who runs the workflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec.structs import replace

from ratchet.bus.message import Value
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.values import listed
from ratchet.core.contract.workflows import (
    UNDER_WAY_STATES,
    WORKFLOW_STATES,
    Plan,
    PlannerRef,
    SubTaskRun,
    WorkerOption,
)
from ratchet.core.planning.plans import sinks

PLANNING, RUNNING, SUCCEEDED, PARTIAL, FAILED, CANCELLED = WORKFLOW_STATES
WAITING, SKIPPED = "waiting", "skipped"
UNDER_WAY = frozenset(UNDER_WAY_STATES)
WARNED_AT = 0.8
"""Share of the budget."""
SLACK_USD = 1e-9
"""Of sums of amounts."""


class Inputs(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a workflow begins with, key `<id>.inputs`; removed when it is over."""

    texts: dict[str, str]
    user: str | None = None
    """The end user as calls name it to the gateway, which hashes it."""


class Output(Value, frozen=True, kw_only=True):
    """What a sub-task's worker wrote, key `<id>.<index>`."""

    text: str


class Lease(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Who runs a workflow that is not over, key `active.<id>`."""

    holder: str
    """Id of a process; empty: none, take it."""
    beat: int = 0
    """Grows with every renewal. Others measure with their own clocks for how long it has not."""
    left_s: float = 0.0
    """Until the workflow's deadline."""
    cancel: bool = False
    """A caller has cancelled the workflow."""


class Step(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A sub-task as it stands."""

    state: Annotated[str, listed(WAITING, RUNNING, SUCCEEDED, FAILED, SKIPPED, CANCELLED)] = WAITING
    options: tuple[WorkerOption, ...] = ()
    worker: str | None = None
    """Waiting with one: it was being asked when a runner ended, and is asked again."""
    propensity: float | None = None
    trajectory_id: str | None = None
    started_at: datetime | None = None
    reserved_usd: float = 0.0
    """The most that the call under way may cost."""
    cost_usd: float = 0.0
    latency_ms: float = 0.0
    retries: int = 0
    output_digest: str | None = None
    output_chars: int = 0
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in {WAITING, RUNNING}

    def run(self) -> SubTaskRun | None:
        """As the log has it, once it is over."""
        if not self.is_over:
            return None
        return SubTaskRun(
            status=self.state,
            options=self.options,
            worker=self.worker,
            propensity=self.propensity,
            cost_usd=self.cost_usd,
            latency_ms=self.latency_ms,
            retries=self.retries,
            output_digest=self.output_digest,
            output_chars=self.output_chars,
            error=self.error,
            trajectory_id=self.trajectory_id,
            started_at=self.started_at,
        )


class Workflow(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow as it stands, key `<id>`."""

    workflow_id: str
    role: str
    instruction: str
    budget_usd: float
    deadline_s: float
    created_at: datetime
    left_s: float
    """Until the deadline, at the last change, by the runner's monotonic clock."""
    holder: str
    """The process that may change it: another one that takes it over writes itself in here first."""
    seed: str
    """Random: what its draws of workers follow from."""
    order: str = ""
    """Digest of instruction and inputs: the same id with another one is refused."""
    asked_policy: str | None = None
    user_ref: str | None = None
    session: str | None = None
    state: Annotated[str, listed(PLANNING, RUNNING, SUCCEEDED, PARTIAL, FAILED, CANCELLED)] = PLANNING
    claim: PolicyClaim | None = None
    """The planner's policy and arm, once the gateway has drawn it."""
    policy: str | None = None
    """The same policy's name."""
    planner: PlannerRef | None = None
    """None: version 0."""
    plan: Plan | None = None
    steps: tuple[Step, ...] = ()
    planning_reserved_usd: float = 0.0
    planning_cost_usd: float = 0.0
    unrecorded: bool = False
    """Nothing of it is recorded: its user has opted out, say."""
    error: str | None = None
    result: str | None = None
    ended_at: datetime | None = None
    closed: bool = False
    """Nothing is left to do for it: it is published, or cannot or must not be."""

    @property
    def is_over(self) -> bool:
        return self.state not in UNDER_WAY

    @property
    def cost_usd(self) -> float:
        return self.planning_cost_usd + sum(step.cost_usd for step in self.steps)

    @property
    def reserved_usd(self) -> float:
        return self.planning_reserved_usd + sum(step.reserved_usd for step in self.steps)

    @property
    def warning(self) -> str | None:
        if self.cost_usd < WARNED_AT * self.budget_usd:
            return None
        return f"{self.cost_usd / self.budget_usd:.0%} of the budget of ${self.budget_usd:g} is spent"

    def has_room(self, usd: float) -> bool:
        """Whether a call that costs at most `usd` keeps within the budget, whatever the calls under way cost."""
        return self.cost_usd + self.reserved_usd + usd <= self.budget_usd + SLACK_USD

    def with_step(self, index: int, step: Step) -> Workflow:
        """The same with another state of a sub-task."""
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index + 1 :]))


def planned(workflow: Workflow, plan: Plan) -> Workflow:
    """It has its plan."""
    return replace(workflow, plan=plan, state=RUNNING, steps=(Step(),) * len(plan.sub_tasks))


def taken_over(workflow: Workflow, holder: str, left_s: float) -> Workflow:
    """Another process goes on with it. What was reserved for calls in flight stays spent; they are asked again."""
    steps = tuple(
        replace(step, state=WAITING, cost_usd=step.cost_usd + step.reserved_usd, reserved_usd=0.0)
        if step.state == RUNNING
        else step
        for step in workflow.steps
    )
    return replace(
        workflow,
        holder=holder,
        left_s=min(workflow.left_s, left_s),
        steps=steps,
        planning_cost_usd=workflow.planning_cost_usd + workflow.planning_reserved_usd,
        planning_reserved_usd=0.0,
    )


def ready(workflow: Workflow) -> list[int]:
    """Sub-tasks that wait for nothing any more, in their order."""
    assert workflow.plan is not None  # noqa: S101 - a workflow with steps has a plan
    return [
        index
        for index, (part, step) in enumerate(zip(workflow.plan.sub_tasks, workflow.steps, strict=True))
        if step.state == WAITING and all(workflow.steps[before].state == SUCCEEDED for before in part.depends_on)
    ]


def without_the_doomed(workflow: Workflow) -> Workflow:
    """Those that depend on one that did not succeed are skipped."""
    assert workflow.plan is not None  # noqa: S101 - a workflow with steps has a plan
    for index, part in enumerate(workflow.plan.sub_tasks):
        lost = [at for at in part.depends_on if workflow.steps[at].is_over and workflow.steps[at].state != SUCCEEDED]
        if workflow.steps[index].state == WAITING and lost:
            state = workflow.steps[lost[0]].state
            why = f"sub-task {lost[0]}, which it depends on, {'failed' if state == FAILED else f'was {state}'}"
            skipped = replace(workflow.steps[index], state=SKIPPED, error=why)
            workflow = workflow.with_step(index, skipped)
    return workflow


def stopped(workflow: Workflow, why: str, *, cancelled: bool) -> Workflow:
    """Nothing of it goes on: what was reserved for calls under way stays spent."""
    for index, step in enumerate(workflow.steps):
        if not step.is_over:
            asked = step.state == RUNNING or step.started_at is not None
            state = CANCELLED if cancelled else FAILED if asked else SKIPPED
            spent = step.cost_usd + step.reserved_usd
            over = replace(step, state=state, error=why, cost_usd=spent, reserved_usd=0.0)
            workflow = workflow.with_step(index, over)
    return replace(
        workflow,
        error=why,
        planning_cost_usd=workflow.planning_cost_usd + workflow.planning_reserved_usd,
        planning_reserved_usd=0.0,
    )


def closed(workflow: Workflow) -> Workflow:
    """Nothing is left to do for it. Of one that is recorded nowhere no text stays but its result."""
    if not workflow.unrecorded:
        return replace(workflow, closed=True)
    plan = workflow.plan
    if plan is not None:
        plan = replace(plan, sub_tasks=tuple(replace(part, instruction="") for part in plan.sub_tasks))
    return replace(workflow, closed=True, instruction="", plan=plan)


def outcome(plan: Plan | None, steps: Sequence[Step], *, cancelled: bool) -> str:
    """How a workflow ended."""
    if plan is None or not steps:
        return CANCELLED if cancelled else FAILED
    good = [steps[index].state == SUCCEEDED for index in sinks(plan)]
    if all(good):
        return SUCCEEDED
    if cancelled:
        return CANCELLED
    return PARTIAL if any(good) else FAILED
