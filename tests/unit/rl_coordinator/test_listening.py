"""The coordinator knows since when it can hear."""

from ratchet.rl_coordinator.jobs.domain.listening import Listening, look
from tests.support.training import after


def test_looks_close_to_each_other_are_one_stretch() -> None:
    first = look(None, after(0), gap_s=5)
    assert look(look(first, after(4), 5), after(8), 5) == Listening(since=after(0), last=after(8))


def test_a_pause_starts_a_new_stretch() -> None:
    assert look(look(None, after(0), 5), after(6), 5) == Listening(since=after(6), last=after(6))


def test_a_clock_set_back_starts_a_new_stretch() -> None:
    assert look(look(None, after(100), 5), after(50), 5) == Listening(since=after(50), last=after(50))
