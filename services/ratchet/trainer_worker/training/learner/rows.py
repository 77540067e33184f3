"""From logged trajectories to training rows: fresh ones, merged by exact prefix, forked where history drifts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.contract.snapshot import Call, TrajectoryRow
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.advantages import Scored

MAX_STALENESS = 8
"""Policy versions between a call and the policy that is trained; older calls are dropped."""


@dataclass(slots=True)
class Row:
    """One sequence to run through the model. The four lists have one entry per token."""

    trajectory_id: str
    token_ids: list[int] = field(default_factory=list[int])
    loss_mask: list[bool] = field(default_factory=list[bool])
    """True for tokens that the policy wrote and that learn."""
    behavior_logprobs: list[float] = field(default_factory=list[float])
    temperatures: list[float] = field(default_factory=list[float])

    @property
    def trained(self) -> int:
        """Number of tokens that learn."""
        return sum(self.loss_mask)

    @property
    def prompt(self) -> list[int]:
        """What precedes the first token that learns."""
        return self.token_ids[: self.loss_mask.index(True)]

    def add(self, context: Sequence[int], call: Call) -> None:
        """Append what the policy was shown and what it answered."""
        learns = _can_learn(call)
        size = len(call.output_token_ids)
        self.token_ids += [*context, *call.output_token_ids]
        self.loss_mask += [False] * len(context) + [learns] * size
        logprobs = call.behavior_logprobs if learns else [0.0] * size
        self.behavior_logprobs += [0.0] * len(context) + list(logprobs)
        self.temperatures += [1.0] * len(context) + [call.temperature if learns else 1.0] * size

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        for column in (self.token_ids, self.loss_mask, self.behavior_logprobs, self.temperatures):
            del column[length:]


@dataclass(slots=True)
class MergeCounts:
    """What became of the calls, for the job's metrics."""

    calls: int = 0
    rows: int = 0
    forks: int = 0
    orphans: int = 0
    truncated: int = 0
    untrainable: Counter[str] = field(default_factory=Counter[str])


def rows_of(
    trajectory_id: str, calls: Sequence[Call], counts: MergeCounts | None = None, max_length: int | None = None
) -> list[Row]:
    """Rows of one trajectory, in the order of their first call; every trainable output learns in exactly one row.

    A call whose prompt begins with all of an earlier row extends that row (the longest such row wins), so an
    ordinary conversation is one row. Any drift, such as a re-rendered history or a sub-conversation, starts another.
    """
    counts = counts if counts is not None else MergeCounts()
    used = without_orphans(calls)
    counts.calls += len(calls)
    counts.orphans += len(calls) - len(used)
    rows: list[Row] = []
    for call in used:
        if not _can_learn(call):
            counts.untrainable[call.reason or "unknown"] += 1
        if not call.prompt_token_ids:
            continue
        prompt = call.prompt_token_ids
        fitting = [row for row in rows if list(prompt[: len(row.token_ids)]) == row.token_ids]
        row = max(fitting, key=lambda row: len(row.token_ids), default=None)
        if row is None:
            row = Row(trajectory_id)
            rows.append(row)
        row.add(prompt[len(row.token_ids) :], call)
    counts.forks += max(0, len(rows) - 1)
    for row in rows:
        if max_length is not None and len(row.token_ids) > max_length:
            row.truncate(max_length)
            counts.truncated += 1
        # The first token has nothing before it that could predict it.
        if row.loss_mask:
            row.loss_mask[0] = False
    kept = [row for row in rows if any(row.loss_mask)]
    counts.rows += len(kept)
    return kept


def is_fresh(calls: Sequence[Call], current_version: int | None, limit: int = MAX_STALENESS) -> bool:
    """Whether no call is more than `limit` versions behind. Calls of unknown version are judged by their weights."""
    versions = [call.policy_version for call in calls if call.policy_version is not None]
    return current_version is None or not versions or current_version - min(versions) <= limit


def without_orphans(calls: Sequence[Call]) -> list[Call]:
    """Drop retried calls whose answer was thrown away.

    Of several calls with the same prompt, the one that a later prompt continues was used, else the last one.
    """
    same: dict[tuple[int, ...], list[int]] = {}
    for index, call in enumerate(calls):
        same.setdefault(tuple(call.prompt_token_ids), []).append(index)

    def is_continued(index: int) -> bool:
        whole = [*calls[index].prompt_token_ids, *calls[index].output_token_ids]
        return any(list(later.prompt_token_ids[: len(whole)]) == whole for later in calls[index + 1 :])

    dropped: set[int] = set()
    for prompt, indices in same.items():
        if len(indices) > 1 and prompt:
            used = next(filter(is_continued, reversed(indices)), indices[-1])
            dropped.update(i for i in indices if i != used)
    return [call for index, call in enumerate(calls) if index not in dropped]


def _can_learn(call: Call) -> bool:
    return call.trainable and call.temperature > 0 and len(call.behavior_logprobs) == len(call.output_token_ids)


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
    scored = [
        Scored(
            one.trajectory_id,
            one.task_key,
            one.reward,
            one.baseline,
            one.success if one.success is None else one.success != mirrored,
        )
        for one in fresh
    ]
    prompts = [call.prompt_token_ids for one in fresh for call in one.calls if call.prompt_token_ids]
    return PolicyData(rows, scored, counts, stale, min(prompts, key=len))
