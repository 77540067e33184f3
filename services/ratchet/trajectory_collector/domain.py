"""Assembling a trajectory from the turns that the gateway captured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ratchet.messages import JsonObject, PolicyClaim, Trajectory, TrajectoryEnd, Turn
from ratchet.messages.chat import assembled_turns
from ratchet.messages.trajectory import TaskContext, TrajectoryMetadata

ASSEMBLED = "assembled"
"""`metadata.source` of a trajectory that no client told, but its turns."""


def is_complete(end: TrajectoryEnd, turns: Sequence[Turn]) -> bool:
    """Whether all turns that the gateway saw are there; when it no longer knows, one is enough."""
    return len(turns) >= max(1, end.turns or 1)


def assemble(end: TrajectoryEnd, turns: Sequence[Turn]) -> Trajectory:
    """The trajectory that `turns` add up to. Raises `ChatError` when they do not.

    The policy comes from the turns and is a fact; everything that `end` says is the agent's claim.
    """
    instructions, entries = assembled_turns(turns)
    first, last = turns[0], turns[-1]
    session_id = end.session_id or first.session_id or end.trajectory_id
    return Trajectory(
        trajectory_id=end.trajectory_id,
        session_id=session_id,
        agent_id=end.agent_id or first.agent_id or "unknown",
        start_timestamp=first.timestamp,
        end_timestamp=max(last.timestamp, end.timestamp),
        turns=entries,
        task_context=_task(end, instructions, turns),
        metadata=_metadata(turns),
        role=end.role,
        subordinate_profile=end.subordinate_profile,
        user_ref=end.user_ref or first.user_ref,
        outcome=end.outcome,
        policy=_policy(turns),
        quality=end.quality,
        parent_trajectory_id=end.parent_trajectory_id,
        labels=end.labels,
    )


def _task(end: TrajectoryEnd, instructions: str, turns: Sequence[Turn]) -> TaskContext:
    """What the end says of the task, with instructions and tools as the model saw them."""
    claimed = end.task_context or TaskContext(task_id=end.trajectory_id, instructions=instructions)
    tools: list[JsonObject] | None = next((turn.tools for turn in turns if turn.tools), None)
    return msgspec.structs.replace(
        claimed, instructions=instructions or claimed.instructions, tools=claimed.tools or tools
    )


def _policy(turns: Sequence[Turn]) -> PolicyClaim:
    """The policy of the first turn; `mixed` when a later turn was answered by another one."""
    policies = {(turn.policy.digest, turn.policy.arm) for turn in turns}
    first = turns[0].policy
    return first if len(policies) == 1 else msgspec.structs.replace(first, arm="mixed")


def _metadata(turns: Sequence[Turn]) -> TrajectoryMetadata:
    first = turns[0]
    tokens = [turn.usage.prompt + turn.usage.completion for turn in turns if turn.usage]
    return TrajectoryMetadata(
        model=f"{first.policy.role}@{first.policy.version}",
        temperature=first.sampling.temperature if first.sampling else None,
        total_tokens=sum(tokens) if tokens else None,
        source=ASSEMBLED,
    )
