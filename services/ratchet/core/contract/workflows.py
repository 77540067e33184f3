"""Workflows: an instruction as a graph of sub-tasks, each done by a worker, and the log that planners learn from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from ratchet.bus.message import Value, named_id
from ratchet.core.contract.roles import RoleMessage
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.values import (
    Amount,
    Count,
    Ordinal,
    Positive,
    Role,
    Sha256,
    Share,
    Text,
    UserRef,
    Uuid,
    listed,
    matching,
)

TASK_TYPES = (
    "text_extraction",
    "summarization",
    "generation",
    "translation",
    "analysis",
    "classification",
    "visualization",
    "code",
    "transcription",
    "planning",
)
"""What a sub-task is, in the order in which planners number them; a planner's file has its own copy."""
MODEL_TYPES = ("llm", "vision", "audio", "code", "document", "data")
"""What a worker is."""
MOST_SUB_TASKS = 20
"""Sub-tasks of a plan: more than ten deep or twenty wide is no plan that anybody reads."""
WORKERS, WORKFLOWS = "workers", "workflows"
"""Buckets."""
UNDER_WAY_STATES = ("planning", "running")
ENDED_STATES = ("succeeded", "partial", "failed", "cancelled")
WORKFLOW_STATES = (*UNDER_WAY_STATES, *ENDED_STATES)
PLANNER_ROLE = "planner"
"""The role of planners where a workflow names none."""

TaskType = Annotated[str, listed(*TASK_TYPES)]
WorkerName = Annotated[str, matching(r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class WorkerLimits(Value, frozen=True, kw_only=True, omit_defaults=True):
    max_output_tokens: Ordinal = 1024
    """Most tokens of an answer: what a call reserves of the budget follows from it."""
    max_input_chars: Ordinal = 100_000
    """A longer input is refused before the call."""
    at_once: Ordinal = 4
    """Calls under way at the same time, of one workflow service."""
    timeout_s: Positive = 60.0


class Worker(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What does sub-tasks, key `<name>` in bucket `workers`. It names one of `model` and `url`."""

    name: WorkerName
    model_type: Annotated[str, listed(*MODEL_TYPES)]
    capabilities: Annotated[tuple[TaskType, ...], Meta(min_length=1)]
    """The types of sub-tasks that it can do."""
    model: Text | None = None
    """What the gateway is asked for: a role, a policy, or `UPSTREAM/MODEL`."""
    url: Annotated[str, matching(r"^https?://")] | None = None
    """Of an HTTP tool: gets `{"task_type", "input"}` as JSON, and answers `{"output": TEXT}`."""
    cost_per_token: Amount
    """US dollars a token of prompt or answer; of a tool, for each call. Stated also where it is 0: without a price no
    budget bounds a worker."""
    latency_ms: Amount = 1000.0
    """Expected time of a call, until it was measured."""
    limits: WorkerLimits = WorkerLimits()


class WorkerMeasures(Value, frozen=True, kw_only=True):
    """What a worker's calls were like: exponential means with the weight 1/min(calls, 100) of the newest call."""

    calls: Count
    success: Share
    latency_ms: Amount
    cost_usd: Amount
    """Of a call."""


class WorkerOption(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A worker that could have done a sub-task, as it stood in the registry then."""

    worker: WorkerName
    propensity: Share
    """Probability with which the selector chose it, its floor included; those of a sub-task add up to 1."""
    model_type: Text
    cost_per_token: Amount
    latency_ms: Amount
    success: Share | None = None
    """Of its calls until then, as measured (`WorkerMeasures`); None before any."""


class SubTask(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a plan."""

    task_type: TaskType
    instruction: str
    """What its worker is asked to do."""
    depends_on: tuple[Count, ...] = ()
    """Indices of earlier sub-tasks whose outputs it gets."""
    complexity: Share = 0.5


class Plan(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A graph of sub-tasks. Each depends on earlier ones alone, so that it has no cycle."""

    sub_tasks: Annotated[tuple[SubTask, ...], Meta(min_length=1, max_length=MOST_SUB_TASKS)]
    made_by: Annotated[str, listed("model", "llm", "single")]
    """The planner's model, the language model where that was not confident, or neither: one sub-task."""
    confidence: Share = 0.0
    """Of the planner's model: the geometric mean of the probabilities of what it chose."""


class SubTaskRun(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a sub-task."""

    status: Annotated[str, listed("succeeded", "failed", "skipped", "cancelled")]
    """`skipped`: one that it depends on failed, or the budget or deadline had no room for it."""
    options: tuple[WorkerOption, ...] = ()
    """Every capable worker; empty where none was chosen."""
    worker: WorkerName | None = None
    """The one that was chosen, once: retries ask it again."""
    propensity: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Of the choice."""
    cost_usd: Amount = 0.0
    latency_ms: Amount = 0.0
    """From the first call to the last answer, waits between retries included."""
    retries: Count = 0
    output_digest: Sha256 | None = None
    """sha256 of the output's UTF-8."""
    output_chars: Count = 0
    error: str | None = None
    """Why it did not succeed, in words."""
    trajectory_id: Uuid | None = None
    """The child trajectory with its calls; None where no call went through the gateway."""
    started_at: datetime | None = None


class WorkflowExecution(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow that ended, well or not: what was planned, who was chosen by which chance, and what it cost."""

    TOPIC: ClassVar[str] = "agent.rl.workflow.execution.v1"

    workflow_id: Uuid
    """Also the id of the parent trajectory."""
    timestamp: datetime
    """When it ended."""
    started_at: datetime
    role: Role = PLANNER_ROLE
    """The planner's role; it is published on the subject of the same role."""
    policy: PolicyClaim
    """The planner's policy, and the arm that the gateway drew."""
    instruction: str
    plan: Plan | None = None
    """None where planning failed."""
    runs: tuple[SubTaskRun, ...] = ()
    """One for each sub-task of the plan, in its order."""
    status: Annotated[str, listed(*ENDED_STATES)]
    success: bool
    """All sub-tasks that nothing depends on succeeded."""
    cost_usd: Amount
    latency_ms: Amount
    budget_usd: Amount | None = None
    planning_cost_usd: Amount = 0.0
    """Of the language model that planned; part of `cost_usd`."""
    result: str | None = None
    """Output of the sub-tasks that nothing depends on, cut at 4000 characters."""
    error: str | None = None
    user_ref: UserRef | None = None
    """Keyed hash of the end user."""
    session_id: str | None = None

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.role, self.workflow_id)


class PlannerRef(Value, frozen=True, kw_only=True):
    """A planner's file: weights, vocabularies and selector (`core.planning`)."""

    uri: Annotated[str, matching(r"^s3://")]
    """Of the blob of that digest."""
    sha256: Sha256
