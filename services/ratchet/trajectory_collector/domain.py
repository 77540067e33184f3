"""Assembles trajectories from the turns that the gateway captured, and decides what a later report of one changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from ratchet.core.contract import Feedback, JsonObject, Outcome, Trajectory, TrajectoryEnd, Turn, named_id
from ratchet.core.contract.reward import UPDATE
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata, TrajectoryTurn, claims_digest
from ratchet.core.contract.turn import NOT_COMPUTED
from ratchet.core.rules.arms import MIXED
from ratchet.core.rules.chat import (
    ChatError,
    Conversation,
    Earlier,
    beginnings,
    entries_of,
    failed_entries,
    split,
    tools_called,
)
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.rules.recorded import turn_refs

ASSEMBLED, TELEMETRY = "assembled", "telemetry"
"""`metadata.source` of a trajectory that was assembled from its turns, where no client reported it; from its spans."""
HOTTEST = 2.0
"""The highest temperature that a trajectory may state; its turns hold any."""
ERROR = "error"
"""`Outcome.inferred_from` of a run whose last call failed."""


@dataclass(frozen=True, slots=True)
class Inference:
    """What an outcome is inferred from, where none is reported."""

    final_tools: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By role: the tools with which its agents hand in a result."""
    by_errors: bool = True
    """A run whose last call failed is a failure."""

    def tools_of(self, role: str) -> frozenset[str]:
        """The tools that end a run of this role."""
        return self.final_tools.get(role, self.final_tools.get(ANY_ROLE, frozenset()))


@dataclass(frozen=True, slots=True)
class Assembled:
    """What the turns of one trajectory id add up to."""

    trajectories: Sequence[Trajectory]
    """The trajectory of that id first, then those of its further conversations."""
    unreadable: Sequence[str] = ()
    """Why further conversations cannot be assembled."""
    repeated: int = 0
    """Answered calls that are in no trajectory: another answer to the same prompt counts."""


@dataclass(frozen=True, slots=True)
class Run:
    """The turns of one trajectory id in one role, and what was assembled of them before."""

    turns: Sequence[Turn]
    stored: Trajectory | None = None
    """The trajectory of that id as it is stored."""
    children: Sequence[Trajectory] = ()
    """Its further conversations that are stored."""
    left_out: int = 0
    """Later turns, beyond what one assembly takes."""

    @property
    def earlier(self) -> list[Earlier]:
        """The conversations as they are stored, the trajectory's own first."""
        if self.stored is None:
            return []
        every = (self.stored, *self.children)
        return [Earlier(turn_refs(trajectory), not report_of(trajectory).is_provisional) for trajectory in every]


@dataclass(frozen=True, slots=True)
class Report:
    """How a trajectory was reported, as far as a later report of it depends on that."""

    source: str
    turns: int
    """Entries that are not the error of a run without an answer."""
    claims: str = ""
    """Digest of the agent's claims (outcome, quality, labels); empty when it claimed nothing."""
    has_outcome: bool = False
    """It states an outcome that was reported, not inferred."""
    superseded_by: int = 0
    """Sequence of the message that took the place of the first report; 0 when none did."""

    @property
    def is_provisional(self) -> bool:
        """Assembled without a reported outcome: the agent may still go on, or report how it ended."""
        return self.source in (ASSEMBLED, TELEMETRY) and not self.has_outcome


def report_of(trajectory: Trajectory, superseded_by: int = 0) -> Report:
    """How this message reports its trajectory."""
    return Report(
        source=trajectory.metadata.source or "client",
        turns=sum(entry.result.error is None for entry in trajectory.turns),
        claims=claims_digest(trajectory),
        has_outcome=trajectory.outcome is not None and trajectory.outcome.inferred_from is None,
        superseded_by=superseded_by,
    )


def reported(trajectory: Trajectory, at: datetime) -> Trajectory:
    """The trajectory of an end that the stream stored at this instant: its outcome was known then, whenever this is
    assembled."""
    return msgspec.structs.replace(trajectory, metadata=msgspec.structs.replace(trajectory.metadata, reported_at=at))


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


def is_complete(end: TrajectoryEnd, run: Run) -> bool:
    """Whether all turns that the gateway saw are there, and those on which they follow; when it no longer knows how
    many it saw, one is enough."""
    there = {turn.turn_id for turn in run.turns}
    follows = {turn.parent_turn_id for turn in run.turns if turn.parent_turn_id and turn.parent_messages != 0}
    return len(run.turns) + run.left_out >= max(1, end.turns or 1) and follows <= there


def possible_children(role: str, trajectory_id: str, turns: Sequence[Turn]) -> list[str]:
    """Ids that further conversations of a run may have been given, when fewer of its turns were known."""
    return [child_id(role, trajectory_id, turn_id) for turn_id in beginnings(turns)]


def assemble(end: TrajectoryEnd, run: Run, inference: Inference | None = None) -> Assembled:
    """The trajectories that a run adds up to. Raises `ChatError` when the first one cannot be assembled.

    The policy comes from the turns and is a fact; every member of `end` is the agent's claim, and its outcome counts
    for all conversations that began before it. Instructions and tools are those that the model saw.
    """
    inference, turns = inference or Inference(), run.turns
    parts = split(turns, run.earlier)
    every = parts.conversations
    if not every:
        return Assembled([_failed(_with_outcome(end, None, turns, inference), turns)])
    main = _main(end, every, run)
    ended = _with_outcome(end, main or every[0], turns, inference)
    others = [trajectory for trajectory in every if trajectory is not main]
    further = frozenset(turn.turn_id for talk in others for turn in talk.calls)
    offered = {turn.tools_digest: turn.tools for turn in reversed(turns) if turn.tools}
    own = [turn for turn in turns if turn.turn_id not in further]
    first = _trajectory(ended, main, own, offered) if main else None
    children: list[Trajectory] = []
    unreadable: list[str] = []
    for other in others:
        claimed = ended
        if other.root.timestamp > end.timestamp:  # what was claimed then is not about it
            unclaimed = msgspec.structs.replace(end, outcome=None, labels=None)
            claimed = _with_outcome(unclaimed, other, other.calls, inference)
        child = _end_of_child(claimed, first or run.stored, other, main)
        try:
            children.append(_trajectory(child, other, other.calls, offered))
        except ChatError as error:
            unreadable.append(str(error))
    return Assembled([*([first] if first else ()), *children], unreadable, len(parts.repeated))


def _main(end: TrajectoryEnd, every: Sequence[Conversation], run: Run) -> Conversation | None:
    """The conversation that has the run's id: the one that has it already, else the first that began before its end.

    None where that id is final, and another conversation has it: of a run that ended before any call was answered.
    """
    own = turn_refs(run.stored) if run.stored else frozenset[str]()
    stored = next((trajectory for trajectory in every if any(turn.turn_id in own for turn in trajectory.calls)), None)
    if stored is not None or (run.stored is not None and own and not report_of(run.stored).is_provisional):
        return stored
    return next((talk for talk in every if talk.root.timestamp <= end.timestamp), every[0])


def _trajectory(
    end: TrajectoryEnd,
    conversation: Conversation,
    own: Sequence[Turn],
    offered: Mapping[str | None, list[JsonObject] | None],
) -> Trajectory:
    """The trajectory of one conversation. `own`: the calls that are accounted to it; `offered`: tools by digest."""
    instructions, entries = entries_of(conversation)
    recorded_as = conversation.root.trajectory_id
    is_child = recorded_as != end.trajectory_id
    made = _made(end, own, instructions, entries)
    tools = next((offered[turn.tools_digest] for turn in conversation.calls if turn.tools_digest in offered), None)
    task = made.task_context
    return msgspec.structs.replace(
        made,
        recorded_as=recorded_as if is_child else None,
        task_context=msgspec.structs.replace(task, tools=task.tools or tools),
    )


def _made(end: TrajectoryEnd, own: Sequence[Turn], instructions: str, entries: Sequence[TrajectoryTurn]) -> Trajectory:
    """A trajectory of these entries, with what the calls say of policy and cost."""
    calls = sorted(own, key=lambda turn: (turn.timestamp, turn.index, turn.attempt, turn.turn_id))
    first, last = calls[0], calls[-1]
    task = end.task_context or TaskContext(task_id=end.trajectory_id, instructions=instructions)
    policies = {(turn.policy.version, turn.policy.arm) for turn in calls}
    tokens = [turn.usage.prompt + turn.usage.completion for turn in calls if turn.usage]
    costs = [turn.cost_usd for turn in calls if turn.cost_usd is not None]
    heat = first.sampling.temperature if first.sampling else None
    return Trajectory(
        trajectory_id=end.trajectory_id,
        session_id=end.session_id or first.session_id or end.trajectory_id,
        agent_id=end.agent_id or first.agent_id or "unknown",
        start_timestamp=first.timestamp,
        end_timestamp=max(last.timestamp, end.timestamp),
        turns=list(entries),
        task_context=msgspec.structs.replace(task, instructions=instructions or task.instructions),
        metadata=TrajectoryMetadata(
            model=f"{first.policy.role}@{first.policy.version}",
            temperature=heat if heat is None or heat <= HOTTEST else None,
            total_tokens=sum(tokens) if tokens else None,
            total_cost_usd=sum(costs) if costs else None,
            source=ASSEMBLED,
            error=_error_of(last),
        ),
        role=end.role,
        subordinate_profile=end.subordinate_profile,
        user_ref=end.user_ref or first.user_ref,
        outcome=end.outcome,
        policy=first.policy if len(policies) == 1 else msgspec.structs.replace(first.policy, arm=MIXED),
        quality=end.quality,
        parent_trajectory_id=end.parent_trajectory_id,
        labels=end.labels,
        trace=last.span,
    )


def _end_of_child(
    end: TrajectoryEnd, first: Trajectory | None, child: Conversation, main: Conversation | None
) -> TrajectoryEnd:
    """The end of a further conversation: the same outcome and session, a deterministic id, a task of its own.

    Only conversations that begin with the same prompt are tries of one task.
    """
    task = end.task_context or TaskContext(task_id=end.trajectory_id, instructions="")
    if main is None or child.prompt_digest != main.prompt_digest:
        part = child.prompt_digest[:12]
        task = msgspec.structs.replace(
            task,
            task_id=f"{task.task_id}/{part}",
            group_key=f"{task.group_key}/{part}" if task.group_key else None,
            instructions="",
            tools=None,
        )
    return msgspec.structs.replace(
        end,
        trajectory_id=child_id(end.role, end.trajectory_id, child.root.turn_id),
        timestamp=max(turn.timestamp for turn in child.calls),
        session_id=first.session_id if first else end.session_id,
        agent_id=end.agent_id,
        subordinate_profile=None,
        parent_trajectory_id=end.trajectory_id,
        task_context=task,
        quality=None,
    )


def child_id(role: str, trajectory_id: str, root_turn_id: str) -> str:
    """The id of a further conversation: that of the call that began it decides, so every collector gives the same."""
    return named_id("conversation", role, trajectory_id, root_turn_id)


def _failed(end: TrajectoryEnd, turns: Sequence[Turn]) -> Trajectory:
    """A run of which no call was answered: what was asked last, and why nothing came of it."""
    last = max(turns, key=lambda turn: (turn.timestamp, turn.index, turn.attempt, turn.turn_id))
    error = _error_of(last) or f"no call was answered ({last.trainable.reason})"
    instructions, entries = failed_entries(last, error)
    made = _made(end, turns, instructions, entries)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, error=error))


def _with_outcome(
    end: TrajectoryEnd, main: Conversation | None, turns: Sequence[Turn], inference: Inference
) -> TrajectoryEnd:
    """The end with an outcome that the run itself shows, where none is reported."""
    if end.outcome is not None:
        return end
    last = max(turns, key=lambda turn: (turn.timestamp, turn.index, turn.attempt, turn.turn_id))
    handed_in = tools_called(main.calls[-1].response or {}) & inference.tools_of(end.role) if main else frozenset()
    if handed_in:
        outcome = Outcome(status="success", inferred_from=min(handed_in))
    elif last.engine.fault in NOT_COMPUTED:
        return end  # nothing of an answer was computed: a wrong key, URL or model, or a server that is away
    elif (last.error and inference.by_errors) or (main is None and _error_of(last)):
        outcome = Outcome(status="failure", inferred_from=ERROR)
    else:
        return end
    return msgspec.structs.replace(end, outcome=outcome)


def _error_of(last: Turn) -> str | None:
    """Why a run ended that ends with this call."""
    if last.response is not None:
        return None
    return last.error or ("the agent gave the call up" if last.finish_reason == "cancelled" else None)


def assemble_idle(role: str, trajectory_id: str, run: Run, inference: Inference | None = None) -> Assembled:
    """The trajectories of an agent that fell silent. It reports no outcome. Raises `ChatError`.

    Nothing in them depends on the time of assembly: from the same turns, every collector makes the same messages.
    Where the stored trajectory is final, only further conversations follow, which began or went on after it was
    reported; its claims count for those that began before its end.
    """
    last = max(turn.timestamp for turn in run.turns)
    end = TrajectoryEnd(trajectory_id=trajectory_id, timestamp=last, role=role)
    stored = run.stored
    if stored is None or report_of(stored).is_provisional:
        return assemble(end, run, inference)
    if not turn_refs(stored):
        return Assembled([])
    claimed = msgspec.structs.replace(
        end,
        timestamp=stored.end_timestamp,
        session_id=stored.session_id,
        outcome=stored.outcome,
        labels=stored.labels,
        task_context=msgspec.structs.replace(stored.task_context, instructions="", tools=None),
    )
    whole = assemble(claimed, run, inference)
    further = [trajectory for trajectory in whole.trajectories if trajectory.trajectory_id != trajectory_id]
    return replace(whole, trajectories=further)


def assembly_id(trajectory: Trajectory) -> str:
    """The broker's deduplication key of an idle assembly: one for each set of turns.

    It differs from the event's own id, under which the agent may report the trajectory a moment later: the broker must
    not take that report for a repetition and drop it.
    """
    last = trajectory.end_timestamp.isoformat()
    return named_id("idle trajectory", trajectory.role, trajectory.trajectory_id, last)
