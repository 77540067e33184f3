"""Whether a program's chain of audit entries is whole, and ends where its signed heads say.

Entries come in their stored order: first those of the archive, then those that the stream still has, which may repeat
the archive's end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ratchet.core.contract.audit import AuditEntry, AuditHead
from ratchet.core.rules.audit_heads import has_signature
from ratchet.core.rules.hash_chain import digest

CHANGED = "the entry was changed"
ANEW = "a second chain begins here: the stream was made anew, or its end could not be read"
FORKED = (
    "the entry follows number {number} and not the one before it: the stream was restored from an older copy, or two"
    " chains were put together"
)
MISSING = "an entry before it is missing, or it was inserted"
TAKEN_OUT = "the archive has the entry, and the stream has lost it"
CUT_OFF = "a head was signed for it at {at}, and it is missing: the end was cut off, or restored from an older copy"
REPLACED = "it is not the entry that was signed at {at}"
BAD_SIGNATURE = "the signature of a head for it, of {at}, does not fit: the head was changed"
OTHER_KEY = "a head for it, of {at}, was signed by another key: {key}"
NO_HEAD = "no head of the chain is stored: they were removed, or its program has never reached the object store"


@dataclass(frozen=True, slots=True)
class Problem:
    """What does not hold."""

    number: int
    """Of the entry, as it says itself."""
    reason: str


@dataclass(slots=True)
class ChainCheck:
    """The check of one chain: feed it all entries of the archive, then those of the stream, then `end` it."""

    service: str
    entries: int = 0
    newest: AuditEntry | None = None
    signed: int = 0
    """Number of the newest entry that a head vouches for."""
    problems: list[Problem] = field(default_factory=list[Problem])
    _numbers: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """By the hash of the entry."""
    _repeated: set[bytes] = field(default_factory=set[bytes])
    """Hashes of the entries of the archive that the stream has, too."""
    _archived: int = 0
    """How many entries the archive has."""
    _overlap: int | None = None
    """Number of the first entry that both have."""

    def add_archived(self, entry: AuditEntry) -> None:
        """The next entry of the archive. Two files may repeat one another."""
        if self._place_of(entry) is None:
            self._follow(entry)
            self._archived += 1

    def add_streamed(self, entry: AuditEntry) -> None:
        """The next entry of the stream."""
        number, place = self._place_of(entry), _bytes_of(entry.hash or "")
        if number is None or place in self._repeated or not self._archived:
            self._follow(entry)
            return
        self._repeated.add(place)
        self._overlap = number if self._overlap is None else self._overlap

    def end(self, heads: Iterable[AuditHead], keys: Collection[str]) -> None:
        """All entries were added. `keys`: the public ones that may sign heads, none where they are not known."""
        if self._overlap is not None:
            archived = [*self._numbers.items()][: self._archived]
            lost = [number for place, number in archived if number > self._overlap and place not in self._repeated]
            self.problems += [Problem(number, TAKEN_OUT) for number in lost]
        self._check_heads(heads, keys)

    def _place_of(self, entry: AuditEntry) -> int | None:
        """The number of the entry, where it was added before as it is now."""
        if entry.hash is None or entry.hash != digest(entry):
            return None
        return self._numbers.get(_bytes_of(entry.hash))

    def _check_heads(self, heads: Iterable[AuditHead], keys: Collection[str]) -> None:
        given: Sequence[AuditHead] = sorted(heads, key=lambda head: (head.at, head.number))
        known = keys or {head.key for head in given[:1]}
        for head in given:
            if reason := self._problem_of(head, known):
                self.problems.append(Problem(head.number, reason))
            else:
                self.signed = max(self.signed, head.number)
        if self.newest is not None and not given:
            self.problems.append(Problem(self.newest.number, NO_HEAD))

    def _problem_of(self, head: AuditHead, keys: Collection[str]) -> str | None:
        at = head.at.isoformat(timespec="seconds").replace("+00:00", "Z")
        if head.key not in keys:
            return OTHER_KEY.format(at=at, key=head.key)
        if not has_signature(head):
            return BAD_SIGNATURE.format(at=at)
        if self._numbers.get(_bytes_of(head.hash)) == head.number:
            return None
        newest = self.newest.number if self.newest is not None else 0
        return (CUT_OFF if head.number > newest else REPLACED).format(at=at)

    def _follow(self, entry: AuditEntry) -> None:
        if entry.hash != digest(entry):
            self.problems.append(Problem(entry.number, CHANGED))
        elif reason := self._break_before(entry):
            self.problems.append(Problem(entry.number, reason))
        if entry.hash is not None:
            self._numbers.setdefault(_bytes_of(entry.hash), entry.number)
        self.entries += 1
        self.newest = entry

    def _break_before(self, entry: AuditEntry) -> str | None:
        """Why an entry does not follow the one before it."""
        before = self.newest
        number, previous = (before.number, before.hash) if before is not None else (0, None)
        if entry.previous_hash == previous and entry.number == number + 1:
            return None
        if entry.previous_hash is None:
            return ANEW
        follows = self._numbers.get(_bytes_of(entry.previous_hash))
        return MISSING if follows is None or entry.previous_hash == previous else FORKED.format(number=follows)


def _bytes_of(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return digest.encode()
