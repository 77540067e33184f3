"""Episodes of one window as columns, and what is claimed of them.

A **hypothesis** says that episodes of some kind differ in a measure. It is *formed* by looking at one half of the
subjects (`FORMING`), and *tested* on the others: the earlier window's test takes one quarter of the subjects, the
later one's the other quarter, so that the two tests share neither time nor subjects. A hypothesis that compares the
windows with each other is tested twice as well, by either quarter. Subjects (user, else session, else trajectory) are
what is exchanged in a permutation: two episodes of one person are no two witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratchet.core.contract.learning import Trigger

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

FORMING, FIRST, SECOND = 0, 1, 2
"""Parts of the subjects: half of them form hypotheses, a quarter tests each window."""
MOST_VALUES = 200
"""Values of an attribute that are looked at: the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Column:
    """An attribute with one value an episode."""

    codes: Codes
    """Index into `values` (n,); -1 where it is absent, or its value is none of the most frequent."""
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """An attribute with any number of values an episode."""

    matrix: Any
    """scipy.sparse.csc_array of booleans (n, values): scipy is typed in parts."""
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes of one role and window, n of them, in the order of their end."""

    ids: tuple[str, ...]
    subject: npt.NDArray[np.uint64]
    """Stable hash of the subject (n,)."""
    ended_at: Floats
    """Seconds since 1970 (n,)."""
    measures: Mapping[str, Floats]
    """`failure` 0 or 1, `reward`, `cost_usd`, `latency_ms`, `tokens`, `calls`, `feedback` (1 where any was given),
    `answer_chars`: (n,) each, NaN where unknown."""
    columns: Mapping[str, Column]
    """Known before the outcome: `task_type`, `domain`, `language`, `model`, `version`, `agent`, `hour`, `length`."""
    members: Mapping[str, Members]
    """Known before: `term` (of the first question), `document` (retrieved), `offered` (tools). Known after: `tool`,
    `tool_sequence` (pairs that follow one another), `tool_error` (tool and error, digits masked), `behavior` (what
    detectors flag in a single episode, such as `repeated_calls`), `component` (which the reward has)."""
    components: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    """Components of the reward (n,), NaN where absent."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self) -> npt.NDArray[np.int8]:
        """`FORMING`, `FIRST` or `SECOND` for each episode: by its subject alone, the same in every window."""
        quarter = (self.subject >> np.uint64(7)) % np.uint64(4)
        return np.where(quarter < 2, FORMING, np.where(quarter == 2, FIRST, SECOND)).astype(np.int8)

    def matching(self, triggers: Iterable[Trigger]) -> Mask:
        """Which of them all of the triggers hold of (n,); of none where an attribute or a value is unknown here."""
        held = np.ones(len(self), dtype=np.bool_)
        for trigger in triggers:
            held &= self._has(trigger)
        return held

    def _has(self, trigger: Trigger) -> Mask:
        table = self.columns.get(trigger.attribute) or self.members.get(trigger.attribute)
        if table is None or trigger.value not in table.values:
            return np.zeros(len(self), dtype=np.bool_)
        index = table.values.index(trigger.value)
        if isinstance(table, Column):
            return table.codes == index
        held = np.zeros(len(self), dtype=np.bool_)
        held[table.matrix.indices[table.matrix.indptr[index] : table.matrix.indptr[index + 1]]] = True
        return held


KNOWN_BEFORE = frozenset(
    {"task_type", "domain", "language", "model", "version", "agent", "hour", "length", "term", "document", "offered"}
)
"""Attributes that no outcome has touched: an effect of a plan may be measured among episodes that have one."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Episodes that match `triggers` differ in `measure` from the others; or the later window differs from the earlier
    one."""

    kind: str
    finding: str
    measure: str
    triggers: tuple[Trigger, ...] = ()
    between_windows: bool = False
    value: Callable[[Episodes], Floats] | None = None
    """What is compared, (n,), NaN where an episode does not count; None: `Episodes.measures[measure]`."""
    rare: float | None = None
    """It is no comparison but says that `value`, which is 0 or 1, is 1 in less than this share of the subjects: of n
    subjects without a 1, p is at most (1 - rare)^n."""
    terms: tuple[str, ...] = ()
    """Distinguish it, for its name."""
    also: Hypothesis | None = None
    """What must hold as well: a claim of two parts is tested in both."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A hypothesis that both tests bore out."""

    hypothesis: Hypothesis
    p_value: float
    """Of both tests together: the square of the larger one's."""
    effect: float
    low: float
    high: float
    """Of the test parts of both windows together; what formed it is not used again. Of the intervals of a run 95 % hold
    the true effect, on average: their level is adjusted for how few of its hypotheses are reported (Benjamini and
    Yekutieli, 2005). The effect itself is not: those that passed a test are larger than in truth more often."""
    share: float
    """Of the later window."""
    count: int
    reward_cost: float
    cost_usd: float
    stability: float
    evidence: tuple[str, ...]
    """Ids, the most typical first."""
