"""What brings a notification to its receiver."""

from __future__ import annotations

from typing import Protocol

from ratchet.core.contract.notifications import Notification

ATTEMPT_S = 20.0
"""Longest attempt: a receiver that hangs is one that fails."""


class Transport(Protocol):
    """One way to one receiver."""

    async def send(self, message_id: str, notification: Notification) -> str | None:
        """Send it once. None when the receiver took it, else why not, in words without its URL."""
        ...
