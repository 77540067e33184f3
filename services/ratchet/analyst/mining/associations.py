"""Hypotheses of attribute and outcome, formed on half of the subjects.

Each value of an attribute is scored by how much worse its episodes are, in standard errors that count a subject once.
The worst one is taken, what it explains is subtracted, and the others are scored again (forward selection): so the
second cause is not hidden behind a dozen names of the first. Attributes that are known before the outcome are selected
apart from those known after: an error that goes with every failure would else hide the task that leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ratchet.analyst.mining.base import FORMING, KNOWN_BEFORE, MOST_VALUES, Codes, Column, Episodes, Floats, Hypothesis
from ratchet.analyst.mining.measure import LONGEST_BLOCK, measured, rank
from ratchet.core.contract.learning import Trigger

WORSE = {"failure": 1.0, "reward": -1.0, "cost_usd": 1.0, "latency_ms": 1.0}
"""Measure -> the sign of what is worse. Only what is worse is a hypothesis: that the others do better repeats it."""
AFTER = ("tool", "tool_sequence", "tool_error")
"""Attributes known after the outcome. What detectors flag (`behavior`) is theirs to claim."""
MOST_FORMED = 7
"""A measure and kind of attribute: with four measures and two kinds at most 56."""
WEAKEST_Z = 3.0
"""Of both windows together. A weaker one would pass neither test at the level of a run among thousands."""
WEAKEST_WINDOW_Z = 1.0
LONGEST_VALUE = 80
"""Characters: what the contract allows a trigger."""
FEWEST = 10
"""Episodes of each window that have the value."""


def hypotheses(before: Episodes, now: Episodes) -> list[Hypothesis]:
    """The most harmful values of attributes, at most 56."""
    formed: list[Hypothesis] = []
    for attributes in (sorted(KNOWN_BEFORE), AFTER):
        table = Table.of(before, now, attributes)
        if not len(table.triggers):
            continue
        for measure, sign in WORSE.items():
            chosen = _chosen(table, sign * outcome(before, now, measure)[table.order])
            formed += [Hypothesis("association", trigger.attribute, measure, (trigger,)) for trigger in chosen]
    return formed


def outcome(before: Episodes, now: Episodes, measure: str) -> Floats:
    """A measure of the forming part of both windows (n,)."""
    return np.concatenate([measured(window, measure)[window.part() == FORMING] for window in (before, now)])


@dataclass(frozen=True, slots=True)
class Table:
    """Which of n episodes, ordered by subject, have which of v values."""

    triggers: tuple[Trigger, ...]
    """(v,)"""
    matrix: Any
    """scipy.sparse.csc_array (n, v)."""
    order: Codes
    """Index of n episodes in the forming parts of both windows, one after the other: the first of each subject."""
    subject: Codes
    """Index of the subject, rising (n,)."""
    later: Floats
    """1 for episodes of the later window (n,)."""

    @classmethod
    def of(cls, before: Episodes, now: Episodes, attributes: Sequence[str]) -> Table:
        windows = (before, now)
        keep = [np.flatnonzero(window.part() == FORMING).astype(np.int32) for window in windows]
        hashes = np.concatenate([window.subject[rows] for window, rows in zip(windows, keep, strict=True)])
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        subject = np.unique(hashes[order], return_inverse=True)[1].astype(np.int32)
        block = rank(2 * subject + (order >= len(keep[0])))
        order, subject = order[block < LONGEST_BLOCK], subject[block < LONGEST_BLOCK]
        later = (order >= len(keep[0])).astype(np.float64)
        triggers: list[Trigger] = []
        blocks: list[Any] = []
        for attribute in attributes:
            names, parts = _shared(before, now, attribute, keep)
            counts = [np.asarray(part.sum(axis=0)).ravel() for part in parts]
            common = [
                i for i in np.argsort(-(counts[0] + counts[1]), kind="stable") if min(c[i] for c in counts) >= FEWEST
            ]
            triggers += [Trigger(attribute=attribute, value=names[i]) for i in common[:MOST_VALUES]]
            blocks.append(sparse.vstack(parts).tocsc()[:, common[:MOST_VALUES]])
        matrix = sparse.hstack(blocks).tocsr()[order].tocsc()
        matrix.sort_indices()
        return cls(tuple(triggers), matrix, order, subject, later)

    def scores(self, residual: Floats, columns: Codes) -> Floats:
        """How much larger `residual` (n,) is where an episode has the value, in standard errors, for each column."""
        matrix = self.matrix[:, columns]
        column = np.repeat(np.arange(len(columns)), np.diff(matrix.indptr))
        starts = np.flatnonzero(np.diff(column * np.int64(len(self.order)) + self.subject[matrix.indices], prepend=-1))
        sums = np.add.reduceat(residual[matrix.indices], starts) if len(starts) else np.zeros(0)
        column, subject = column[starts], self.subject[matrix.indices[starts]]
        total = np.bincount(self.subject, residual)
        share = np.diff(matrix.indptr) / max(1, len(self.order))
        of = np.bincount(column, sums, len(columns)) - share * total.sum()
        cross = np.bincount(column, sums * total[subject], len(columns))
        variance = np.bincount(column, sums * sums, len(columns)) - 2 * share * cross + share**2 * (total @ total)
        return of / np.sqrt(np.maximum(variance, 1e-12))


def _chosen(table: Table, worse: Floats) -> list[Trigger]:
    """The values that make `worse` (n,) larger, the strongest first; what one explains counts for no other."""
    known = ~np.isnan(worse)
    if not known.any():
        return []
    residual = np.where(known, worse - worse[known].mean(), 0.0)
    everything = np.arange(len(table.triggers), dtype=np.int32)
    windows = [table.scores(residual * (table.later == side), everything) for side in (0.0, 1.0)]
    both = np.minimum(*windows) >= WEAKEST_WINDOW_Z
    candidates = everything[both & (table.scores(residual, everything) >= WEAKEST_Z)]
    chosen: list[Trigger] = []
    while len(candidates) and len(chosen) < MOST_FORMED:
        scores = table.scores(residual, candidates)
        best = candidates[int(np.argmax(scores))]
        if scores.max() < WEAKEST_Z:
            break
        chosen.append(table.triggers[best])
        candidates = candidates[(candidates != best) & (scores >= WEAKEST_WINDOW_Z)]
        has = np.zeros(len(known))
        has[table.matrix.indices[table.matrix.indptr[best] : table.matrix.indptr[best + 1]]] = 1.0
        slope = np.where(known, has - has[known].mean(), 0.0)
        residual = residual - slope * (slope @ residual) / max(float(slope @ slope), 1e-12)
    return chosen


def _shared(before: Episodes, now: Episodes, attribute: str, keep: Sequence[Codes]) -> tuple[list[str], list[Any]]:
    """Values that an attribute has in both windows, and for each window which of the kept episodes have which."""
    names: list[tuple[str, ...]] = []
    parts: list[Any] = []
    for window, rows in zip((before, now), keep, strict=True):
        members = window.members.get(attribute)
        matrix = _indicators(window.columns.get(attribute), len(window)) if members is None else members.matrix
        names.append(
            window.columns[attribute].values if attribute in window.columns else getattr(members, "values", ())
        )
        parts.append(matrix.tocsr()[rows])
    places = [{name: place for place, name in enumerate(side)} for side in names]
    shared = [name for name in names[1] if name in places[0] and 0 < len(name) <= LONGEST_VALUE]
    return shared, [
        part.tocsc()[:, [places[side][name] for name in shared]].astype(np.float64) for side, part in enumerate(parts)
    ]


def _indicators(column: Column | None, count: int) -> Any:
    """An attribute with one value an episode as a matrix (n, values)."""
    if column is None:
        return sparse.csc_array((count, 0), dtype=np.float64)
    rows = np.flatnonzero(column.codes >= 0)
    shape = (count, len(column.values))
    return sparse.csc_array((np.ones(len(rows)), (rows, column.codes[rows])), shape=shape)
