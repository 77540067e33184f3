"""Assembles a trajectory from the turns that the gateway captured, and decides what a later report of it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ratchet.contract import Feedback, Trajectory, TrajectoryEnd, Turn, named_id
from ratchet.contract.reward import UPDATE
from ratchet.contract.trajectory import TaskContext, TrajectoryMetadata, claims_digest
from ratchet.rules.arms import MIXED
from ratchet.rules.chat import assembled_turns

ASSEMBLED = "assembled"
"""`metadata.source` of a trajectory that was assembled from its turns, where no client reported it."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a trajectory was reported, as far as a later report of it depends on that."""

    source: str
    turns: int
    claims: str = ""
    """Digest of the agent's claims (outcome, quality, labels); empty when it claimed nothing."""
    has_outcome: bool = False
    superseded_by: int = 0
    """Sequence of the message that took the place of the first report; 0 when none did."""

    @property
    def is_provisional(self) -> bool:
        """Assembled because the agent fell silent, so that it may still go on, or report how it ended."""
        return self.source == ASSEMBLED and not self.has_outcome


def report_of(trajectory: Trajectory, superseded_by: int = 0) -> Report:
    """How this message reports its trajectory."""
    return Report(
        source=trajectory.metadata.source or "client",
        turns=len(trajectory.turns),
        claims=claims_digest(trajectory),
        has_outcome=trajectory.outcome is not None,
        superseded_by=superseded_by,
    )


def is_fuller(trajectory: Trajectory, stored: Report) -> bool:
    """Whether a report takes the place of the stored one: only a provisional one is replaced."""
    report = report_of(trajectory)
    adds = not report.is_provisional or report.turns > stored.turns or report.claims not in {"", stored.claims}
    return stored.is_provisional and adds


def update_of(trajectory: Trajectory) -> Feedback | None:
    """Asks for the next revision of a reward that was computed before the agent made these claims.

    It is not an opinion: no person rated anything. None when the agent claims nothing that a reward could depend on.
    Equal claims have the same id, so they count once, however often they are reported.
    """
    claims = claims_digest(trajectory)
    if not claims:
        return None
    return Feedback(
        feedback_id=named_id("update", trajectory.role, trajectory.trajectory_id, claims),
        trajectory_id=trajectory.trajectory_id,
        kind=UPDATE,
        at=trajectory.end_timestamp,
        role=trajectory.role,
        source="trajectory_collector",
        rater=trajectory.agent_id,
    )


def is_complete(end: TrajectoryEnd, turns: Sequence[Turn]) -> bool:
    """Whether all turns that the gateway saw are there; when it no longer knows, one is enough."""
    return len(turns) >= max(1, end.turns or 1)


def assemble(end: TrajectoryEnd, turns: Sequence[Turn]) -> Trajectory:
    """The trajectory that `turns` add up to. Raises `ChatError` when they do not.

    The policy comes from the turns and is a fact; every member of `end` is the agent's claim. Instructions and tools
    are those that the model saw.
    """
    instructions, entries = assembled_turns(turns)
    first, last = turns[0], turns[-1]
    task = end.task_context or TaskContext(task_id=end.trajectory_id, instructions=instructions)
    offered = next((turn.tools for turn in turns if turn.tools), None)
    policies = {(turn.policy.digest, turn.policy.arm) for turn in turns}
    tokens = [turn.usage.prompt + turn.usage.completion for turn in turns if turn.usage]
    return Trajectory(
        trajectory_id=end.trajectory_id,
        session_id=end.session_id or first.session_id or end.trajectory_id,
        agent_id=end.agent_id or first.agent_id or "unknown",
        start_timestamp=first.timestamp,
        end_timestamp=max(last.timestamp, end.timestamp),
        turns=entries,
        task_context=msgspec.structs.replace(
            task, instructions=instructions or task.instructions, tools=task.tools or offered
        ),
        metadata=TrajectoryMetadata(
            model=f"{first.policy.role}@{first.policy.version}",
            temperature=first.sampling.temperature if first.sampling else None,
            total_tokens=sum(tokens) if tokens else None,
            source=ASSEMBLED,
        ),
        role=end.role,
        subordinate_profile=end.subordinate_profile,
        user_ref=end.user_ref or first.user_ref,
        outcome=end.outcome,
        policy=first.policy if len(policies) == 1 else msgspec.structs.replace(first.policy, arm=MIXED),
        quality=end.quality,
        parent_trajectory_id=end.parent_trajectory_id,
        labels=end.labels,
    )


def assemble_idle(role: str, trajectory_id: str, turns: Sequence[Turn]) -> Trajectory:
    """The trajectory of an agent that fell silent. It claims no outcome. Raises `ChatError`.

    Nothing in it depends on the time of assembly: from the same turns, every collector makes the same message.
    """
    last = max(turn.timestamp for turn in turns)
    return assemble(TrajectoryEnd(trajectory_id=trajectory_id, timestamp=last, role=role), turns)


def assembly_id(trajectory: Trajectory) -> str:
    """The broker's deduplication key of an idle assembly: one for each set of turns.

    It differs from the event's own id, under which the agent may report the trajectory a moment later: the broker must
    not take that report for a repetition and drop it.
    """
    last = trajectory.end_timestamp.isoformat()
    return named_id("idle trajectory", trajectory.role, trajectory.trajectory_id, last)
