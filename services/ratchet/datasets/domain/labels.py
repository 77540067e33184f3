"""Answers with a thumb, for a snapshot of the format `labels`: whose word counts, and one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject, encode
from ratchet.contract.snapshot import LabelRow
from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.datasets.domain.rows import TURNS_NOT_STORED, UNREADABLE_CHAT, RowOrigin, SnapshotRow
from ratchet.datasets.domain.selection import MIXED_OR_PINNED, is_left_out
from ratchet.rules.chat import ChatError
from ratchet.rules.recorded import lacks_turns, offered_tools, recorded_chat

THUMBS = "thumbs"
NO_PROMPT = "no_prompt"
CONTRADICTED = "contradicted"
NO_REWARD = "no_reward"


@dataclass(frozen=True, slots=True)
class Thumb:
    """One thumb up or down; thumbs are given oldest first."""

    trajectory_id: str
    up: bool
    rater: str | None
    """Who gave it, where that is known."""


def labels(thumbs: Iterable[Thumb]) -> Mapping[str, bool | None]:
    """By trajectory: what most say, each with their last word; None where as many say the opposite."""
    last: dict[str, dict[str, bool]] = {}
    for number, thumb in enumerate(thumbs):
        last.setdefault(thumb.trajectory_id, {})[thumb.rater or f"unnamed {number}"] = thumb.up
    return {trajectory_id: _majority(words.values()) for trajectory_id, words in last.items()}


def left_out_before(said: Mapping[str, bool | None], rewarded: Collection[str]) -> Mapping[str, int]:
    """How many judged trajectories cannot be chosen from, by reason."""
    undecided = sum(label is None for label in said.values())
    unknown = sum(label is not None and trajectory_id not in rewarded for trajectory_id, label in said.items())
    return {CONTRADICTED: undecided, NO_REWARD: unknown}


def label_row(trajectory: Trajectory, turns: Sequence[Turn], label: bool) -> SnapshotRow | str:
    """The row, or the reason (a token) why there can be none. All that was said after the first prompt was judged."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    try:
        chat = recorded_chat(trajectory, turns)
        start = _first_answer(chat)
        if not start:
            return NO_PROMPT
        row = LabelRow(
            trajectory_id=trajectory.trajectory_id,
            prompt=chat[:start],
            completion=chat[start:],
            label=label,
            tools=offered_tools(trajectory, turns),
            source=THUMBS,
        )
        encode(row)  # a chat that is nested too deeply has no JSON
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return SnapshotRow(row, RowOrigin((trajectory.trajectory_id,), THUMBS))


def _majority(words: Iterable[bool]) -> bool | None:
    counted = Counter(words)
    return None if counted[True] == counted[False] else counted[True] > counted[False]


def _first_answer(chat: Sequence[JsonObject]) -> int:
    return next((index for index, message in enumerate(chat) if message.get("role") == "assistant"), 0)
