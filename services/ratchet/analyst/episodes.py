"""An episode: a trajectory and all that is known of it, as one record. Pure.

Texts are shortened, and lists as well: who wants all of it asks for the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.contract.http.analyst import EpisodeOut
from ratchet.core.contract.trajectory import TrajectoryTurn
from ratchet.core.rules.task_kind import complexity_of
from ratchet.core.stores.trajectories import Branch

LETTERS = 2_000
"""Of a text."""
MEMBERS = 200
"""Turns, and members of an object or a list."""
DEEP = 8
"""Levels of an object; what lies deeper is left out."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is stored of a trajectory that is over."""

    trajectory: Trajectory
    calls: Sequence[Mapping[str, Any]]
    """Facts of its calls, where the gateway carried them: `prompt_tokens`, `completion_tokens`, `cost_usd`, `error`."""
    rewards: Sequence[Reward]
    feedback: Sequence[Feedback]
    run: Sequence[Branch]
    """The trajectories that it is linked with, parents first; empty for a single one."""


def episode_of(known: Known, suggestions: Iterable[str]) -> EpisodeOut:
    """The record. `suggestions`: advice of the open patterns that it matches."""
    trajectory = known.trajectory
    turns = trajectory.turns[:MEMBERS]
    return EpisodeOut(
        episode_id=trajectory.trajectory_id,
        role=trajectory.role,
        episode_type=trajectory.task_context.domain or "general",
        started_at=trajectory.start_timestamp,
        ended_at=trajectory.end_timestamp,
        context=_context(trajectory),
        actions=[_action(turn) for turn in turns],
        decisions=[_decision(turn) for turn in turns],
        communication=_communication(known.run),
        resources=_resources(trajectory, known.calls),
        outcome=_object(trajectory.outcome) if trajectory.outcome else None,
        rewards=[msgspec.convert(_object(reward), Reward) for reward in known.rewards],
        feedback=[msgspec.convert(_object(opinion), Feedback) for opinion in known.feedback],
        errors=_errors(known),
        tags=_tags(trajectory),
        suggestions=list(dict.fromkeys(suggestions)),
    )


def _context(trajectory: Trajectory) -> JsonObject:
    task = _object(trajectory.task_context)
    context: JsonObject = {**task, "complexity_score": complexity_of(trajectory), "agent_id": trajectory.agent_id}
    if trajectory.labels:
        context["labels"] = shortened(trajectory.labels)
    return context


def _action(turn: TrajectoryTurn) -> JsonObject:
    return {
        "turn": turn.turn_id,
        "type": turn.action.type,
        "tool": turn.action.tool_name and turn.action.tool_name[:LETTERS],
        "arguments": shortened(turn.action.tool_args),
        "success": turn.result.success,
        "error": turn.result.error and turn.result.error[:LETTERS],
        "time_ms": turn.result.execution_time_ms,
    }


def _decision(turn: TrajectoryTurn) -> JsonObject:
    chosen = turn.action.tool_name or turn.action.raw_response or turn.action.type
    return {"turn": turn.turn_id, "reasoning": shortened(turn.thought_process or []), "chosen": chosen[:LETTERS]}


def _communication(run: Sequence[Branch]) -> list[JsonObject]:
    """Who asked whom, of all of the run: an agent is asked by the one above it in the tree."""
    above: list[Branch] = []
    calls: list[JsonObject] = []
    for branch in run:
        del above[branch.depth :]
        if above:
            calls.append(
                {
                    "from": above[-1].agent_id,
                    "to": branch.agent_id,
                    "role": branch.role,
                    "trajectory_id": branch.trajectory_id,
                    "calls": branch.turns,
                    "outcome": branch.outcome,
                }
            )
        above.append(branch)
    return calls


def _resources(trajectory: Trajectory, calls: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Of the calls where the gateway saw them, else as the agent reported. Null: unknown."""
    reported = trajectory.metadata
    tokens = [call[name] or 0 for call in calls for name in ("prompt_tokens", "completion_tokens")]
    costs = [call["cost_usd"] for call in calls if call["cost_usd"] is not None]
    took = trajectory.end_timestamp - trajectory.start_timestamp
    return {
        "tokens": sum(tokens) if calls else reported.total_tokens,
        "cost_usd": sum(costs) if costs else reported.total_cost_usd,
        "seconds": max(0.0, took.total_seconds()),
        "calls": len(calls) or len({turn.turn_ref or str(turn.turn_id) for turn in trajectory.turns}),
        "models": sorted({str(call["provider_model"]) for call in calls if call["provider_model"]} or {reported.model}),
    }


def _errors(known: Known) -> list[str]:
    """Each once: of the run, of its calls, of what its actions gave."""
    errors = [
        known.trajectory.metadata.error,
        *(call["error"] for call in known.calls),
        *(turn.result.error or ("" if turn.result.success else "failed") for turn in known.trajectory.turns),
    ]
    return list(dict.fromkeys(error[:LETTERS] for error in errors if error))[:MEMBERS]


def _tags(trajectory: Trajectory) -> list[str]:
    policy = trajectory.policy
    labels = [f"{name}={value}" for name, value in (trajectory.labels or {}).items() if isinstance(value, str | int)]
    tags = [
        f"outcome={trajectory.outcome.status if trajectory.outcome else 'unknown'}",
        *([f"policy={policy.role}@{policy.version}", f"arm={policy.arm}"] if policy else []),
        *([f"profile={trajectory.subordinate_profile}"] if trajectory.subordinate_profile else []),
        *labels,
    ]
    return [tag[:MEMBERS] for tag in tags[:MEMBERS]]


def _object(value: msgspec.Struct) -> JsonObject:
    return cast("JsonObject", shortened(msgspec.to_builtins(value)))


def shortened(value: object, levels: int = DEEP) -> object:
    """JSON with shortened texts, lists and objects."""
    if isinstance(value, str):
        return value[:LETTERS]
    if not isinstance(value, list | dict):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [shortened(member, levels - 1) for member in cast("Sequence[object]", value)[:MEMBERS]]
    members = [*cast("Mapping[str, object]", value).items()][:MEMBERS]
    return {name[:LETTERS]: shortened(member, levels - 1) for name, member in members}
