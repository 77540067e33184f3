"""The ledger as values: accounts, entries, and the balance of a window of sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

STORED, DEAD, DUPLICATE, ERASED, LOST = "stored", "dead", "duplicate", "erased", "lost"
"""Outcomes of a message. Only a `stored` one has a row in a fact table; a `lost` one can never be read again."""


@dataclass(frozen=True, slots=True)
class Account:
    """The ledger of one consumer, in one generation of its stream."""

    stream: str
    consumer: str
    generation: str


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome of one message."""

    sequence: int
    outcome: str
    sent_at: datetime | None = None
    """When the stream stored the message, where that is known: with the sequence it identifies the message."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Balance:
    """How many of a window's sequences, of which `span` is settled, have which outcome, and which lack entry or row."""

    window: int
    span: Gap
    stored: int = 0
    dead: int = 0
    duplicate: int = 0
    erased: int = 0
    lost: int = 0
    missing: Sequence[Gap] = ()
    """Settled messages without an entry."""
    absent: Sequence[Gap] = ()
    """Messages whose entry is `stored` and that have no row."""

    @property
    def is_even(self) -> bool:
        """Whether every message has its entry, and every stored one its row."""
        return not self.missing and not self.absent

    @property
    def gaps(self) -> list[Gap]:
        """The messages that must be read again, oldest first."""
        return ranges(sorted({s for gap in (*self.missing, *self.absent) for s in range(gap.first, gap.last + 1)}))


def ranges(sequences: Iterable[int]) -> list[Gap]:
    """Ascending sequences as ranges."""
    gaps: list[Gap] = []
    for sequence in sequences:
        if gaps and gaps[-1].last == sequence - 1:
            gaps[-1] = Gap(gaps[-1].first, sequence)
        else:
            gaps.append(Gap(sequence, sequence))
    return gaps


def size(gaps: Iterable[Gap]) -> int:
    """How many sequences there are in ranges that do not overlap."""
    return sum(len(gap) for gap in gaps)


def window_of(sequence: int, width: int) -> int:
    """The number of the window that a sequence, from 1 on, is in."""
    return (sequence - 1) // width


def span_of(window: int, width: int, first: int, floor: int) -> Gap:
    """The sequences of a window from the generation's `first` one up to the `floor`."""
    return Gap(max(first, window * width + 1), min(floor, (window + 1) * width))
