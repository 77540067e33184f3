"""Executions: every run of a workflow as one flat record, failures too, for logs and spreadsheets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract import JsonObject, Reward, Trajectory, Turn, decode
from ratchet.core.contract.trajectory import TrajectoryTurn
from ratchet.core.rules.chat import text_of
from ratchet.core.rules.task_kind import domain_of
from ratchet.extras.exporters.base import REWARDED, Kind, Record

Content = str | JsonObject | list[JsonObject] | None
"""Text or JSON of a message or a result."""


def record(body: bytes, reward: Reward | None) -> Record:
    """Instruction, plan, result and cost of one run.

    `success` is null where no program and no person reported an outcome; a partial success counts as false
    (`status` says `partial`).
    """
    trajectory = decode(body, Trajectory)
    task, outcome = trajectory.task_context, trajectory.outcome
    spent = trajectory.end_timestamp - trajectory.start_timestamp
    return {
        "timestamp": trajectory.start_timestamp,
        "instruction": task.instructions,
        "request": _asked(trajectory.turns[0].observation.content),
        "success": outcome.status == "success" if outcome else None,
        "status": outcome.status if outcome else None,
        "verified_by": outcome.verified_by if outcome else None,
        "cost": trajectory.metadata.total_cost_usd,
        "latency_ms": spent.total_seconds() * 1000,
        # An answer without a thought decides nothing: it is the result.
        "plan": [step(turn) for turn in trajectory.turns if turn.action.type != "response" or turn.thought_process],
        "result": result_of(trajectory.turns),
        "error": next((turn.result.error for turn in reversed(trajectory.turns) if turn.result.error), None),
        "reward": reward.total_reward if reward else None,
        "total_tokens": trajectory.metadata.total_tokens,
        "model": trajectory.metadata.model,
        "trajectory_id": trajectory.trajectory_id,
        "parent_trajectory_id": trajectory.parent_trajectory_id,
        "role": trajectory.role,
        "agent_id": trajectory.agent_id,
        "session_id": trajectory.session_id,
        "task_id": task.task_id,
        "domain": domain_of(trajectory),
        "source": trajectory.metadata.source,
    }


def unanswered(first_body: bytes, last_body: bytes) -> Record:
    """A run without an answered call: it failed and never became a trajectory.

    A call that its agent cancelled has no error; its finish reason says so.
    """
    first, last = decode(first_body, Turn), decode(last_body, Turn)
    system = next(
        (text_of(message.get("content")) for message in first.messages if message.get("role") == "system"), ""
    )
    spent = last.timestamp - first.timestamp
    return {
        "timestamp": first.timestamp,
        "instruction": system,
        "request": _asked({"messages": first.messages}),
        "success": False,
        "status": "failure",
        "verified_by": "gateway",
        "cost": None,
        "latency_ms": spent.total_seconds() * 1000 + (last.latency_ms or 0.0),
        "plan": [],
        "result": None,
        "error": last.error or last.finish_reason,
        "reward": None,
        "total_tokens": None,
        "model": f"{first.policy.role}@{first.policy.version}",
        "trajectory_id": first.trajectory_id,
        "parent_trajectory_id": None,
        "role": first.role,
        "agent_id": first.agent_id,
        "session_id": first.session_id,
        "task_id": first.trajectory_id,
        "domain": None,
        "source": "turns",
    }


def step(turn: TrajectoryTurn) -> JsonObject:
    """One decision: the thought, the call and its outcome."""
    made: JsonObject = {
        "step": turn.turn_id,
        "thoughts": turn.thought_process,
        "action": turn.action.type,
        "tool": turn.action.tool_name,
        "arguments": turn.action.tool_args,
        "success": turn.result.success,
        "error": turn.result.error,
    }
    return {name: value for name, value in made.items() if value is not None}


def result_of(turns: Sequence[TrajectoryTurn]) -> Content:
    """The last answer; what came out of the last action where the agent never answered."""
    answers = [turn for turn in turns if turn.action.type == "response"]
    if not answers:
        return turns[-1].result.output
    last = answers[-1]
    if last.action.raw_response is not None:
        return last.action.raw_response
    written: object = (last.action.tool_args or {}).get("text")
    return written if isinstance(written, str) else last.result.output


def _asked(content: Content) -> Content:
    """What the user asked first: text, the text of parts, the first user message of a spelt-out beginning, else all."""
    if isinstance(content, list):
        return text_of(content)
    if not isinstance(content, dict):
        return content
    messages: list[JsonObject] = content.get("messages") or []
    return next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), content)


EXECUTIONS = Kind(
    summary=(
        "Every run as one flat record: timestamp, instruction, success, cost, latency_ms, plan, result; failures too."
    ),
    table="trajectories",
    time="ended_at",
    key="trajectory_id",
    worth=REWARDED,
    rewarded=True,
    record=record,
    unanswered=unanswered,
    columns={
        "timestamp": "time",
        "instruction": "text",
        "request": "json",
        "success": "flag",
        "status": "text",
        "verified_by": "text",
        "cost": "number",
        "latency_ms": "number",
        "plan": "json",
        "result": "json",
        "error": "text",
        "reward": "number",
        "total_tokens": "integer",
        "model": "text",
        "trajectory_id": "text",
        "parent_trajectory_id": "text",
        "role": "text",
        "agent_id": "text",
        "session_id": "text",
        "task_id": "text",
        "domain": "text",
        "source": "text",
    },
)
