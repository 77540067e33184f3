"""The runs of agents: trajectories of turns as agents report them, their start and their end as the gateway saw them.

A trajectory starts on an arm: the gateway publishes `Start` when it draws the arm, before it calls any engine.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.traces import Trace
from ratchet.core.contract.values import (
    DOMAINS,
    NULLABLE,
    PROFILES,
    Amount,
    Count,
    Ordinal,
    Percentage,
    Positive,
    Role,
    Sha256OrNone,
    Share,
    Text,
    UserRef,
    Uuid,
    listed,
    matching,
)


class PolicyClaim(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The policy that answered. In an agent's message a claim; in a turn a fact."""

    role: Role
    version: Count
    """Version number of the policy within its role; 0 for a model that is not a registered policy."""
    digest: Sha256OrNone
    """sha256 of the policy's manifest, lower-case hexadecimal; empty for a model that is not a registered policy."""
    arm: Annotated[str, listed("stable", "canary", "pinned", "mixed")]
    """`stable`, `canary`, `pinned` (asked for by name) or `mixed` (the arm changed in flight)."""
    weight: Share
    """Canary weight at the trajectory's draw, 0..1."""


class ObservationContext(Value, frozen=True, kw_only=True, omit_defaults=True):
    memory_state: JsonObject | None = None
    """What the agent held in memory, in its own form."""
    available_tools: list[str] | None = None
    """Names of the tools it could call."""
    subordinates_active: Count | None = None
    """Number of its sub-agents running."""


class Observation(Value, frozen=True, kw_only=True, omit_defaults=True):
    type: Annotated[str, listed("user_message", "tool_result", "subordinate_response", "system_message")]
    content: str | JsonObject | list[JsonObject]
    """What was seen: a text, an object, or a list of parts in OpenAI's form."""
    context: ObservationContext | None = None
    """The agent's situation at that moment."""


class Action(Value, frozen=True, kw_only=True, omit_defaults=True):
    type: Annotated[str, listed("tool_call", "subordinate_call", "response", "memory_update")]
    tool_name: str | None = None
    """Name of the tool or sub-agent called."""
    tool_args: JsonObject | None = None
    """Arguments of the call, as the agent gave them."""
    raw_response: str | None = None
    """Text of the model, verbatim."""


class TurnResult(Value, frozen=True, kw_only=True, omit_defaults=True):
    success: bool
    """Whether the action worked."""
    output: Annotated[str | JsonObject | None, NULLABLE] = None
    """What it returned: a text, an object, or nothing."""
    error: Annotated[str | None, NULLABLE] = None
    """What went wrong; null or absent when nothing did."""
    execution_time_ms: Amount | None = None
    """How long it took, in milliseconds."""


class TrajectoryTurn(Value, frozen=True, kw_only=True, omit_defaults=True):
    turn_id: Ordinal
    """Number of the turn within the trajectory, from 1."""
    timestamp: datetime
    observation: Observation
    action: Action
    result: TurnResult
    thought_process: list[str] | None = None
    """The agent's reasoning, step by step."""
    turn_ref: Uuid | None = None
    """Id of the model call (`turn`) behind this entry; entries of one call share it (parallel tool calls)."""
    reward: float | None = None
    """Dense reward of this turn, when the environment gives one."""


class TaskContext(Value, frozen=True, kw_only=True, omit_defaults=True):
    task_id: str
    instructions: str
    """The agent's system prompt."""
    complexity_score: Share | None = None
    """How hard the task is, 0 (trivial) to 1."""
    domain: Annotated[str, Meta(examples=[*DOMAINS])] | None = None
    """What kind of task this is. Open: any domain of your own."""
    group_key: str | None = None
    """Same task, several tries: trajectories that share it form a group."""
    tools: list[JsonObject] | None = None
    """The tools offered, in OpenAI's form."""


class TrajectoryMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    """Name of the model that answered."""
    temperature: Annotated[float, Meta(le=2, ge=0)] | None = None
    """Sampling temperature."""
    total_tokens: Count | None = None
    """Tokens of all calls, prompts included."""
    total_cost_usd: Amount | None = None
    """Cost of all calls, in US dollars."""
    source: Annotated[str, Meta(examples=["client", "assembled", "import:tau-bench"])] | None = None
    """`client`, `assembled` (by the collector from turns) or `import:<format>`."""
    error: str | None = None
    """What ended a run of which no call was answered, or whose last call failed."""
    reported_at: datetime | None = None
    """When the stream stored the end from which the collector assembled it; None where no end was reported. It
    counts in the collector's own messages alone."""


class Outcome(Value, frozen=True, kw_only=True, omit_defaults=True):
    status: Annotated[str, listed("success", "partial", "failure")]
    """`success`, `partial` or `failure`."""
    completion_percentage: Percentage | None = None
    """0..100."""
    score: float | None = None
    """Score given by the environment, in its own unit."""
    verified_by: Annotated[str, Meta(examples=["environment", "human", "tests"])] | None = None
    """The checker (`environment`, `human`, ...); absent when the agent reports on itself."""
    inferred_from: Text | None = None
    """`error`, or the tool that hands in a result: what the collector inferred it from. A report takes its place."""


class Quality(Value, frozen=True, kw_only=True, omit_defaults=True):
    lint_score: Annotated[float, Meta(le=10, ge=0)] | None = None
    """0..10."""
    tests_passed: Count | None = None
    """Number of tests that passed."""
    tests_total: Count | None = None
    """Number of tests that ran."""
    critical_issues: Count | None = None
    """Number of critical issues found."""


class Trajectory(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """One run of an agent on a task."""

    TOPIC: ClassVar[str] = "agent.rl.trajectory.v1"

    trajectory_id: Uuid
    session_id: str
    """Conversation or run of the host application; a sub-agent's equals its parent's."""
    agent_id: Annotated[str, Meta(examples=["agent-zero-main", "subordinate-researcher-1"])]
    start_timestamp: datetime
    """When the trajectory began."""
    end_timestamp: datetime
    """When the trajectory ended."""
    turns: Annotated[list[TrajectoryTurn], Meta(min_length=1)]
    """What happened, in order."""
    task_context: TaskContext
    """What the agent was asked to do."""
    metadata: TrajectoryMetadata
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    subordinate_profile: Annotated[Annotated[str, Meta(examples=[*PROFILES, None])] | None, NULLABLE] = None
    """Which kind of sub-agent this was; null or absent for a main agent. Open: any profile of your own."""
    user_ref: UserRef | None = None
    """Keyed hash of the end user, never the raw id: opting out and unlearning find the user's data by it."""
    outcome: Outcome | None = None
    policy: PolicyClaim | None = None
    """Which policy answered: a claim, checked against the turns."""
    quality: Quality | None = None
    """Measured quality of code that the agent wrote."""
    parent_trajectory_id: Uuid | None = None
    """Trajectory of the agent that called this sub-agent, or beside which this conversation ran."""
    recorded_as: Uuid | None = None
    """Id under which the gateway recorded the calls, where it is another: one run may hold several conversations."""
    labels: JsonObject | None = None
    """Free-form labels of your own."""
    trace: Trace | None = None
    """The span of its last call, where the collector knows that: what evaluates the trajectory belongs below it."""

    @property
    def event_id(self) -> str:
        """A trajectory may run in several roles: each has its own."""
        return named_id(self.TOPIC, self.role, self.trajectory_id)

    @property
    def repetition_id(self) -> str:
        """See `_repetition_id`."""
        return _repetition_id(self)

    @property
    def traceparent(self) -> str | None:
        return self.trace.traceparent if self.trace else None


class TrajectoryEnd(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A trajectory that the gateway carried is over; the collector assembles it from its turns.

    It lies in their stream, behind them, and says how many they are: a collector that has not yet read one of them
    waits, and assembles nothing that is cut off.
    """

    TOPIC: ClassVar[str] = "agent.rl.trajectory.end.v1"

    trajectory_id: Uuid
    timestamp: datetime
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    session_id: str | None = None
    """Conversation or run of the host application."""
    agent_id: str | None = None
    user_ref: UserRef | None = None
    """Keyed hash of the end user, never the raw id: opting out and unlearning find the user's data by it."""
    subordinate_profile: Annotated[Annotated[str, Meta(examples=[*PROFILES, None])] | None, NULLABLE] = None
    """Which kind of sub-agent this was; null or absent for a main agent. Open: any profile of your own."""
    parent_trajectory_id: Uuid | None = None
    """Trajectory of the agent that called this sub-agent."""
    turns: Count | None = None
    """The number of turns that the gateway saw, if it still knows: assembly waits until they are stored."""
    outcome: Outcome | None = None
    quality: Quality | None = None
    """Measured quality of code that the agent wrote."""
    task_context: TaskContext | None = None
    """What the agent was asked to do."""
    labels: JsonObject | None = None
    """Free-form labels of your own."""

    @property
    def event_id(self) -> str:
        """A trajectory may run in several roles: each has its own."""
        return named_id(self.TOPIC, self.role, self.trajectory_id)

    @property
    def repetition_id(self) -> str:
        """See `_repetition_id`."""
        return _repetition_id(self)


def _repetition_id(message: Trajectory | TrajectoryEnd) -> str:
    """A message with other claims has another id: an outcome that follows an end without one is no repetition of it."""
    claims = claims_digest(message)
    return named_id(message.event_id, claims) if claims else message.event_id


def claims_digest(message: Trajectory | TrajectoryEnd) -> str:
    """Digest of an agent's claims about its trajectory (outcome, quality, labels); empty when it claims nothing."""
    claims = [message.outcome, message.quality, message.labels]
    return hashlib.sha256(msgspec.json.encode(claims, order="deterministic")).hexdigest() if any(claims) else ""


class Start(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The canary's statistics take trajectories in the order in which the stream stored their starts."""

    TOPIC: ClassVar[str] = "agent.rl.start.v1"

    trajectory_id: Uuid
    """Id of the trajectory. One that several roles answer starts once in each."""
    timestamp: datetime
    """The time of the draw, by the gateway's clock. For people; no statistic uses it."""
    policy: PolicyClaim
    """The arm, the policy that serves it, and the canary weight of the draw."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    rollout_id: Uuid | None = None
    """The rollout of the canary; None without one."""
    centres: dict[str, Share] | None = None
    """By metric: the harm, 0..1, that the rollout's tests bet around, from the route at the time of the draw."""
    latency_scale_ms: Positive | None = None
    """The latency that counts as a harm of one half, from the route at the time of the draw."""
    subject_ref: Annotated[str, matching(r"^[0-9a-f]{16}$")] | None = None
    """Keyed hash of the trajectory's subject: of its user, else its session, as its first call named them. Absent
    where that named neither: then the trajectory is its own subject."""

    @property
    def event_id(self) -> str:
        """One start for a trajectory in a role, however often it is published."""
        return named_id("start", self.role, self.trajectory_id)
