"""Assembling a trajectory from the turns that the gateway captured, and what a later telling changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ratchet.contract import Feedback, JsonObject, PolicyClaim, Trajectory, TrajectoryEnd, Turn, decode, named_id
from ratchet.contract.reward import UPDATE
from ratchet.contract.trajectory import TaskContext, TrajectoryMetadata, digest_said
from ratchet.rules.chat import assembled_turns

ASSEMBLED = "assembled"
"""`metadata.source` of a trajectory that no client told, but its turns."""


@dataclass(frozen=True, slots=True)
class Told:
    """How a stored trajectory was told."""

    source: str
    turns: int
    said: str = ""
    """Digest of what its agent said of it (outcome, quality, labels); empty when it said nothing."""
    has_outcome: bool = False
    retold_by: int = 0
    """Sequence of the message that replaced the first telling, 0 when none did."""

    @property
    def is_provisional(self) -> bool:
        """Assembled because the agent fell silent: nobody said how it ended, or that it did."""
        return self.source == ASSEMBLED and not self.has_outcome


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


def assemble_idle(role: str, trajectory_id: str, turns: Sequence[Turn]) -> Trajectory:
    """The trajectory of an agent that fell silent. It claims no outcome. Raises `ChatError`.

    Nothing in it depends on when it is assembled: whoever does it from the same turns makes the same message.
    """
    last = max(turn.timestamp for turn in turns)
    return assemble(TrajectoryEnd(trajectory_id=trajectory_id, timestamp=last, role=role), turns)


def telling_id(trajectory: Trajectory) -> str:
    """The broker's deduplication key of an idle assembly: one for each set of turns.

    It differs from the event's own id, under which the agent may tell the trajectory a moment later: the broker must
    not take that for a repetition and drop it.
    """
    last = trajectory.end_timestamp.isoformat()
    return named_id("idle trajectory", trajectory.role, trajectory.trajectory_id, last)


def is_fuller(trajectory: Trajectory, stored: Told) -> bool:
    """Whether a telling of a stored trajectory takes its place: only one that was provisional is replaced."""
    told = told_of(trajectory)
    adds = not told.is_provisional or told.turns > stored.turns or told.said not in {"", stored.said}
    return stored.is_provisional and adds


def told_of(trajectory: Trajectory, retold_by: int = 0) -> Told:
    """How a trajectory is told."""
    return Told(
        trajectory.metadata.source or "client",
        len(trajectory.turns),
        digest_said(trajectory),
        trajectory.outcome is not None,
        retold_by,
    )


def told_of_body(body: bytes, retold_by: int) -> Told:
    """How a stored trajectory was told, by its JSON."""
    return told_of(decode(body, Trajectory), retold_by)


def update_of(trajectory: Trajectory) -> Feedback | None:
    """Asks for the next revision of a reward that was computed before the agent said this of its trajectory.

    It is no opinion: nobody rated anything. None when the agent said nothing that a reward could depend on. The same
    words always have the same id: however often they are told, they count once.
    """
    said = digest_said(trajectory)
    if not said:
        return None
    return Feedback(
        feedback_id=named_id("update", trajectory.role, trajectory.trajectory_id, said),
        trajectory_id=trajectory.trajectory_id,
        kind=UPDATE,
        at=trajectory.end_timestamp,
        role=trajectory.role,
        source="trajectory_collector",
        rater=trajectory.agent_id,
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
