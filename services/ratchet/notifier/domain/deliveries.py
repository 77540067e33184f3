"""What a receiver is to get next, and what it knows after an attempt: pure steps of its state.

    due -> composed -> attempted -> delivered
                          ^  └──── failed ──── given up after a day
                          └──────────┘

A receiver gets what differs between the alerts that hold and what it knows. What came and went before it could be
sent is no news; what holds is not forgotten, however long a receiver was away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.notifications import (
    FIRING,
    MOST_ALERTS,
    RESOLVED,
    KnownAlert,
    Notification,
    NotifiedAlert,
    Outgoing,
    Receiver,
    Sent,
    SentReport,
)
from ratchet.core.rules.alert_book import MOST, RECENTLY, Noticed
from ratchet.core.rules.notifications import SEVERITIES
from ratchet.notifier.domain.quiet_hours import QuietHours
from ratchet.notifier.domain.schedule import name_of
from ratchet.notifier.domain.texts import plain, title_of

SPACING = timedelta(seconds=30)
"""Between two notifications of a receiver: what comes meanwhile goes together."""
CLAIM = timedelta(seconds=30)
"""Longer than an attempt takes: after a crash in one, the next attempt waits for so long."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=15)
"""Pauses between attempts double from the first to the longest."""
GIVE_UP = timedelta(days=1)
"""A notification that is not taken for so long is no news any more."""
KEPT = 50
"""Notifications whose fate is remembered."""
NAMED_KEYS = 5
"""Keys of a notification that are remembered with it."""
RECEIVER_KEY = "receiver:"
"""Beginning of the key of the alert that a receiver does not take notifications; that receiver does not get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a receiver gets."""

    name: str
    severity: str = "warning"
    """The least severity."""
    roles: tuple[str, ...] = ()
    """The roles whose alerts it gets; none: every alert, also those of no role."""
    cool_down: timedelta = timedelta(hours=1)
    """It gets an alert that comes again no sooner, unless that is worse."""
    quiet: QuietHours | None = None
    reports: frozenset[str] = frozenset()
    """Kinds of reports that it gets."""
    spacing: timedelta = SPACING
    first_pause: timedelta = FIRST_PAUSE

    def want(self, alert: Alert) -> bool:
        """Whether the receiver gets such an alert."""
        if alert.key == f"{RECEIVER_KEY}{self.name}":
            return False
        return _rank(alert.severity) >= _rank(self.severity) and (not self.roles or alert.role in self.roles)

    def hold_back(self, severity: str, now: datetime) -> bool:
        """Whether it is quiet for such an alert."""
        return severity != SEVERITIES[0] and self.quiet is not None and self.quiet.cover(now)


def due(receiver: Receiver, alerts: Iterable[Noticed], rules: Rules, now: datetime) -> list[NotifiedAlert]:
    """What the receiver is to get now, the most severe first; nothing while another notification is under way.

    A report waits: alerts take its place, and it is made anew after them.
    """
    outgoing = receiver.outgoing
    is_under_way = outgoing is not None and outgoing.notification.report is None
    if is_under_way or (receiver.sent and _within(receiver.sent[-1].at, rules.spacing, now)):
        return []
    news = (_news(receiver.known.get(noticed.alert.key), noticed, rules, now) for noticed in alerts)
    return sorted(
        (change for change in news if change is not None and not rules.hold_back(change.severity, now)),
        key=lambda change: (change.state != FIRING, -_rank(change.severity), change.at, change.key),
    )


def _news(known: KnownAlert | None, noticed: Noticed, rules: Rules, now: datetime) -> NotifiedAlert | None:
    """What is new of an alert for a receiver that knows so much of it."""
    alert, holds = noticed.alert, known is not None and not known.resolved
    if alert.cleared:
        return _change(RESOLVED, alert, known.severity) if known is not None and holds else None
    if not rules.want(alert):
        return None
    if known is not None:
        worse = holds and _rank(alert.severity) > _rank(known.severity)
        if alert.alert_id == known.alert_id or (not worse and _within(known.at, rules.cool_down, now)):
            return None
    if not holds and now - alert.at > RECENTLY:
        return None
    return _change(FIRING, alert, alert.severity, noticed.times)


def composed(
    receiver: Receiver, changes: Sequence[NotifiedAlert], dropped: int, message_id: str, now: datetime
) -> Receiver:
    """With a notification of these changes under way, and of `dropped` alerts that were too many to keep.

    What it does not list is given as a number alone: its end is no news.
    """
    listed, others = changes[:MOST_ALERTS], changes[MOST_ALERTS:]
    notification = Notification(
        type=Notification.TYPE,
        timestamp=now,
        receiver=receiver.name,
        alerts=[*listed],
        more=len(others) + dropped,
    )
    counted = {change.key: replace(_known(change, now), resolved=True) for change in others}
    outgoing = Outgoing(message_id=message_id, notification=notification, next_at=now)
    return replace(receiver, outgoing=outgoing, known={**receiver.known, **counted})


def with_report(receiver: Receiver, report: SentReport, now: datetime) -> Receiver:
    """With a report under way: the same one has the same id."""
    notification = Notification(
        type=Notification.REPORT, timestamp=now, receiver=receiver.name, alerts=[], report=report
    )
    message_id = named_id("report", receiver.name, name_of(report), report.until.isoformat())
    return replace(receiver, outgoing=Outgoing(message_id=message_id, notification=notification, next_at=now))


def is_due(outgoing: Outgoing, now: datetime) -> bool:
    """Whether it may be sent; a pause longer than any is one of a clock that was set back."""
    return not timedelta() < outgoing.next_at - now <= max(CLAIM, LONGEST_PAUSE)


def attempted(receiver: Receiver, outgoing: Outgoing, now: datetime) -> Receiver:
    """Before the notification is sent: so a notifier that goes on from here knows of the attempt."""
    claimed = replace(outgoing, attempts=outgoing.attempts + 1, next_at=now + CLAIM)
    return replace(receiver, outgoing=claimed)


def delivered(receiver: Receiver, outgoing: Outgoing, now: datetime) -> Receiver:
    """After the receiver took the notification."""
    sent = [*receiver.sent, _sent(outgoing, now)][-KEPT:]
    known = _kept(known_once_taken(receiver, outgoing, now))
    reported = _reported(receiver, outgoing)
    return replace(receiver, outgoing=None, known=known, reported=reported, sent=sent, error=None, failures=0)


def known_once_taken(receiver: Receiver, outgoing: Outgoing, now: datetime) -> dict[str, KnownAlert]:
    """What a receiver knows after this notification, which it may have got although no process lived to note that."""
    return {**receiver.known, **{change.key: _known(change, now) for change in outgoing.notification.alerts}}


def failed(receiver: Receiver, outgoing: Outgoing, reason: str, rules: Rules, now: datetime) -> Receiver:
    """After an attempt that the receiver did not take."""
    after = replace(receiver, error=reason, failures=receiver.failures + 1)
    if now - outgoing.notification.timestamp > GIVE_UP:
        sent = [*receiver.sent, _sent(outgoing, now, reason)][-KEPT:]
        return replace(after, outgoing=None, reported=_reported(receiver, outgoing), sent=sent)
    pause = min(rules.first_pause * 2 ** min(outgoing.attempts - 1, 16), LONGEST_PAUSE)
    return replace(after, outgoing=replace(outgoing, next_at=now + pause))


def _reported(receiver: Receiver, outgoing: Outgoing) -> dict[str, datetime]:
    report = outgoing.notification.report
    return receiver.reported if report is None else {**receiver.reported, name_of(report): report.until}


def _rank(severity: str) -> int:
    """A severity that is not known is taken for the worst one."""
    return -SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _within(since: datetime, span: timedelta, now: datetime) -> bool:
    """Whether less than `span` has passed; an instant to come is of a clock that was set back since."""
    return timedelta() <= now - since < span


def _change(state: str, alert: Alert, severity: str, times: int = 1) -> NotifiedAlert:
    return NotifiedAlert(
        state=state,
        key=alert.key,
        alert_id=alert.alert_id,
        severity=severity,
        summary=plain(alert.summary),
        source=plain(alert.source),
        at=alert.at,
        role=alert.role,
        times=max(times, 1),
    )


def _known(change: NotifiedAlert, now: datetime) -> KnownAlert:
    return KnownAlert(
        alert_id=change.alert_id,
        severity=change.severity,
        summary=change.summary,
        source=change.source,
        at=now,
        role=change.role,
        resolved=change.state == RESOLVED,
    )


def _kept(known: dict[str, KnownAlert]) -> dict[str, KnownAlert]:
    """The newest ones, of those that are over fewer: what holds must not be forgotten for them."""
    ordered = sorted(known.items(), key=lambda item: (not item[1].resolved, item[1].at))
    return dict(ordered[-MOST:])


def _sent(outgoing: Outgoing, now: datetime, error: str | None = None) -> Sent:
    alerts = outgoing.notification.alerts
    return Sent(
        message_id=outgoing.message_id,
        at=now,
        title=title_of(outgoing.notification),
        keys=[change.key for change in alerts[:NAMED_KEYS]],
        alerts=max(len(alerts) + outgoing.notification.more, 1),
        attempts=max(outgoing.attempts, 1),
        error=error,
    )
