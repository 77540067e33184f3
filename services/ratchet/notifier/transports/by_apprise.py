"""Chat, mail and a hundred services more: whatever apprise has a URL for."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

import msgspec

from ratchet.core.contract.notifications import FIRING, Notification
from ratchet.core.service.settings import PREFIX
from ratchet.notifier.domain.texts import body_of, title_of, unmarked
from ratchet.notifier.transports import apprise_process
from ratchet.notifier.transports.apprise_process import Message, Outcome
from ratchet.notifier.transports.base import ATTEMPT_S

KINDS = {"critical": "failure", "warning": "warning", "info": "info"}


MAIL = ("mailto", "mailtos")
"""Schemes of those that read HTML."""


class ByApprise:
    """Sends the notification as text; a report by mail as HTML."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def send(self, message_id: str, notification: Notification) -> str | None:  # noqa: ARG002 - `Transport`
        """See `Transport`."""
        report = notification.report
        is_page = report is not None and self._url.partition("://")[0].lower() in MAIL
        message = Message(
            url=self._url,
            title=unmarked(f"Ratchet: {title_of(notification)}"),
            body=report.html if report is not None and is_page else body_of(notification),
            kind=_kind_of(notification),
            html=is_page,
            seconds=int(ATTEMPT_S) + 5,
        )
        own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", apprise_process.__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=own,
        )
        try:
            async with asyncio.timeout(ATTEMPT_S):
                answered, _ = await process.communicate(msgspec.json.encode(message))
            outcome = msgspec.json.decode(answered, type=Outcome)
        except TimeoutError:
            return f"no answer within {ATTEMPT_S:g} s"
        except msgspec.DecodeError:
            return "its answer was too much, or the program that sends ended"
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if outcome.taken:
            return None
        return f"answered {outcome.status}" if outcome.status else "the message was not taken"


def _kind_of(notification: Notification) -> str:
    if notification.report is not None:
        return "info"
    first = notification.alerts[0]
    return KINDS.get(first.severity, "failure") if first.state == FIRING else "success"
