"""Workflows over HTTP: to run them, to follow them, and the registry of workers.

    POST /v1/workflows                  WorkflowIn -> WorkflowOut
    GET  /v1/workflows                  WorkflowsOut
    GET  /v1/workflows/{id}             WorkflowOut; .../events sends it as server-sent events
    POST /v1/workflows/{id}/cancel      WorkflowOut
    GET  /v1/workers                    WorkersOut; /v1/workers/{name} is a WorkerOut
    POST /v1/workers                    Worker -> WorkerOut: adds it, or replaces the worker of that name
    POST /v1/workers/{name}/remove      WorkerOut, as it was

and of the coordinator, `GET /v1/workflows/executions?role=&after=&limit=`: ExecutionsOut.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import Role, Text, listed
from ratchet.core.contract.workflows import PLANNER_ROLE, WORKFLOW_STATES, Plan, SubTaskRun, Worker, WorkerMeasures

AUTO = "auto"
LONGEST_INSTRUCTION = 20_000
"""Characters of an instruction."""


class WorkflowIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workflow to run."""

    instruction: Annotated[str, Meta(min_length=1, max_length=LONGEST_INSTRUCTION)]
    role: Role = PLANNER_ROLE
    """The planner's role."""
    policy: Text = AUTO
    """A planner's version by name, such as `planner@3`; `auto`: whichever the role's route gives."""
    inputs: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Texts by name that sub-tasks without predecessors get; 1 MB together."""
    budget_usd: Annotated[float, Meta(gt=0)] = 1.0
    deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    user: Text | None = None
    """The end user, whom calls name to the gateway; what stays is a keyed hash."""
    session: Text | None = None
    workflow_id: str | None = None
    """A UUID of version 7 of your own: the same one again starts nothing, and answers with the workflow that has it; it
    is refused with another instruction or other inputs."""


class SubTaskOut(Answer, frozen=True, kw_only=True):
    """A sub-task as it stands."""

    index: int
    state: Annotated[str, listed("waiting", "running", "succeeded", "failed", "skipped", "cancelled")]
    worker: str | None = None
    """Null until it was chosen."""
    run: SubTaskRun | None = None
    """Null until the sub-task is over."""
    output: str | None = None


class WorkflowOut(Answer, frozen=True, kw_only=True):
    """A workflow as it stands."""

    workflow_id: str
    role: str
    policy: str | None
    """Name of the planner's policy; null until the arm was drawn."""
    arm: str | None
    state: Annotated[str, listed(*WORKFLOW_STATES)]
    instruction: str
    plan: Plan | None
    sub_tasks: list[SubTaskOut]
    budget_usd: float
    cost_usd: float
    reserved_usd: float
    """For calls under way. What was reserved for calls in flight when a runner was killed stays spent: it is part of
    the cost."""
    warning: str | None
    """Such as: 80 % of the budget is spent."""
    error: str | None
    result: str | None
    created_at: Instant
    ended_at: Instant | None
    deadline_at: Instant


class WorkflowsOut(Answer, frozen=True, kw_only=True):
    """Workflows of the last day, the newest first."""

    workflows: list[WorkflowOut]
    """At most 200, without plans, sub-tasks and results."""


class WorkerOut(Answer, frozen=True, kw_only=True):
    """A worker and what was measured of it."""

    worker: Worker
    measured: WorkerMeasures | None


class WorkersOut(Answer, frozen=True, kw_only=True):
    """The registry of workers, by name."""

    workers: list[WorkerOut]


class ExecutionsOut(Answer, frozen=True, kw_only=True):
    """Executions of a planner's role, as the message `agent.rl.workflow.execution.v1` has them, oldest first."""

    executions: list[JsonObject]
    next: str | None
    """`after` of the next page; null at the end."""
