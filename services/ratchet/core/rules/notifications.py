"""Alerts and receivers as people look at them: what holds, and what was sent to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AlertsOut, HeldAlertOut, ReceiverOut, SentOut
from ratchet.core.contract.notifications import Receiver

UNATTENDED = timedelta(minutes=1)
"""A notifier writes the state of its receivers every ten seconds."""
SHOWN = 20
"""Most notifications of a receiver."""
SEVERITIES = ("critical", "warning", "info")


def alerts_out(alerts: Iterable[Alert], receivers: Sequence[Receiver], now: datetime) -> AlertsOut:
    """The answer for these alerts that hold, oldest first, and these receivers."""
    held = [
        HeldAlertOut(
            key=alert.key,
            severity=alert.severity,
            summary=alert.summary,
            source=alert.source,
            role=alert.role,
            at=alert.at,
            sent_to=[receiver.name for receiver in receivers if _knows(receiver, alert)],
        )
        for alert in alerts
    ]
    held.sort(key=lambda alert: SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else 0)
    return AlertsOut(alerts=held, receivers=[_receiver_out(receiver, now) for receiver in receivers])


def _knows(receiver: Receiver, alert: Alert) -> bool:
    known = receiver.known.get(alert.key)
    return known is not None and not known.resolved


def _receiver_out(receiver: Receiver, now: datetime) -> ReceiverOut:
    failing = "failing" if receiver.error is not None else None
    state = "away" if now - receiver.at > UNATTENDED else failing or ("quiet" if receiver.quiet else "ready")
    return ReceiverOut(
        name=receiver.name,
        kind=receiver.kind,
        severity=receiver.severity,
        roles=receiver.roles,
        state=state,
        reason=receiver.error,
        sent=[
            SentOut(at=sent.at, title=sent.title, alerts=sent.alerts, attempts=sent.attempts, error=sent.error)
            for sent in reversed(receiver.sent[-SHOWN:])
        ],
    )
