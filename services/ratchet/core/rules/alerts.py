"""Alerts that several services raise in the same words."""

from __future__ import annotations

from ratchet.bus.message import named_id
from ratchet.bus.projection import Gap
from ratchet.core.contract import Alert


def gap_alert(gap: Gap) -> Alert:
    """A projection goes on without messages that it never read, so its states may be wrong."""
    return Alert(
        alert_id=named_id("projection", gap.projection, *gap.identity),
        key=f"projection-{gap.projection}",
        severity="critical",
        summary=f"projection {gap.projection} goes on without messages that it never read: {gap.reason}",
        source=gap.projection,
        at=gap.at,
    )
