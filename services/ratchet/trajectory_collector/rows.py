"""Messages as rows: the table of each topic, and the members that become its columns.

The collector writes a column that a query needs of new rows. ClickHouse computes the one that old rows need as well,
from `body` (`MATERIALIZED`, see `turns.answered` in `deploy/clickhouse/schema.sql`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from ratchet.bus.received import Received
from ratchet.core.contract import (
    Feedback,
    Message,
    ModelDeployed,
    ModelRollout,
    Preference,
    Reward,
    Spans,
    Start,
    TrainingRequest,
    TrainingStatus,
    Trajectory,
    TrajectoryEnd,
    Turn,
    WorkflowExecution,
)
from ratchet.core.contract.turn import CANCELLED
from ratchet.core.rules.task_kind import complexity_of, domain_of

Row = dict[str, Any]
"""A row by column name; `Any` because each column has its own type."""
Event = tuple[str, ...]
"""What makes an event one: the key of its row, then its id. Publishers that number their events give one id to many."""
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
"""ClickHouse has no earlier instants."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a topic's messages."""

    name: str
    columns: Callable[[Any], Row]
    """Makes the columns beside `body` from a message; `Any`: each table has a message type of its own."""
    key: tuple[str, ...] = ("role", "trajectory_id")
    """The columns, all of them text, that order the table before the event id: queries look rows up by them."""
    client_times: tuple[str, ...] = ()
    """Columns that a producer's clock sets and that order things: never later than the stream stored the message."""
    own_id: str = ""
    """The column that tells events under one key apart, also where publishers give them one event id."""

    def key_of(self, message: Message) -> tuple[str, ...]:
        """The key of the message's row."""
        return tuple(str(getattr(message, name)) for name in self.key)

    def event_of(self, received: Received[Message]) -> Event:
        """The event that the message is, by the id that its publisher gave it."""
        return (*self.key_of(received.message), received.event_id)


def row_of(table: Table, received: Received[Message], generation: str, ingested_at: datetime) -> Row:
    """The whole row of one delivery. `generation`: the generation of the stream that its sequence belongs to."""
    columns = table.columns(received.message)
    return {
        "event_id": received.event_id,
        "sequence": received.sequence,
        "generation": generation,
        **columns,
        **{name: min(max(columns[name], EARLIEST), received.time) for name in table.client_times},
        "body": received.body.decode(),
        "ingested_at": ingested_at,
        "correlation_id": received.correlation_id,
        "causation_id": received.causation_id,
    }


def members(*names: str, **columns: str) -> Callable[[Message], Row]:
    """Columns that are members of a message: under their own names, and by column those of another name or place."""
    known, read = (*names, *columns), attrgetter(*names, *columns.values())
    return lambda message: dict(zip(known, read(message), strict=True))


def trajectory_columns(m: Trajectory) -> Row:
    """Columns of `trajectories`."""
    task, meta, outcome, policy = m.task_context, m.metadata, m.outcome, m.policy
    return {
        "trajectory_id": m.trajectory_id,
        "role": m.role,
        "session_id": m.session_id,
        "agent_id": m.agent_id,
        "subordinate_profile": m.subordinate_profile,
        "parent_trajectory_id": m.parent_trajectory_id,
        "recorded_as": m.recorded_as or m.trajectory_id,
        "user_ref": m.user_ref,
        "task_id": task.task_id,
        "group_key": task.group_key,
        "domain": domain_of(m),
        "complexity_score": complexity_of(m),
        "model": meta.model,
        "source": meta.source or "client",
        "temperature": meta.temperature,
        "total_tokens": meta.total_tokens,
        "total_cost_usd": meta.total_cost_usd,
        "turn_count": len(m.turns),
        "outcome": outcome.status if outcome else None,
        "completion_percentage": outcome.completion_percentage if outcome else None,
        "score": outcome.score if outcome else None,
        "verified_by": outcome.verified_by if outcome else None,
        "policy_version": policy.version if policy else None,
        "policy_digest": policy.digest if policy else None,
        "arm": policy.arm if policy else None,
        "started_at": m.start_timestamp,
        "ended_at": m.end_timestamp,
        "superseded_by": 0,
    }


def end_columns(m: TrajectoryEnd) -> Row:
    """Columns of `trajectory_ends`."""
    return {
        "trajectory_id": m.trajectory_id,
        "role": m.role,
        "turn_count": m.turns,
        "outcome": m.outcome.status if m.outcome else None,
        "at": m.timestamp,
    }


def turn_columns(m: Turn) -> Row:
    """Columns of `turns`."""
    return {
        "turn_id": m.turn_id,
        "trajectory_id": m.trajectory_id,
        "role": m.role,
        "turn_index": m.index,
        "attempt": m.attempt,
        "parent_turn_id": m.parent_turn_id,
        "policy_version": m.policy.version,
        "policy_digest": m.policy.digest,
        "arm": m.policy.arm,
        "weight": m.policy.weight,
        "trainable": m.trainable.ok,
        "reason": m.trainable.reason,
        "prompt_tokens": m.usage.prompt if m.usage else None,
        "completion_tokens": m.usage.completion if m.usage else None,
        "cached_tokens": m.usage.cached if m.usage else None,
        "reasoning_tokens": m.usage.reasoning if m.usage else None,
        "cost_usd": m.cost_usd,
        "api": m.api or "",
        "trajectory_by": m.trajectory_by or "",
        "trajectory_name": m.trajectory_name or "",
        "key_id": m.key_id or "",
        "trace_id": m.trace.trace_id if m.trace else "",
        "provider_model": (m.provider.model if m.provider else None) or "",
        "latency_ms": m.latency_ms,
        "first_token_ms": m.first_token_ms,
        "finish_reason": m.finish_reason,
        "error": m.error,
        "at": m.timestamp,
    }


def call_of(turn: Row) -> Row:
    """The row of `calls` that belongs to a row of `turns`."""
    kept = ("event_id", "trajectory_id", "role", "at", "policy_version", "arm", "api", "key_id", "cost_usd")
    return {
        **{name: turn[name] for name in (*kept, "latency_ms", "first_token_ms", "ingested_at")},
        "model": turn["provider_model"],
        "failed": turn["error"] is not None,
        "cancelled": turn["finish_reason"] == CANCELLED,
        "prompt_tokens": turn["prompt_tokens"] or 0,
        "cached_tokens": turn["cached_tokens"] or 0,
        "completion_tokens": turn["completion_tokens"] or 0,
        "reasoning_tokens": turn["reasoning_tokens"] or 0,
    }


def span_columns(m: Spans) -> Row:
    """Columns of `spans`."""
    return {
        "trace_id": m.trace_id,
        "role": m.role,
        "service": m.service,
        "key_id": m.key_id or "",
        "span_count": len(m.spans),
        "call_count": m.calls,
        "evaluation_count": m.evaluations,
        "has_root": m.has_root,
        "has_entry": m.has_entry,
    }


def reward_columns(m: Reward) -> Row:
    """Columns of `rewards`."""
    return {
        "reward_id": m.reward_id,
        "trajectory_id": m.trajectory_id,
        "role": m.role,
        "revision": m.revision,
        "function_name": m.reward_function.name if m.reward_function else "",
        "function_version": m.reward_function.version if m.reward_function else "",
        "total": m.total_reward,
        "components": {name: part.score for name, part in m.reward_components.items() if part.applicable},
        "confidence": m.metadata.confidence,
        "at": m.timestamp,
    }


def training_status_columns(m: TrainingStatus) -> Row:
    """Columns of `training_statuses`."""
    current = m.metrics.current if m.metrics else None
    return {
        "training_job_id": m.training_job_id,
        "role": m.role,
        "attempt": m.attempt,
        "status": m.status,
        "step": m.progress.current_step if m.progress else None,
        "loss": current.loss if current else None,
        "at": m.timestamp,
    }


TABLES: Mapping[str, Table] = {
    Trajectory.TOPIC: Table("trajectories", trajectory_columns, client_times=("started_at", "ended_at")),
    Start.TOPIC: Table(
        "starts",
        members(
            *("trajectory_id", "role", "rollout_id", "latency_scale_ms"),
            policy_version="policy.version",
            policy_digest="policy.digest",
            arm="policy.arm",
            weight="policy.weight",
            at="timestamp",
        ),
    ),
    Turn.TOPIC: Table("turns", turn_columns, client_times=("at",)),
    TrajectoryEnd.TOPIC: Table("trajectory_ends", end_columns),
    Spans.TOPIC: Table("spans", span_columns, ("role", "trace_id")),
    Reward.TOPIC: Table("rewards", reward_columns),
    Feedback.TOPIC: Table(
        "feedback",
        members("feedback_id", "trajectory_id", "role", "kind", "rater", "source", "at"),
        client_times=("at",),
        own_id="feedback_id",
    ),
    Preference.TOPIC: Table(
        "preferences",
        members("preference_id", "role", "source", "rater", "confidence", "domain"),
        ("role", "preference_id"),
    ),
    WorkflowExecution.TOPIC: Table(
        "workflow_executions",
        members(
            *("workflow_id", "role", "status", "success", "cost_usd", "latency_ms", "started_at"),
            policy_version="policy.version",
            policy_digest="policy.digest",
            arm="policy.arm",
            at="timestamp",
        ),
        ("role", "workflow_id"),
        client_times=("started_at", "at"),
    ),
    TrainingRequest.TOPIC: Table(
        "training_requests",
        members(
            *("training_job_id", "role", "requester", "trigger_reason"),
            algorithm="training_config.algorithm",
            at="timestamp",
        ),
        ("role", "training_job_id"),
    ),
    TrainingStatus.TOPIC: Table("training_statuses", training_status_columns, ("training_job_id",)),
    ModelDeployed.TOPIC: Table(
        "deployments",
        members(
            *("deployment_id", "training_job_id", "role", "state", "policy_version", "reason"),
            traffic_percentage="deployment_config.traffic_percentage",
            at="timestamp",
        ),
        ("role",),
    ),
    ModelRollout.TOPIC: Table(
        "rollouts",
        members(
            *("rollout_id", "role", "from_version", "to_version", "verdict", "reason", "actor"),
            decision="sequence",
            stage="stage.index",
            weight="stage.weight",
            at="timestamp",
        ),
        ("role", "rollout_id"),
    ),
}
"""Topic -> table. A new fact is one entry here and one table in deploy/clickhouse."""
