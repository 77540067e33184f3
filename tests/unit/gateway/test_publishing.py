"""The gateway serves a canary only while the broker stores its events."""

from __future__ import annotations

from ratchet.gateway.publishing import Observation


def observed(*counts: tuple[float, int, int, int]) -> Observation:
    """After counts of (when, published, pending, lost), with a patience of 20 s."""
    seen = Observation(20.0, 0.0)
    for now_s, published, pending, lost in counts:
        seen.observe(published=published, pending=pending, lost=lost, now_s=now_s)
    return seen


def test_a_gateway_with_nothing_to_publish_is_not_blind_however_long_that_lasts() -> None:
    seen = observed((1.0, 0, 0, 0), (1000.0, 0, 0, 0))
    assert not seen.is_blind(1015.0)


def test_a_gateway_is_blind_once_nothing_got_through_for_longer_than_the_patience() -> None:
    seen = observed((10.0, 5, 0, 0), (11.0, 5, 3, 0), (30.0, 5, 9, 0))
    assert not seen.is_blind(30.0)
    assert seen.is_blind(30.1)


def test_a_gateway_is_not_blind_while_part_of_its_backlog_gets_through() -> None:
    seen = observed((10.0, 5, 100, 0), (29.0, 6, 200, 0))
    assert not seen.is_blind(45.0)


def test_an_event_that_gets_through_ends_the_blindness() -> None:
    seen = observed((0.0, 0, 1, 0), (30.0, 0, 1, 0))
    assert seen.is_blind(30.0)
    seen.observe(published=1, pending=0, lost=0, now_s=31.0)
    assert not seen.is_blind(31.0)


def test_a_loss_blinds_for_as_long_as_the_patience() -> None:
    seen = observed((10.0, 5, 0, 1), (15.0, 6, 0, 1))
    assert seen.is_blind(30.0)
    assert not seen.is_blind(30.1)
    seen.observe(published=7, pending=0, lost=2, now_s=40.0)
    assert seen.is_blind(41.0)


def test_a_late_count_shows_a_backlog_from_before_it() -> None:
    """The event loop was busy: a count that was not taken does not prove that events got through."""
    seen = observed((0.0, 5, 3, 0))
    assert seen.is_blind(60.0)
