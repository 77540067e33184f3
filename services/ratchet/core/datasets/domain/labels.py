"""Answers with a thumb, for a snapshot of the format `labels`: which label counts, and one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import encode
from ratchet.core.contract.snapshot import LabelRow
from ratchet.core.contract.training import DatasetFilter
from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.contract.turn import Turn
from ratchet.core.datasets.domain.rows import TURNS_NOT_STORED, UNREADABLE_CHAT, RowOrigin, SnapshotRow
from ratchet.core.datasets.domain.selection import (
    EXCLUDED_RATER,
    MIXED_OR_PINNED,
    Candidate,
    TrajectoryRules,
    is_excluded,
    is_left_out,
    select,
)
from ratchet.core.rules.chat import ChatError
from ratchet.core.rules.recorded import lacks_turns, offered_tools, recorded_chat

THUMBS = "thumbs"
NO_PROMPT = "no_prompt"
CONTRADICTED = "contradicted"
NO_REWARD = "no_reward"


@dataclass(frozen=True, slots=True)
class Thumb:
    """One thumb up or down."""

    trajectory_id: str
    up: bool
    rater: str | None
    """Who gave it, where that is known."""


def labels(thumbs: Iterable[Thumb]) -> Mapping[str, bool | None]:
    """By trajectory, the label of most raters, each by their last thumb; None for a tie. `thumbs`: oldest first.

    Every thumb without a rater counts as another rater's.
    """
    by_rater: dict[str, dict[str, bool]] = {}
    for number, thumb in enumerate(thumbs):
        by_rater.setdefault(thumb.trajectory_id, {})[thumb.rater or f"unnamed {number}"] = thumb.up
    counts = {trajectory_id: Counter(given.values()) for trajectory_id, given in by_rater.items()}
    return {key: None if up[True] == up[False] else up[True] > up[False] for key, up in counts.items()}


def counted(thumbs: Iterable[Thumb], chosen: DatasetFilter) -> list[Thumb]:
    """The thumbs of raters that the filter does not leave out."""
    return [thumb for thumb in thumbs if not is_excluded(THUMBS, thumb.rater, chosen)]


@dataclass(frozen=True, slots=True)
class LabelSelection:
    """The answers that a snapshot takes."""

    chosen: Sequence[Candidate]
    labels: Mapping[str, bool]
    """Of the chosen ones, by trajectory."""
    left_out: Mapping[str, int]
    """How many others that have thumbs are not taken, by reason."""


def select_labels(
    thumbs: Sequence[Thumb], candidates: Collection[Candidate], rules: TrajectoryRules, sample_size: int
) -> LabelSelection:
    """Up to `sample_size` answers that most raters agree on, the newest groups first. `thumbs`: oldest first.

    A trajectory without a label has thumbs of raters alone that the filter leaves out.
    """
    given = labels(counted(thumbs, rules.filter))
    selection = select((run for run in candidates if given.get(run.trajectory_id) is not None), rules, sample_size)
    rewarded = {candidate.trajectory_id for candidate in candidates}
    left_out = Counter(selection.left_out)
    left_out[CONTRADICTED] += sum(label is None for label in given.values())
    left_out[NO_REWARD] += sum(label is not None and name not in rewarded for name, label in given.items())
    left_out[EXCLUDED_RATER] += len({thumb.trajectory_id for thumb in thumbs}) - len(given)
    return LabelSelection(
        selection.chosen,
        {run.trajectory_id: bool(given[run.trajectory_id]) for run in selection.chosen},
        +left_out,
    )


def label_row(trajectory: Trajectory, turns: Sequence[Turn], label: bool) -> SnapshotRow | str:
    """The row, or the reason (a token) why it cannot be made. A thumb judges everything after the first prompt."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    try:
        chat = recorded_chat(trajectory, turns)
        start = next((index for index, message in enumerate(chat) if message.get("role") == "assistant"), 0)
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
