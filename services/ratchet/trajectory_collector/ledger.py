"""The ledger as values: whose it is, what it says of a window of sequences, and what it lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

STORED, DEAD, DUPLICATE, ERASED, LOST = "stored", "dead", "duplicate", "erased", "lost"
"""What became of a message. Only `stored` has a row in a fact table; `lost` can never be read again."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whose ledger it is: a consumer's, of one life of its stream."""

    stream: str
    consumer: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one message."""

    sequence: int
    outcome: str
    sent_at: datetime | None = None
    """When the stream stored the message, where that is known: with the sequence it tells one message from another."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Balance:
    """What the ledger says of the sequences `span` of a window, and what is wrong with it."""

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
    """Messages that are stored by their entry and have no row."""

    @property
    def is_even(self) -> bool:
        """Whether every message has its entry, and every stored one its row."""
        return not self.missing and not self.absent

    @property
    def gaps(self) -> list[Gap]:
        """What must be read again, oldest first."""
        return ranges(sorted({s for gap in (*self.missing, *self.absent) for s in range(gap.first, gap.last + 1)}))


def ranges(sequences: Iterable[int]) -> list[Gap]:
    """Ascending sequences as ranges."""
    found: list[Gap] = []
    for sequence in sequences:
        if found and found[-1].last == sequence - 1:
            found[-1] = Gap(found[-1].first, sequence)
        else:
            found.append(Gap(sequence, sequence))
    return found


def size(gaps: Iterable[Gap]) -> int:
    """How many sequences there are in ranges that do not overlap."""
    return sum(len(gap) for gap in gaps)


def window_of(sequence: int, width: int) -> int:
    """The number of the window that a sequence, from 1 on, is in."""
    return (sequence - 1) // width


def span_of(window: int, width: int, first: int, floor: int) -> Gap:
    """The sequences of a window from the life's `first` one up to the `floor`."""
    return Gap(max(first, window * width + 1), min(floor, (window + 1) * width))
