"""A notification as a person reads it: plain, and short enough for any chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratchet.core.contract.notifications import FIRING, Notification, NotifiedAlert, SentReport
from ratchet.core.rules.texts import one_line

LONGEST = 300
"""Characters of a text."""
LONGEST_BODY = 1800
"""Characters of a message: Discord takes 2,000."""
_WIDE = str.maketrans({"@": "＠", "<": "‹", ">": "›", "`": "'", "*": "∗", "_": "＿", "|": "¦", "[": "［", "]": "］"})
"""Characters by which chats mention people and mark up text, and those that only look like them."""


def plain(text: str) -> str:
    """One line without what cannot be seen; a dash where nothing is left, for a receiver's state has no empty text."""
    return one_line(text, LONGEST) or "-"


def unmarked(text: str) -> str:
    """The text without characters that a chat could take for a mention, a link or mark-up."""
    return text.translate(_WIDE)


def title_of(notification: Notification) -> str:
    """One line."""
    if notification.report is not None:
        return plain(notification.report.title)
    alerts, count = notification.alerts, len(notification.alerts) + notification.more
    if count == 1:
        return f"{_label(alerts[0])}: {alerts[0].summary}"
    firing = [alert for alert in alerts if alert.state == FIRING]
    if not firing:
        return f"{count} alerts resolved"
    critical = sum(alert.severity == "critical" for alert in firing)
    return f"{count} alerts" + (f", {critical} of them critical" if critical else "")


def body_of(notification: Notification) -> str:
    """A line for each alert, as many as there is room for, and how many more there are; or the report's lines."""
    if notification.report is not None:
        every = [*_lines_of(notification.report)]
        lines = _fitting(every)
        rest = len(every) - len(lines)
        return "\n".join([*lines, *([f"... and {rest} more lines: see `ratchet report`"] if rest else [])])
    lines = _fitting(_line(alert) for alert in notification.alerts)
    more = len(notification.alerts) - len(lines) + notification.more
    return "\n".join([*lines, *([f"... and {more} more: see `ratchet alerts`"] if more else [])])


def _fitting(every: Iterable[str]) -> list[str]:
    """The first ones that there is room for, without marks."""
    lines: list[str] = []
    for line in map(unmarked, every):
        if sum(map(len, lines)) + len(lines) + len(line) > LONGEST_BODY:
            break
        lines.append(line)
    return lines


def _lines_of(report: SentReport) -> Iterator[str]:
    """What stands below the title, without Markdown's marks."""
    for line in report.markdown.splitlines()[1:]:
        if line:
            yield line.removeprefix("## ").replace("`", "")


def _label(alert: NotifiedAlert) -> str:
    return alert.severity if alert.state == FIRING else "resolved"


def _line(alert: NotifiedAlert) -> str:
    role = f" (role {alert.role})" if alert.role is not None else ""
    times = f", {alert.times} times" if alert.times > 1 else ""
    return f"{_label(alert)}: {alert.summary}{role} - {alert.source}, {alert.at:%Y-%m-%d %H:%M} UTC{times}"
