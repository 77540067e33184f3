"""Dead letters that are selected by number."""

from __future__ import annotations

from ratchet.cli.deadletters import AT_ONCE, near


def test_letters_that_lie_far_apart_are_not_read_together() -> None:
    """Else a command on the oldest and the newest one reads, and holds in memory, everything between them."""
    assert list(near([5 * AT_ONCE, 1, AT_ONCE, AT_ONCE + 1])) == [[1, AT_ONCE], [AT_ONCE + 1], [5 * AT_ONCE]]
    assert list(near([])) == []
