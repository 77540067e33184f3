"""A chain of audit entries: whatever is done to it afterwards shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import pytest
from nacl.signing import SigningKey

from ratchet.bus.testing import START
from ratchet.core.contract.audit import AuditEntry, AuditHead
from ratchet.core.rules import audit_check
from ratchet.core.rules.audit_check import ChainCheck
from ratchet.core.rules.audit_heads import signed_head
from ratchet.core.rules.hash_chain import seal

KEY = SigningKey(b"k" * 32)
PUBLIC = {KEY.verify_key.encode().hex()}
Chain = list[AuditEntry]


def chain(length: int, before: Sequence[AuditEntry] = (), act: str = "promote") -> Chain:
    """A chain that goes on from the end of another one."""
    entries = [*before]
    for _ in range(length):
        number = entries[-1].number + 1 if entries else 1
        entry = AuditEntry(service="console", number=number, at=START, act=act, outcome="done", actor="ann")
        entries.append(seal(entry, entries[-1].hash if entries else None))
    return entries


def head(entry: AuditEntry, key: SigningKey = KEY, minutes: int = 0) -> AuditHead:
    return signed_head(entry, key, START + timedelta(minutes=minutes))


def problems(
    streamed: Sequence[AuditEntry], heads: Sequence[AuditHead], archived: Sequence[AuditEntry] = ()
) -> list[tuple[int, str]]:
    check = ChainCheck("console")
    for entry in archived:
        check.add_archived(entry)
    for entry in streamed:
        check.add_streamed(entry)
    check.end(heads, PUBLIC)
    return [(problem.number, problem.reason) for problem in check.problems]


def test_whole_chain_has_no_problem_also_over_the_archives_end() -> None:
    entries = chain(6)
    assert problems(entries, [head(entries[3]), head(entries[5])]) == []
    assert problems(entries[2:], [head(entries[5])], archived=entries[:4]) == []
    assert problems(entries[4:], [head(entries[5])], archived=entries[:4]) == []
    assert problems([], [head(entries[5])], archived=[*entries, *entries[2:]]) == []


def changed(entries: Chain) -> Chain:
    return [*entries[:2], msgspec.structs.replace(entries[2], actor="bob"), *entries[3:]]


def resealed(entries: Chain) -> Chain:
    """A writer of the stream makes the whole chain anew from there on."""
    forged = seal(msgspec.structs.replace(entries[2], actor="bob"), entries[1].hash)
    return chain(3, [*entries[:2], forged])


def without_one(entries: Chain) -> Chain:
    return [*entries[:2], *entries[3:]]


def reordered(entries: Chain) -> Chain:
    return [*entries[:2], entries[3], entries[2], *entries[4:]]


def inserted(entries: Chain) -> Chain:
    return [*entries[:2], chain(1, entries[:2], "start")[-1], *entries[2:]]


def repeated(entries: Chain) -> Chain:
    return [*entries[:4], entries[1], *entries[4:]]


def cut_off(entries: Chain) -> Chain:
    return entries[:4]


def restored(entries: Chain) -> Chain:
    """The broker came back from an older copy, and the program went on."""
    return chain(3, entries[:3], "start")


def begun_anew(entries: Chain) -> Chain:
    return chain(2, act="start")


def put_together(entries: Chain) -> Chain:
    """Two processes of one program that did not know of each other."""
    other = chain(6, entries[:2], "start")
    return [*entries[:2], entries[2], other[2], entries[3], other[3], *entries[4:]]


@pytest.mark.parametrize(
    ("change", "number"),
    [
        *((changed, 3), (resealed, 6), (without_one, 4), (reordered, 4), (inserted, 3), (repeated, 2)),
        *((cut_off, 6), (restored, 6), (begun_anew, 6), (put_together, 3)),
    ],
)
def test_change_of_a_chain_shows(change: Callable[[Chain], Chain], number: int) -> None:
    entries = chain(6)
    shown = problems(change(entries), [head(entries[5])])
    assert number in {where for where, _ in shown}


def test_first_entries_that_are_gone_are_missed() -> None:
    entries = chain(4)
    assert problems(entries[2:], [head(entries[3])]) == [(3, audit_check.MISSING)]


def test_entry_that_the_stream_has_lost_is_named_by_the_archive() -> None:
    entries = chain(6)
    shown = problems([*entries[1:3], *entries[4:]], [head(entries[5])], archived=entries[:5])
    assert shown == [(4, audit_check.TAKEN_OUT)]


def test_archive_that_differs_from_the_stream_shows() -> None:
    entries = chain(4)
    assert problems(entries, [head(entries[3])], archived=changed(entries)[:3]) != []


def test_head_by_another_key_or_with_a_changed_content_is_refused() -> None:
    entries = chain(3)
    other, forged = head(entries[2], SigningKey(b"x" * 32)), msgspec.structs.replace(head(entries[2]), number=2)
    assert ["another key" in reason for _, reason in problems(entries, [other])] == [True]
    assert ["signature" in reason for _, reason in problems(entries, [forged])] == [True]


def test_chain_whose_heads_were_removed_shows() -> None:
    assert problems(chain(3), []) == [(3, audit_check.NO_HEAD)]
