"""Notifications of alerts and reports: the messages that receivers get, and what was sent to each of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import field

from ratchet.bus.message import Value
from ratchet.core.contract.state import Zoned
from ratchet.core.contract.values import Count, Ordinal, Role, Text, Uuid, listed

NOTIFICATIONS = "notifications"
"""The bucket of what was sent, a key for each receiver."""
FIRING, RESOLVED = "firing", "resolved"
"""States of an alert in a notification."""
MOST_ALERTS = 100
"""Most alerts that one notification lists; it counts the others."""
ReportKind = Literal["daily", "weekly", "job"]
"""Of a report: of a day, a week or a training."""


class NotifiedAlert(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One alert of a notification."""

    state: Annotated[str, listed(FIRING, RESOLVED)]
    """`firing`: it holds; `resolved`: it is over, after a notification that it held."""
    key: Text
    """Alerts with the same key are one alert."""
    alert_id: Uuid
    """The newest event of this alert."""
    severity: Annotated[str, listed("info", "warning", "critical")]
    """`info`, `warning` or `critical`: the one that it was raised with, also when it is over."""
    summary: Text
    """One line without control characters."""
    source: Text
    """Which service noticed."""
    at: Zoned
    """When it was noticed, or was over."""
    role: Role | None = None
    """Role it concerns, if one."""
    times: Ordinal = 1
    """How often it was raised since it last was over."""


class SentReport(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A report of a day, a week or a training."""

    kind: Annotated[str, listed(*get_args(ReportKind))]
    title: Text
    since: Zoned
    until: Zoned
    """End of the day or week, itself excluded; of a training, when it ended."""
    markdown: Text
    html: Text
    """The same as a fragment without script or style."""
    job_id: Uuid | None = None
    """The training."""


class Notification(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a webhook. The same `webhook-id` is the same notification, sent again because no 2xx came back."""

    TYPE: ClassVar[str] = "ratchet.alerts"
    REPORT: ClassVar[str] = "ratchet.report"

    type: Text
    """`ratchet.alerts`, or `ratchet.report`, which lists none."""
    timestamp: Zoned
    """When the notification was made."""
    receiver: Text
    """The receiver's name in Ratchet's settings."""
    alerts: list[NotifiedAlert]
    """The most severe first; 100 at most."""
    more: Count = 0
    """Alerts that it does not list; the stream RL_ALERTS has them."""
    report: SentReport | None = None


class KnownAlert(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a receiver knows of an alert."""

    alert_id: Uuid
    """The event that it was notified of."""
    severity: Text
    summary: Text
    source: Text
    at: Zoned
    """When it was notified."""
    role: Role | None = None
    resolved: bool = False
    """Whether it was notified that the alert is over, or was given a number of alerts alone."""


class Outgoing(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A notification under way. Until its receiver takes it, it stays as it is, with its id."""

    message_id: Uuid
    notification: Notification
    attempts: Count = 0
    next_at: Zoned
    """No earlier than this it is sent again: the pause after a failure, or the time that an attempt may take."""


class Sent(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A notification that a receiver took, or that was given up."""

    message_id: Uuid
    at: Zoned
    title: Text
    keys: list[str] = field(default_factory=list[str])
    """Keys of its alerts, the first few."""
    alerts: Ordinal = 1
    """How many there were; 1 of a report."""
    attempts: Ordinal = 1
    error: str | None = None
    """Why it was given up; absent where the receiver took it."""


class Receiver(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What was sent to a receiver, and what it is to get next: the value of a key of `notifications`."""

    name: Text
    kind: Text
    """`webhook`, or the scheme of its URL, such as `slack`. The URL itself is a secret."""
    severity: Text
    """The least severity that it gets."""
    roles: list[str] = field(default_factory=list[str])
    """The roles whose alerts it gets; empty: all alerts, also those of no role."""
    holder: str = ""
    """The notifier that sends to it."""
    beat: Count = 0
    """Grows while that one lives."""
    at: Zoned
    """When this was written."""
    quiet: bool = False
    """Whether its quiet hours hold back what is not critical."""
    error: str | None = None
    """Why it did not take the last attempt; absent where it did."""
    failures: Count = 0
    """Attempts in a row that it did not take."""
    known: dict[str, KnownAlert] = field(default_factory=dict[str, KnownAlert])
    """By key of the alert."""
    reported: dict[str, Zoned] = field(default_factory=dict[str, Zoned])
    """End of the newest report that it got, by `daily`, `weekly` or `job:<training_job_id>`."""
    outgoing: Outgoing | None = None
    sent: list[Sent] = field(default_factory=list[Sent])
    """The newest last."""
