"""A canary is served only while what the gateway publishes is stored."""

from __future__ import annotations

from ratchet.gateway.domain.observation import Observation


def observed(*looks: tuple[float, int, int, int]) -> Observation:
    """After looks of (when, published, pending, lost), with a patience of 20 s."""
    seen = Observation(20.0, 0.0)
    for now_s, published, pending, lost in looks:
        seen.look(published=published, pending=pending, lost=lost, now_s=now_s)
    return seen


def test_nothing_to_publish_is_no_blindness_however_long_it_lasts() -> None:
    seen = observed((1.0, 0, 0, 0), (1000.0, 0, 0, 0))
    assert not seen.is_blind(1015.0)


def test_it_is_blind_once_nothing_got_through_for_longer_than_the_patience() -> None:
    seen = observed((10.0, 5, 0, 0), (11.0, 5, 3, 0), (30.0, 5, 9, 0))
    assert not seen.is_blind(30.0)
    assert seen.is_blind(30.1)


def test_a_backlog_of_which_something_gets_through_is_no_blindness() -> None:
    seen = observed((10.0, 5, 100, 0), (29.0, 6, 200, 0))
    assert not seen.is_blind(45.0)


def test_what_gets_through_ends_the_blindness() -> None:
    seen = observed((0.0, 0, 1, 0), (30.0, 0, 1, 0))
    assert seen.is_blind(30.0)
    seen.look(published=1, pending=0, lost=0, now_s=31.0)
    assert not seen.is_blind(31.0)


def test_a_loss_blinds_for_as_long_as_the_patience() -> None:
    seen = observed((10.0, 5, 0, 1), (15.0, 6, 0, 1))
    assert seen.is_blind(30.0)
    assert not seen.is_blind(30.1)
    seen.look(published=7, pending=0, lost=2, now_s=40.0)
    assert seen.is_blind(41.0)


def test_a_look_that_comes_late_shows_what_has_waited_since_before_it() -> None:
    """The loop was held up: that nobody looked is no reason to call the way to the broker open."""
    seen = observed((0.0, 5, 3, 0))
    assert seen.is_blind(60.0)
