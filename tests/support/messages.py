"""Small plausible messages: a trajectory, its turns and its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ratchet.core.contract import JsonObject, Message, Outcome, PolicyClaim, Trajectory, TrajectoryEnd, Turn, named_id
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.contract.turn import EngineInfo, Sampling, Trainable, Usage

AT = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""An instant for messages that need one."""


def trajectory(name: str = "one", **changes: Any) -> Trajectory:
    """A successful one-turn trajectory; its ids follow from `name`."""
    entry = TrajectoryTurn(
        turn_id=1,
        timestamp=AT,
        observation=Observation(type="user_message", content="where is my order?"),
        action=Action(type="response", raw_response="It arrives today."),
        result=TurnResult(success=True),
    )
    plain = Trajectory(
        trajectory_id=named_id("trajectory", name),
        session_id=f"session-{name}",
        agent_id="agent-zero-main",
        start_timestamp=AT,
        end_timestamp=AT + timedelta(seconds=3),
        turns=[entry],
        task_context=TaskContext(task_id=f"task-{name}", instructions="Be helpful.", domain="general"),
        metadata=TrajectoryMetadata(model="gpt-4o", temperature=0.2, total_tokens=42, source="client"),
        role="support",
        outcome=Outcome(status="success", verified_by="environment"),
    )
    return msgspec.structs.replace(plain, **changes)


def turn(name: str = "one", index: int = 0, **changes: Any) -> Turn:
    """The `index`-th call of the trajectory `name`, each one continuing the one before."""
    asked: list[JsonObject] = [{"role": "user", "content": f"question {index}"}]
    if index == 0:
        asked.insert(0, {"role": "system", "content": "Be helpful."})
    plain = Turn(
        turn_id=named_id("turn", name, index),
        trajectory_id=named_id("trajectory", name),
        timestamp=AT + timedelta(seconds=index),
        index=index,
        request_digest="0" * 64,
        messages=asked,
        policy=PolicyClaim(role="support", version=1, digest="a" * 64, arm="stable", weight=0.0),
        engine=EngineInfo(name="engine_local", version="0.1.0"),
        trainable=Trainable(ok=False, reason="no_token_ids"),
        role="support",
        parent_turn_id=named_id("turn", name, index - 1) if index else None,
        response={"role": "assistant", "content": f"answer {index}"},
        sampling=Sampling(temperature=1.0),
        usage=Usage(prompt=10, completion=5),
        latency_ms=12.5,
        finish_reason="stop",
    )
    return msgspec.structs.replace(plain, **changes)


def trajectory_end(name: str = "one", **changes: Any) -> TrajectoryEnd:
    """The end of the trajectory `name`."""
    plain = TrajectoryEnd(
        trajectory_id=named_id("trajectory", name),
        timestamp=AT + timedelta(minutes=1),
        role="support",
        outcome=Outcome(status="success", verified_by="environment"),
        task_context=TaskContext(task_id=f"task-{name}", instructions="", group_key=f"group-{name}"),
    )
    return msgspec.structs.replace(plain, **changes)


def stored_at(message: Message) -> datetime:
    """When a stream stored it: not before what it reports has happened."""
    return max(AT, *(getattr(message, name, AT) for name in ("end_timestamp", "timestamp", "at")))
