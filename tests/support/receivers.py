"""A receiver of notifications on a loopback port: it checks signatures, keeps what comes, and answers as is asked."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.contract.notifications import Notification
from ratchet.core.service.asgi import Request, Response
from tests.support.running import listening

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
TAKEN = Response(200, b"{}")


@dataclass
class Receiver:
    """What came, oldest first, and how it is answered."""

    answer: Callable[[], Awaitable[Response]] | None = None
    """Instead of 200."""
    requests: list[Request] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    """Of the webhooks that were taken."""
    notifications: list[Notification] = field(default_factory=list)
    """The same, each id once."""
    texts: list[str] = field(default_factory=list)
    """What apprise sent to `json://`."""
    url: str = ""

    async def post(self, request: Request) -> Response:
        """The one route."""
        self.requests.append(request)
        if self.answer is not None:
            return await self.answer()
        message_id = request.header(b"webhook-id")
        if message_id is None:
            sent: Any = json.loads(request.body)
            self.texts.append(f"{sent['type']} {sent['title']}\n{sent['message']}")
            return TAKEN
        assert_signed(request)
        if message_id not in self.ids:
            self.notifications.append(msgspec.json.decode(request.body, type=Notification))
        self.ids.append(message_id)
        return TAKEN

    def settings(self, name: str = "team", **more: object) -> dict[str, object]:
        """This receiver, as the notifier's settings name it."""
        return {"name": name, "url": f"{self.url}/hook?token=planted-secret", "secret": SECRET, **more}

    @property
    def events(self) -> list[tuple[str, str]]:
        """State and key of all alerts, as they came."""
        return [(alert.state, alert.key) for sent in self.notifications for alert in sent.alerts]

    async def has(self, *events: tuple[str, str]) -> bool:
        """Whether these came."""
        return {*events} <= {*self.events}


def assert_signed(request: Request) -> None:
    """By the scheme of https://www.standardwebhooks.com, computed anew."""
    named = [request.header(name) for name in (b"webhook-id", b"webhook-timestamp")]
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = ".".join([*(name or "" for name in named), request.body.decode()])
    expected = base64.b64encode(hmac.new(key, signed.encode(), hashlib.sha256).digest()).decode()
    assert request.header(b"webhook-signature") == f"v1,{expected}"


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    async with listening(lambda _method, _path: receiver.post) as url:
        receiver.url = url
        yield receiver
