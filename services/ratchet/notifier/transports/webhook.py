"""Webhooks, signed as https://www.standardwebhooks.com says: id, timestamp, HMAC-SHA256 of both and the body."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from ratchet.core.contract.notifications import Notification
from ratchet.core.errors import Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.notifier.transports.base import ATTEMPT_S

SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`. `secret`: `whsec_` and base64."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


class Webhook:
    """Posts the notification as JSON. Only 2xx counts, a redirect is not followed, and the answer is not read."""

    def __init__(self, name: str, url: str, secret: str, now: Callable[[], datetime]) -> None:
        parts = urlsplit(url)
        self._url = url
        self._secret = secret
        self._now = now
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._peer = Peer(f"receiver {name}", origin, {"user-agent": "ratchet"}, ATTEMPT_S)

    async def send(self, message_id: str, notification: Notification) -> str | None:
        """See `Transport`."""
        body, timestamp = msgspec.json.encode(notification), int(self._now().timestamp())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._secret, message_id, timestamp, body),
        }
        try:
            async with AsyncApiClient(self._peer) as client:
                answer = await client.stream("POST", self._url, body=body, headers=headers)
                await answer.close()
        except Unavailable as error:
            return str(error)
        if 300 <= answer.status < 400:
            return f"answered {answer.status}: redirects are not followed"
        return None if 200 <= answer.status < 300 else f"answered {answer.status}"
