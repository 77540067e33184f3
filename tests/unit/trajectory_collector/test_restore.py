"""Gaps of the ledger are read in few passes over the stream."""

from __future__ import annotations

from ratchet.trajectory_collector.ledger import Gap
from ratchet.trajectory_collector.restore import lies_in, runs

SCATTERED = [Gap(sequence, sequence) for sequence in range(1, 2000, 2)]


def test_a_thousand_scattered_gaps_are_one_pass() -> None:
    assert runs(SCATTERED, 256) == [SCATTERED]


def test_gaps_far_apart_are_read_in_separate_passes() -> None:
    near, also_near, far = Gap(1, 10), Gap(20, 30), Gap(1000, 1000)

    assert runs([near, also_near, far], 9) == [[near, also_near], [far]]
    assert runs([near, also_near, far], 8) == [[near], [also_near], [far]]
    assert runs([], 9) == []


def test_only_messages_that_the_ledger_lacks_are_stored_again() -> None:
    run = [Gap(3, 5), Gap(8, 8)]

    assert [sequence for sequence in range(11) if lies_in(run, sequence)] == [3, 4, 5, 8]
