"""From logged trajectories to training rows: a row for each sequence in which something learns.

Shapes: _T tokens of a row, _N those of them that learn, in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ratchet.core.contract.snapshot import CallSpan, TrajectoryRow
from ratchet.core.datasets.domain.sequences import (
    LARGEST_ID,
    Floats,
    Ids,
    Parts,
    cut,
    is_possible,
    scored_spans,
    sequences_of,
)
from ratchet.core.errors import Rejected
from ratchet.core.rules.capture import Reason
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.advantages import Scored
from ratchet.trainer_worker.training.learner.masks import Allowed, AllowedOf, Answer, no_masks

LEAST_TEMPERATURE = 0.01
"""Below it engines draw the likeliest token, or at a higher temperature than they were asked for."""
OUTSIDE_VOCABULARY = "outside_vocabulary"
"""Why an answer does not learn, beside the reasons of the snapshot and of its masks."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence to run through the model. Arrays are not changed once a row is made.

    Rows of one trajectory may share pieces of their tokens, so that what a policy was shown many times is kept once.
    """

    trajectory_id: str
    parts: Parts
    """The tokens in pieces."""
    stretches: NDArray[np.int32]
    """[S, 2]: where stretches of tokens that learn begin and end, in order; none begins with the first token, which
    nothing predicts."""
    behavior_logprobs: Floats
    """[N]"""
    temperatures: Floats
    """[N]"""
    masks: Allowed = ()
    """Which tokens could have been drawn in each of the N places; empty where every call was free."""

    @classmethod
    def of(
        cls,
        trajectory_id: str,
        token_ids: ArrayLike,
        loss_mask: ArrayLike,
        behavior_logprobs: ArrayLike = 0.0,
        temperatures: ArrayLike = 1.0,
    ) -> Row:
        """A row of free answers. One value stands for all tokens that learn, and is kept once."""
        mask = np.array(loss_mask, dtype=np.bool_)
        count = int(mask.sum())
        mask[:1] = False
        kept = slice(count - int(mask.sum()), None)
        edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
        return cls(
            trajectory_id,
            (np.asarray(token_ids, dtype=np.int32),),
            edges.reshape(-1, 2).astype(np.int32),
            _column(behavior_logprobs, count)[kept],
            _column(temperatures, count)[kept],
        )

    @property
    def token_ids(self) -> Ids:
        """[T]"""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """[T]: true for tokens that the policy wrote and that learn."""
        mask = np.zeros(self.length, dtype=np.bool_)
        mask[self.trained_at] = True
        return mask

    @property
    def length(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.parts))

    @property
    def trained(self) -> int:
        """Number of tokens that learn."""
        return len(self.behavior_logprobs)

    @property
    def trained_at(self) -> NDArray[np.intp]:
        """[N]: the places of the tokens that learn."""
        return np.concatenate([np.empty(0, np.intp), *(np.arange(begin, end) for begin, end in self.stretches)])

    @property
    def trained_ids(self) -> Ids:
        """[N]: the tokens that learn."""
        return self.token_ids[self.trained_at]

    @property
    def prompt(self) -> list[int]:
        """What precedes the first token that learns."""
        return self.token_ids[: self.stretches[0, 0]].tolist()

    @property
    def trained_masks(self) -> Allowed:
        """The masks of the tokens that learn, None for free ones."""
        return self.masks or [None] * self.trained

    def up_to(self, length: int) -> Row:
        """The first `length` tokens."""
        if self.length <= length:
            return self
        stretches = np.minimum(self.stretches, length)
        stretches = stretches[stretches[:, 0] < stretches[:, 1]]
        count = int((stretches[:, 1] - stretches[:, 0]).sum())
        return Row(
            self.trajectory_id,
            tuple(part.copy() for part in cut(self.parts, length)),  # views would keep the rest in memory
            stretches,
            self.behavior_logprobs[:count],
            self.temperatures[:count],
            self.masks[:count],
        )


def _column(values: ArrayLike, count: int) -> Floats:
    column = np.asarray(values, dtype=np.float32)
    return np.broadcast_to(column, count) if column.ndim == 0 else column


@dataclass(slots=True)
class MergeCounts:
    """What became of the calls, for the job's metrics."""

    forks: int = 0
    orphans: int = 0
    truncated: int = 0
    unrewarded: int = 0
    """Trajectories whose reward is no finite number; they are left out."""
    untrainable: Counter[str] = field(default_factory=Counter[str])


def rows_of(
    trajectory: TrajectoryRow,
    counts: MergeCounts | None = None,
    max_length: int | None = None,
    allowed_of: AllowedOf = no_masks,
    vocabulary: int | None = None,
) -> list[Row]:
    """Rows of one trajectory, in the order of their first call; every trainable output learns in exactly one row.

    A conversation that only grows is one row (`datasets.domain.sequences`). `vocabulary`: number of tokens that the
    model knows. Raises `Rejected` for a trajectory that contradicts itself.
    """
    counts = counts if counts is not None else MergeCounts()
    sequences = sequences_of(trajectory)
    known = LARGEST_ID + 1 if vocabulary is None else vocabulary
    foreign = [any(((part < 0) | (part >= known)).any() for part in parts) for parts in sequences]
    learning: list[list[_Learning]] = [[] for _ in sequences]
    for span, logprobs in scored_spans(trajectory):
        if span.dropped:
            counts.orphans += 1
            continue
        reason = None if span.sequence is None or not foreign[span.sequence] else OUTSIDE_VOCABULARY
        made = reason or _learning(span, logprobs, sequences, allowed_of)
        if isinstance(made, str):
            counts.untrainable[made] += 1
        elif span.sequence is not None:
            learning[span.sequence].append(made)
    own = {span.sequence for span in trajectory.spans if span.sequence is not None and not span.dropped}
    counts.forks += max(0, len(own) - 1)
    rows = [_row(trajectory.trajectory_id, sequences[number], learning[number]) for number in sorted(own)]
    if max_length is not None:
        counts.truncated += sum(row.length > max_length for row in rows)
        rows = [row.up_to(max_length) for row in rows]
    return [row for row in rows if row.trained]


@dataclass(frozen=True, slots=True)
class _Learning:
    """An answer that learns."""

    span: CallSpan
    logprobs: Floats
    allowed: Allowed = ()
    """Empty for a free answer."""


def _learning(span: CallSpan, logprobs: Floats, sequences: Sequence[Parts], allowed_of: AllowedOf) -> _Learning | str:
    """What an answer learns with, or the reason why it does not learn."""
    is_drawn = LEAST_TEMPERATURE <= span.temperature < math.inf
    if not (span.trainable and span.scored and span.sequence is not None and is_drawn):
        return span.reason or "unknown"
    if not is_possible(logprobs):
        return Reason.IMPOSSIBLE_LOGPROBS
    if span.constraint is None:
        return _Learning(span, logprobs)
    whole = np.concatenate(cut(sequences[span.sequence], span.begin + span.size))
    allowed = allowed_of(Answer(whole[span.begin :], logprobs, span.constraint))
    return allowed if isinstance(allowed, str) else _Learning(span, logprobs, allowed)


def _row(trajectory_id: str, parts: Parts, learning: Sequence[_Learning]) -> Row:
    stretches = [(call.span.begin, call.span.begin + call.span.size) for call in learning]
    # The first token follows nothing, and no token is of two answers.
    if any(begin < end for (_, end), (begin, _) in pairwise([(0, 1), *stretches])):
        raise Rejected(f"trajectory {trajectory_id} contradicts itself: answers overlap, or begin their sequence")
    count = sum(call.span.size for call in learning)
    temperatures = {call.span.temperature for call in learning}
    cooled: ArrayLike = [call.span.temperature for call in learning for _ in range(call.span.size)]
    if len(temperatures) == 1:
        (cooled,) = temperatures
    is_constrained = any(call.span.constraint is not None for call in learning)
    return Row(
        trajectory_id,
        parts,
        np.array(stretches, dtype=np.int32).reshape(-1, 2),
        np.concatenate([np.empty(0, np.float32), *(call.logprobs for call in learning)]),
        _column(cooled, count),
        [mask for call in learning for mask in call.allowed or [None] * call.span.size] if is_constrained else (),
    )


@dataclass(frozen=True, slots=True)
class PolicyData:
    """Rows and rewards of the trajectories."""

    rows: list[Row]
    scored: list[Scored]
    counts: MergeCounts
    prompt: Sequence[int] = field(default=())
    """The shortest prompt of the rows."""


def policy_data(
    trajectories: Iterable[TrajectoryRow],
    max_length: int | None,
    *,
    mirrored: bool,
    allowed_of: AllowedOf = no_masks,
    vocabulary: int | None = None,
) -> PolicyData:
    """Rows of all trajectories, which are read once. Raises `DataUnusable`, with the reasons, when nothing in
    them can learn, or when they cannot be read.

    With a `mirrored` reward what is known as a success is what shall be unlearnt. `allowed_of`: of constrained calls.
    `vocabulary`: see `rows_of`.
    """
    rows, scored, counts = list[Row](), list[Scored](), MergeCounts()
    seen = 0
    try:
        for trajectory in trajectories:
            seen += 1
            if not math.isfinite(trajectory.reward):
                counts.unrewarded += 1
            else:
                rows += rows_of(trajectory, counts, max_length, allowed_of, vocabulary)
                success = trajectory.success if trajectory.success is None else trajectory.success != mirrored
                baseline = (
                    trajectory.baseline if trajectory.baseline is None or math.isfinite(trajectory.baseline) else None
                )
                scored.append(
                    Scored(trajectory.trajectory_id, trajectory.task_key, trajectory.reward, baseline, success)
                )
    except Rejected as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error
    if not rows:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in counts.untrainable.most_common())
        why = reasons or ("no reward is a finite number" if counts.unrewarded else "no calls were captured")
        raise DataUnusable(f"none of {seen} trajectories has a call that a policy can learn from: {why}")
    return PolicyData(rows, scored, counts, min(rows, key=lambda row: row.stretches[0, 0]).prompt)
