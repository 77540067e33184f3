"""What Prometheus' rules notice, as Alertmanager posts it to /alertmanager at the health port, with a key.

Alertmanager repeats a post until the answer is 2xx. An alert has the same fingerprint for as long as its labels are the
same, so one that is posted again is the same alert here.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Literal

import msgspec

from ratchet.bus.message import decode
from ratchet.core.errors import BadRequest, BusUnavailable, Unavailable
from ratchet.core.rules.access import Caller
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.notifications import SEVERITIES
from ratchet.core.service.alerts import Alerts
from ratchet.core.service.asgi import RECORD_BYTES, AsgiApp, Handler, Headers, JsonApi, Request, Response, json_response
from ratchet.core.service.authentication import Authentication, presented_key, unauthenticated
from ratchet.core.service.problems import HttpError

PATH = "/alertmanager"
POSTED_KEY = "prometheus:"
"""Beginning of the keys of these alerts."""


class PostedAlert(msgspec.Struct, frozen=True):
    """An alert as https://prometheus.io/docs/alerting/latest/notifications/#alert has it."""

    status: Literal["firing", "resolved"]
    labels: Mapping[str, str]
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    annotations: Mapping[str, str] = {}

    @property
    def key(self) -> str:
        """The name of its rule, and what tells it from others of the rule."""
        return f"{POSTED_KEY}{self.labels.get('alertname', '')[:64]}:{self.fingerprint}"


class Post(msgspec.Struct, frozen=True):
    """One post, of which only this is read."""

    alerts: tuple[PostedAlert, ...]


def alertmanager_app(key: str, alerts: Alerts) -> AsgiApp:
    """The application of the one path."""

    async def identify(headers: Headers) -> Caller:
        if not hmac.compare_digest(presented_key(headers) or b"", key.encode()):
            raise unauthenticated("this is not the key of RATCHET_NOTIFIER_ALERTMANAGER_KEY")
        return Caller(None, "alertmanager", frozenset())

    async def post(request: Request) -> Response:
        await take(_post_of(request.body), alerts)
        return json_response({})

    def find(method: str, _: str) -> Handler:
        if method != "POST":
            raise HttpError(405, "this path takes POST")
        return post

    return Authentication(JsonApi(find, RECORD_BYTES), identify)


async def take(post: Post, alerts: Alerts) -> None:
    """Raise what fires and clear what is over. Raises `Unavailable` for what has to be posted again."""
    if not alerts.resumed:
        raise Unavailable("it is not known yet which alerts hold")
    with suppress(BusUnavailable):  # then nothing but this process takes posts
        await alerts.reread(POSTED_KEY)
    for posted in post.alerts:
        if posted.status == "resolved":
            await alerts.clear_alert(posted.key)
            if posted.key in alerts.keys:
                raise Unavailable("the broker did not take the end of an alert")
            continue
        role, severity = posted.labels.get("role", ""), posted.labels.get("severity", "")
        await alerts.raise_alert(
            posted.key,
            posted.annotations.get("summary") or posted.key,
            severity=severity if severity in SEVERITIES else "warning",
            role=role if ROLE.fullmatch(role) else None,
        )


def _post_of(body: bytes) -> Post:
    try:
        return decode(body, Post)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not what Alertmanager posts: {error}") from error
