"""Which alerts hold, whatever was raised, cleared or repeated before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ratchet.core.contract import Alert, named_id
from ratchet.core.rules.alert_book import MOST, AlertBook

NOW = datetime(2026, 3, 2, 15, tzinfo=UTC)


def alert(key: str, number: int = 1, *, at: datetime = NOW, cleared: bool = False) -> Alert:
    return Alert(
        alert_id=named_id(key, number, cleared),
        key=key,
        severity="warning",
        summary=f"of {key}",
        source="collector",
        at=at,
        cleared=cleared,
    )


def book_of(*alerts: Alert) -> AlertBook:
    book = AlertBook()
    for event in alerts:
        book.add(event)
    return book


def test_an_alert_holds_until_it_is_cleared_or_a_day_has_passed() -> None:
    book = book_of(alert("a"), alert("b"), alert("a", 2, at=NOW + timedelta(hours=1)))
    assert [one.key for one in book.holding(NOW + timedelta(hours=2))] == ["b", "a"]
    assert [one.key for one in book.holding(NOW + timedelta(hours=24, minutes=1))] == ["a"]
    book.add(alert("a", 3, cleared=True))
    assert [one.key for one in book.holding(NOW)] == ["b"]


def test_alerts_of_one_key_are_counted_until_it_is_over() -> None:
    book = book_of(alert("a", 1), alert("a", 2), alert("a", 2))
    assert [(one.alert.key, one.times) for one in book] == [("a", 2)]
    book.add(alert("a", 3, cleared=True))
    book.add(alert("a", 4))
    assert [(one.alert.cleared, one.times) for one in book] == [(False, 1)]


def test_a_service_that_raises_a_new_alert_each_moment_fills_no_memory() -> None:
    book = book_of(*(alert(f"a{number}") for number in range(MOST + 3)))
    kept = book.holding(NOW)
    assert (len(kept), kept[0].key, book.dropped) == (MOST, "a3", 3)
    for number in range(2 * MOST):
        book.add(alert(f"a{number}", 2, cleared=True))
    assert len([*book]) <= 2 * MOST
