"""What a receiver gets, and when: once, again when it is worse, and that it is over only after it held."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.notifications import FIRING, MOST_ALERTS, RESOLVED, NotifiedAlert, Receiver, SentReport
from ratchet.core.rules.alert_book import MOST, AlertBook
from ratchet.core.rules.notifications import SEVERITIES
from ratchet.notifier.domain.deliveries import (
    GIVE_UP,
    LONGEST_PAUSE,
    SPACING,
    Rules,
    attempted,
    composed,
    delivered,
    due,
    failed,
    is_due,
    with_report,
)
from ratchet.notifier.domain.quiet_hours import quiet_hours
from ratchet.notifier.kv_receivers import ReceiverStore

NOW = datetime(2026, 3, 2, 15, tzinfo=UTC)
RULES = Rules(name="team")
BLANK = Receiver(name="team", kind="webhook", severity="warning", at=NOW)


def alert(
    key: str = "disk",
    number: int = 1,
    severity: str = "critical",
    *,
    at: datetime = NOW,
    cleared: bool = False,
    role: str | None = None,
) -> Alert:
    return Alert(
        alert_id=named_id(key, number, cleared),
        key=key,
        severity="info" if cleared else severity,
        summary=f"{key} {number}",
        source="collector",
        at=at,
        cleared=cleared,
        role=role,
    )


def book_of(alerts: Iterable[Alert]) -> AlertBook:
    book = AlertBook()
    for event in alerts:
        book.add(event)
    return book


class Inbox:
    """A receiver and what it has got."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules, self.state, self.book, self.got = rules, BLANK, AlertBook(), list[NotifiedAlert]()
        self.messages = 0

    def hear(self, *alerts: Alert, at: datetime = NOW) -> list[tuple[str, str]]:
        """The states and keys that it gets at an instant, after these alerts."""
        for event in alerts:
            self.book.add(event)
        changes = due(self.state, self.book, self.rules, at)
        if changes:
            self.take(changes, at)
        return [(change.state, change.key) for change in changes]

    def take(self, changes: Sequence[NotifiedAlert], at: datetime) -> None:
        state = composed(self.state, changes, 0, named_id("message", self.messages), at)
        assert state.outgoing is not None
        state = attempted(state, state.outgoing, at)
        assert state.outgoing is not None
        self.got += state.outgoing.notification.alerts
        self.state = delivered(state, state.outgoing, at)
        self.messages += 1


def later(**span: float) -> datetime:
    return NOW + timedelta(**span)


def test_an_alert_is_sent_once_and_its_end_once() -> None:
    inbox = Inbox()
    assert inbox.hear(alert()) == [(FIRING, "disk")]
    assert inbox.hear(alert(), at=later(minutes=1)) == []
    assert inbox.hear(alert(number=2, cleared=True), at=later(minutes=2)) == [(RESOLVED, "disk")]
    assert inbox.hear(at=later(hours=3)) == []


def test_the_end_of_an_alert_that_was_never_sent_is_no_news() -> None:
    assert Inbox().hear(alert(), alert(number=2, cleared=True)) == []
    assert Inbox().hear(alert(cleared=True)) == []


def test_an_alert_that_comes_again_is_sent_after_the_cool_down() -> None:
    inbox = Inbox()
    inbox.hear(alert())
    assert inbox.hear(alert(number=2, at=later(minutes=30)), at=later(minutes=30)) == []
    assert inbox.hear(at=later(minutes=60)) == [(FIRING, "disk")]
    assert inbox.got[-1].times == 2


def test_an_alert_that_comes_and_goes_is_sent_twice_an_hour_at_most() -> None:
    inbox = Inbox()
    for minute in range(120):
        inbox.hear(alert(number=minute, cleared=minute % 2 == 1, at=later(minutes=minute)), at=later(minutes=minute))
    assert [change.state for change in inbox.got] == [FIRING, RESOLVED] * 2


def test_an_alert_that_is_worse_is_sent_within_the_cool_down() -> None:
    inbox = Inbox()
    inbox.hear(alert(severity="warning"))
    assert inbox.hear(alert(number=2), at=later(minutes=1)) == [(FIRING, "disk")]
    assert inbox.hear(alert(number=3, severity="warning"), at=later(minutes=2)) == []


def test_severity_and_role_decide_who_gets_an_alert() -> None:
    alerts = [
        alert("a", severity="info"),
        alert("b", severity="warning", role="support"),
        alert("c", role="sales"),
        alert("d"),
    ]
    assert [key for _, key in Inbox().hear(*alerts)] == ["c", "d", "b"]
    assert [key for _, key in Inbox(replace(RULES, severity="critical")).hear(*alerts)] == ["c", "d"]
    assert [key for _, key in Inbox(replace(RULES, roles=("support",))).hear(*alerts)] == ["b"]
    assert [key for _, key in Inbox(replace(RULES, severity="info")).hear(*alerts)] == ["c", "d", "b", "a"]


def test_a_receiver_is_not_notified_of_itself() -> None:
    assert Inbox().hear(alert("receiver:team"), alert("receiver:other")) == [(FIRING, "receiver:other")]


def test_quiet_hours_hold_back_what_is_not_critical_until_they_end() -> None:
    inbox = Inbox(replace(RULES, quiet=quiet_hours("14:00-18:00")))
    assert inbox.hear(alert("a", severity="warning"), alert("b"), alert("c", severity="warning")) == [(FIRING, "b")]
    over = alert("c", 2, cleared=True, at=later(hours=1))
    assert inbox.hear(over, at=later(hours=1)) == []
    assert inbox.hear(at=later(hours=3)) == [(FIRING, "a")]


def test_alerts_in_a_burst_go_together_and_are_counted_beyond_a_hundred() -> None:
    inbox = Inbox()
    burst = [alert(f"k{number}", severity="warning") for number in range(10_000)]
    inbox.hear(*burst[:1])
    assert inbox.hear(*burst[1:], at=later(seconds=1)) == []
    changes = inbox.hear(at=NOW + SPACING)
    assert (inbox.messages, len(changes), len(inbox.got)) == (2, MOST, 1 + MOST_ALERTS)
    assert inbox.book.dropped == 10_000 - MOST
    ended = [alert(f"k{number}", 2, cleared=True) for number in range(10_000)]
    assert len(inbox.hear(*ended, at=later(hours=2))) == MOST_ALERTS
    firing = {change.key for change in inbox.got if change.state == FIRING}
    assert {change.key for change in inbox.got if change.state == RESOLVED} <= firing
    assert len(inbox.state.known) <= MOST


def test_an_old_alert_is_no_news_for_a_new_receiver() -> None:
    assert Inbox().hear(alert(at=NOW - timedelta(hours=25)), alert("b", at=NOW - timedelta(hours=23))) == [
        (FIRING, "b")
    ]


def test_a_failed_attempt_is_repeated_with_the_same_id_ever_later() -> None:
    state = composed(BLANK, due(BLANK, book_of([alert()]), RULES, NOW), 0, "m", NOW)
    now, pauses = NOW, list[timedelta]()
    for _ in range(12):
        assert state.outgoing is not None
        assert is_due(state.outgoing, now)
        state = attempted(state, state.outgoing, now)
        assert state.outgoing is not None
        assert not is_due(state.outgoing, now)
        state = failed(state, state.outgoing, "answered 500", RULES, now)
        assert state.outgoing is not None
        assert (state.outgoing.message_id, state.error) == ("m", "answered 500")
        assert due(state, book_of([alert("b")]), RULES, now) == []
        pauses.append(state.outgoing.next_at - now)
        now = state.outgoing.next_at
    assert pauses[:3] == [timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20)]
    assert pauses[-1] == LONGEST_PAUSE
    assert (state.failures, state.known) == (12, {})


@pytest.mark.parametrize("taken", [False, True])
async def test_what_was_under_way_holds_for_the_process_that_comes_next(taken: bool, tmp_path: Path) -> None:
    def store() -> ReceiverStore:
        return ReceiverStore(BLANK, tmp_path, "holder", lambda: None)

    state = composed(BLANK, due(BLANK, book_of([alert()]), RULES, NOW), 0, named_id("message"), NOW)
    assert state.outgoing is not None
    await store().save(delivered(state, state.outgoing, NOW) if taken else state, NOW)
    assert [held.key for held in store().firing("collector")] == ["disk"]
    assert store().firing("reward_computer") == []


def test_a_notification_that_fails_for_a_day_is_given_up_and_remembered() -> None:
    state = composed(BLANK, due(BLANK, book_of([alert()]), RULES, NOW), 0, "m", NOW)
    assert state.outgoing is not None
    state = failed(state, state.outgoing, "answered 500", RULES, NOW + GIVE_UP + timedelta(seconds=1))
    assert state.outgoing is None
    assert [(sent.error, sent.keys) for sent in state.sent] == [("answered 500", ["disk"])]


def test_a_clock_that_is_set_back_keeps_no_one_waiting() -> None:
    inbox = Inbox()
    inbox.hear(alert(at=later(days=1)), at=later(days=1))
    assert inbox.hear(alert("b"), at=NOW) == [(FIRING, "b")]
    state = composed(BLANK, due(BLANK, book_of([alert()]), RULES, NOW), 0, "m", NOW)
    assert state.outgoing is not None
    waiting = attempted(state, state.outgoing, later(days=1)).outgoing
    assert waiting is not None
    assert is_due(waiting, NOW)


@pytest.mark.parametrize("seed", range(20))
def test_no_end_is_sent_without_its_alert_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    inbox, now, open_keys = Inbox(replace(RULES, quiet=quiet_hours("16:00-17:00"))), NOW, set[str]()
    for number in range(400):
        now += timedelta(seconds=draw.choice([1, 40, 600, -300]))
        key, severity = draw.choice("abc"), draw.choice(SEVERITIES)
        event = alert(key, number, severity, cleared=draw.random() < 0.4, at=now)
        for state, changed in inbox.hear(event, at=now):
            assert state == FIRING or changed in open_keys
            (open_keys.add if state == FIRING else open_keys.discard)(changed)


def report() -> SentReport:
    return SentReport(
        kind="daily", title="A day", since=NOW - timedelta(days=1), until=NOW, markdown="# A day", html="<p>"
    )


def test_alert_takes_the_place_of_a_report_that_is_not_taken() -> None:
    waiting = with_report(BLANK, report(), NOW)
    changes = due(waiting, book_of([alert()]), RULES, NOW)
    assert [change.key for change in changes] == ["disk"]
    after = composed(waiting, changes, 0, "m", NOW)
    assert after.outgoing is not None
    assert (after.outgoing.notification.report, after.reported) == (None, {})


def test_report_counts_as_sent_once_it_was_taken_and_keeps_its_id() -> None:
    first, again = with_report(BLANK, report(), NOW), with_report(BLANK, report(), later(hours=1))
    assert first.outgoing is not None
    assert again.outgoing is not None
    assert first.outgoing.message_id == again.outgoing.message_id
    taken = delivered(first, first.outgoing, NOW)
    assert (taken.outgoing, taken.reported, taken.sent[-1].title) == (None, {"daily": NOW}, "A day")


def test_report_that_fails_for_a_day_is_given_up() -> None:
    state = with_report(BLANK, report(), NOW)
    assert state.outgoing is not None
    state = failed(state, state.outgoing, "answered 500", RULES, NOW + GIVE_UP + timedelta(seconds=1))
    assert (state.outgoing, state.reported) == (None, {"daily": NOW})
