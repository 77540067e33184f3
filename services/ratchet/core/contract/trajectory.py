"""The runs of agents: trajectories of turns as agents report them, and the end of a trajectory that the gateway saw."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import ClassVar

import msgspec

from ratchet.bus.message import JsonObject, Message, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject


class PolicyClaim(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The policy that answered. In an agent's message a claim; in a turn a fact."""

    role: str
    version: int
    digest: str
    arm: str
    """`stable`, `canary`, `pinned` (asked for by name) or `mixed` (the arm changed in flight)."""
    weight: float
    """Canary weight at the trajectory's draw, 0..1."""


class ObservationContext(Value, frozen=True, kw_only=True, omit_defaults=True):
    memory_state: JsonObject | None = None
    available_tools: list[str] | None = None
    subordinates_active: int | None = None


class Observation(Value, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    content: str | JsonObject | list[JsonObject]
    context: ObservationContext | None = None


class Action(Value, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    tool_name: str | None = None
    tool_args: JsonObject | None = None
    raw_response: str | None = None


class TurnResult(Value, frozen=True, kw_only=True, omit_defaults=True):
    success: bool
    output: str | JsonObject | None = None
    error: str | None = None
    execution_time_ms: float | None = None


class TrajectoryTurn(Value, frozen=True, kw_only=True, omit_defaults=True):
    turn_id: int
    timestamp: datetime
    observation: Observation
    action: Action
    result: TurnResult
    thought_process: list[str] | None = None
    turn_ref: str | None = None
    """Id of the model call (`turn`) behind this entry; entries of one call share it (parallel tool calls)."""
    reward: float | None = None


class TaskContext(Value, frozen=True, kw_only=True, omit_defaults=True):
    task_id: str
    instructions: str
    """The agent's system prompt."""
    complexity_score: float | None = None
    domain: str | None = None
    group_key: str | None = None
    """Same task, several tries: trajectories that share it form a group."""
    tools: list[JsonObject] | None = None
    """The tools offered, in OpenAI's form."""


class TrajectoryMetadata(Value, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    temperature: float | None = None
    total_tokens: int | None = None
    total_cost_usd: float | None = None
    source: str | None = None
    """`client`, `assembled` (by the collector from turns) or `import:<format>`."""
    error: str | None = None
    """What ended a run of which no call was answered, or whose last call failed."""
    reported_at: datetime | None = None
    """When the stream stored the end from which the collector assembled it; None where no end was reported."""


class Outcome(Value, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    """`success`, `partial` or `failure`."""
    completion_percentage: float | None = None
    """0..100."""
    score: float | None = None
    verified_by: str | None = None
    """The checker (`environment`, `human`, ...); absent when the agent reports on itself."""
    inferred_from: str | None = None
    """`error`, or the tool that hands in a result: what the collector inferred it from. A report takes its place."""


class Quality(Value, frozen=True, kw_only=True, omit_defaults=True):
    lint_score: float | None = None
    """0..10."""
    tests_passed: int | None = None
    tests_total: int | None = None
    critical_issues: int | None = None


class Trajectory(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One run of an agent on a task."""

    TOPIC: ClassVar[str] = "agent.rl.trajectory.v1"

    trajectory_id: str
    session_id: str
    agent_id: str
    start_timestamp: datetime
    end_timestamp: datetime
    turns: list[TrajectoryTurn]
    task_context: TaskContext
    metadata: TrajectoryMetadata
    role: str = DEFAULT_ROLE
    subordinate_profile: str | None = None
    user_ref: str | None = None
    outcome: Outcome | None = None
    policy: PolicyClaim | None = None
    quality: Quality | None = None
    parent_trajectory_id: str | None = None
    recorded_as: str | None = None
    """Id under which the gateway recorded the calls, where it is another: one run may hold several conversations."""
    labels: JsonObject | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        """A trajectory may run in several roles: each has its own."""
        return named_id(self.TOPIC, self.role, self.trajectory_id)

    @property
    def repetition_id(self) -> str:
        """See `_repetition_id`."""
        return _repetition_id(self)


class TrajectoryEnd(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A trajectory that the gateway carried is over; the collector assembles it from its turns.

    It lies in their stream, behind them, and says how many they are: a collector that has not yet read one of them
    waits, and assembles nothing that is cut off.
    """

    TOPIC: ClassVar[str] = "agent.rl.trajectory.end.v1"

    trajectory_id: str
    timestamp: datetime
    role: str = DEFAULT_ROLE
    session_id: str | None = None
    agent_id: str | None = None
    user_ref: str | None = None
    subordinate_profile: str | None = None
    parent_trajectory_id: str | None = None
    turns: int | None = None
    """The number of turns that the gateway saw, if it still knows: assembly waits until they are stored."""
    outcome: Outcome | None = None
    quality: Quality | None = None
    task_context: TaskContext | None = None
    labels: JsonObject | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

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
