"""Which gaps of the ledger are read in one go."""

from __future__ import annotations

from ratchet.trajectory_collector.ledger import Gap
from ratchet.trajectory_collector.restore import lies_in, runs

SCATTERED = [Gap(sequence, sequence) for sequence in range(1, 2000, 2)]


def test_a_thousand_scattered_gaps_are_one_reading():
    assert runs(SCATTERED, 256) == [SCATTERED]


def test_what_lies_far_apart_is_read_apart():
    near, also_near, far = Gap(1, 10), Gap(20, 30), Gap(1000, 1000)

    assert runs([near, also_near, far], 9) == [[near, also_near], [far]]
    assert runs([near, also_near, far], 8) == [[near], [also_near], [far]]
    assert runs([], 9) == []


def test_only_what_the_ledger_lacks_is_stored_again():
    run = [Gap(3, 5), Gap(8, 8)]

    assert [sequence for sequence in range(11) if lies_in(run, sequence)] == [3, 4, 5, 8]
