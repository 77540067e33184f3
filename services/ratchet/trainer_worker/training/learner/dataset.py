"""Which logged trajectories a policy can learn from, and the rows they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.advantages import Scored
from ratchet.trainer_worker.training.learner.rows import MergeCounts, Row, rows_of
from ratchet.trainer_worker.training.learner.staleness import is_fresh


@dataclass(frozen=True, slots=True)
class PolicyData:
    """Rows and rewards of the trajectories that are fresh enough."""

    rows: list[Row]
    scored: list[Scored]
    counts: MergeCounts
    stale: int
    """Trajectories that were dropped for their age."""
    prompt: Sequence[int] = field(default=())
    """The shortest prompt of the data."""


def policy_data(
    trajectories: Sequence[TrajectoryRow], current_version: int | None, max_length: int | None, *, mirrored: bool
) -> PolicyData:
    """Rows of all fresh trajectories. Raises `DataUnusable`, with the reasons, when nothing in them can learn.

    With a `mirrored` reward what is known as a success is what shall be unlearnt.
    """
    fresh = [one for one in trajectories if is_fresh(one.calls, current_version)]
    counts = MergeCounts()
    rows = [row for one in fresh for row in rows_of(one.trajectory_id, one.calls, counts, max_length)]
    stale = len(trajectories) - len(fresh)
    if not rows:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in counts.untrainable.most_common())
        why = reasons or ("no calls were captured" if fresh else "all are too old")
        raise DataUnusable(f"none of {len(trajectories)} trajectories has a call that a policy can learn from: {why}")
    scored = [_scored(one, mirrored) for one in fresh]
    prompts = [call.prompt_token_ids for one in fresh for call in one.calls if call.prompt_token_ids]
    return PolicyData(rows, scored, counts, stale, min(prompts, key=len))


def _scored(one: TrajectoryRow, mirrored: bool) -> Scored:
    success = one.success if one.success is None else one.success != mirrored
    return Scored(one.trajectory_id, one.task_key, one.reward, one.baseline, success)
