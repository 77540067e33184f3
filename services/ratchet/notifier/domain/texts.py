"""A notification as a person reads it: plain, and short enough for any chat."""

from __future__ import annotations

import unicodedata

from ratchet.core.contract.notifications import FIRING, Notification, NotifiedAlert

LONGEST = 300
"""Characters of a text."""
LONGEST_BODY = 1800
"""Characters of a message: Discord takes 2,000."""
_WIDE = str.maketrans({"@": "＠", "<": "‹", ">": "›", "`": "'", "*": "∗", "_": "＿", "|": "¦", "[": "［", "]": "］"})
"""Characters by which chats mention people and mark up text, and those that only look like them."""


def plain(text: str) -> str:
    """One line without what cannot be seen: no control characters, no marks that turn the direction of writing."""
    shown = "".join(" " if unicodedata.category(mark) in ("Cc", "Cf", "Zl", "Zp", "Cs") else mark for mark in text)
    line = " ".join(shown.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def unmarked(text: str) -> str:
    """The text without characters that a chat could take for a mention, a link or mark-up."""
    return text.translate(_WIDE)


def title_of(notification: Notification) -> str:
    """One line."""
    alerts, count = notification.alerts, len(notification.alerts) + notification.more
    if count == 1:
        return f"{_label(alerts[0])}: {alerts[0].summary}"
    firing = [alert for alert in alerts if alert.state == FIRING]
    if not firing:
        return f"{count} alerts resolved"
    critical = sum(alert.severity == "critical" for alert in firing)
    return f"{count} alerts" + (f", {critical} of them critical" if critical else "")


def body_of(notification: Notification) -> str:
    """A line for each alert, as many as there is room for, and how many more there are."""
    lines: list[str] = []
    for alert in notification.alerts:
        line = unmarked(_line(alert))
        if sum(map(len, lines)) + len(lines) + len(line) > LONGEST_BODY:
            break
        lines.append(line)
    more = len(notification.alerts) - len(lines) + notification.more
    return "\n".join([*lines, *([f"... and {more} more: see `ratchet alerts`"] if more else [])])


def _label(alert: NotifiedAlert) -> str:
    return alert.severity if alert.state == FIRING else "resolved"


def _line(alert: NotifiedAlert) -> str:
    role = f" (role {alert.role})" if alert.role is not None else ""
    times = f", {alert.times} times" if alert.times > 1 else ""
    return f"{_label(alert)}: {alert.summary}{role} - {alert.source}, {alert.at:%Y-%m-%d %H:%M} UTC{times}"
