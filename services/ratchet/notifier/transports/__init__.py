"""The ways to receivers: a signed webhook for `http(s)://`, apprise for every other URL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ratchet.notifier.settings import ReceiverSettings
from ratchet.notifier.transports.base import Transport
from ratchet.notifier.transports.by_apprise import ByApprise
from ratchet.notifier.transports.webhook import Webhook

__all__ = ["Transport", "transport_of"]


def transport_of(receiver: ReceiverSettings, now: Callable[[], datetime]) -> Transport:
    """How this receiver is reached."""
    url, secret = receiver.url.get_secret_value(), receiver.secret
    return Webhook(receiver.name, url, secret.get_secret_value(), now) if secret is not None else ByApprise(url)
