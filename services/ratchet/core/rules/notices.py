"""Alerts of what the library for the broker has noticed, whichever program it is part of."""

from __future__ import annotations

from ratchet.bus.failures import Notice
from ratchet.bus.message import named_id
from ratchet.core.contract import Alert


def notice_alert(notice: Notice) -> Alert:
    """The alert of a notice."""
    return Alert(
        alert_id=named_id("notice", notice.key, notice.program, notice.at.isoformat()),
        key=notice.key,
        severity=notice.severity,
        summary=notice.summary,
        source=notice.program,
        at=notice.at,
    )
