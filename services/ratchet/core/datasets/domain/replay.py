"""Which logged prompts a candidate has not learned from, and the prompt of one call.

One prompt of each task, and one call of each trajectory: answers to prompts of one task, or of one conversation, go
together, and a comparison counts prompts as independent. Which call it is follows from the trajectory's id, so that
first calls are not all that is replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.turn import Sampling, Turn
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS, MIXED_OR_PINNED, is_left_out
from ratchet.core.rules.arms import draw
from ratchet.core.rules.bundles import variables_of
from ratchet.core.rules.chat import ChatError, chain_of_turns, prompt_of_turn
from ratchet.core.rules.chat.format import is_within
from ratchet.core.rules.recorded import last_tools
from ratchet.core.rules.redaction import MAX_DEPTH

OLDER_THAN_SNAPSHOT = "older_than_snapshot"
LARGEST_PROMPT = 256 * 1024
"""Bytes of messages and tools of one prompt; a larger one is left out."""


@dataclass(frozen=True, slots=True)
class CapturedTrajectory:
    """A stored trajectory that the gateway has captured."""

    trajectory_id: str
    task: str
    """Group key, or task id: equal ones are tries of one task."""
    began: datetime
    """When the agent made its first call."""
    arms: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lineage:
    """The data that a candidate and all its ancestors have learned from."""

    versions: Sequence[int]
    """The candidate, its parent and so on."""
    since: datetime
    """When the candidate's snapshot was made."""
    trajectories: frozenset[str]
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one call."""

    turn_id: str
    trajectory_id: str
    at: datetime
    messages: list[JsonObject]
    tools: list[JsonObject]
    sampling: Sampling
    metadata: JsonObject
    """What the request's metadata and variables held."""
    size: int
    """Bytes of messages, tools and metadata."""


def unseen(captured: Iterable[CapturedTrajectory], lineage: Lineage) -> tuple[list[CapturedTrajectory], Counter[str]]:
    """The trajectories that may be replayed, in their order, and how many others were left out for which reason."""
    left_out: Counter[str] = Counter()
    kept: list[CapturedTrajectory] = []
    tasks: set[str] = set()
    for turn in captured:
        if turn.arms & LEFT_OUT_ARMS:
            left_out[MIXED_OR_PINNED] += 1
        elif turn.began <= lineage.since:
            left_out[OLDER_THAN_SNAPSHOT] += 1
        elif turn.trajectory_id in lineage.trajectories or turn.task in lineage.groups:
            left_out["group_of_lineage"] += 1
        elif turn.task in tasks:
            left_out["same_task"] += 1
        else:
            tasks.add(turn.task)
            kept.append(turn)
    return kept, left_out


def reason_against_calls(turns: Iterable[Turn], lineage: Lineage) -> str | None:
    """Why a trajectory may not be replayed, by all of its calls; `began` may miss the first calls of a long one."""
    calls = list(turns)
    if is_left_out(calls):
        return MIXED_OR_PINNED
    return OLDER_THAN_SNAPSHOT if any(call.timestamp <= lineage.since for call in calls) else None


def prompt_of(turns: Sequence[Turn], turn_id: str | None = None) -> Prompt | str:
    """The prompt of one call of a trajectory, or the reason (a token) why there is none.

    Of the call `turn_id`; None: of one that follows from the trajectory's id.
    """
    try:
        chain = chain_of_turns(turns)
        if not chain:
            return "no_answered_call"
        named = (place for place, call in enumerate(chain) if call.turn_id == turn_id)
        number = next(named, None) if turn_id else int(draw("replay", chain[0].trajectory_id) * len(chain))
        if number is None:
            return "beside_conversation"
        called = chain[number]
        messages = prompt_of_turn(turns, called.turn_id)
    except (ChatError, RecursionError):
        return "unreadable_chat"
    tools = (last_tools(chain[: number + 1]) or []) if called.tools_digest else []
    metadata = variables_of(called.parameters or {})
    size = len(msgspec.json.encode([messages, tools, metadata]))
    if size > LARGEST_PROMPT:
        return "too_large"
    if not is_within([messages, tools, metadata], MAX_DEPTH + 1):  # an HTTP answer could not carry a deeper value
        return "too_deep"
    return Prompt(
        turn_id=called.turn_id,
        trajectory_id=called.trajectory_id,
        at=called.timestamp,
        messages=messages,
        tools=tools,
        sampling=called.sampling or Sampling(),
        metadata=metadata,
        size=size,
    )
