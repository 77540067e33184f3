"""`python -m ratchet.notifier.transports.apprise_process`: sends one message by apprise, and ends.

A process of its own, because apprise reads an answer whole and waits for it however long it trickles: the time and the
memory that a receiver can cost are bounded here. It reads `Message` at standard input and writes `Outcome`.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import sys

import msgspec

MEMORY_BYTES = 1 << 30
"""Address space: ten times what a message takes."""
_STATUS = re.compile(r"error=(\d{3})")
"""How apprise's log names the status of an answer. Nothing else of it is shown: it may quote the URL."""


class Message(msgspec.Struct, kw_only=True):
    """What to send."""

    url: str
    title: str
    body: str
    kind: str
    """`failure`, `warning`, `info` or `success`: the colour, where a chat has one."""
    html: bool = False
    """Whether the body is HTML; else it is text."""
    seconds: int
    """It ends by itself after so long, also when its parent was killed."""


class Outcome(msgspec.Struct):
    """What became of it."""

    taken: bool
    status: str | None = None
    """Status of the answer that refused it, where apprise names one."""


class _Statuses(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        status = _STATUS.search(record.getMessage())
        self.last = status[1] if status is not None else self.last


def main() -> int:
    """Send, and say what became of it."""
    import apprise  # noqa: PLC0415 - the notifier itself, which writes `Message`, does without

    message = msgspec.json.decode(sys.stdin.buffer.read(), type=Message)
    signal.alarm(message.seconds)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a plug-in may print
    statuses = _Statuses()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [statuses], False
    asset = apprise.AppriseAsset(app_id="Ratchet", app_desc="Ratchet", http_redirects=False, async_mode=False)
    service = apprise.Apprise(asset=asset)
    taken = service.add(message.url) and bool(
        service.notify(
            title=message.title,
            body=message.body,
            notify_type=message.kind,
            body_format=apprise.NotifyFormat.HTML if message.html else apprise.NotifyFormat.TEXT,
        )
    )
    os.write(answers, msgspec.json.encode(Outcome(bool(taken), statuses.last)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
