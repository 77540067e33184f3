"""A worker that only reports: `python -m tests.support.little_worker SEAT`, for tests of who supervises it.

`LITTLE_UNFIT`: a wrong setting that it finds; `LITTLE_STATUS`: it ends at once with this status;
`LITTLE_LEAVES`: it answers once, closes its channel, and does not end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from prometheus_client import Counter

from ratchet.core.errors import ConfigError
from ratchet.core.service.reports import Report
from ratchet.core.service.runtime import App, run
from ratchet.core.service.seat import LENGTH, Answer, Question, Seat, frame
from ratchet.core.service.settings import ServiceSettings

STARTS = Counter("little_starts_total", "Starts.")


class Settings(ServiceSettings):
    """What all services have."""


@asynccontextmanager
async def build(_: Settings) -> AsyncIterator[App]:
    if (unfit := os.environ.get("LITTLE_UNFIT")) is not None:
        raise ConfigError(unfit)
    STARTS.inc()
    yield App("little", [])


def leave(seat: Seat) -> None:
    """Say once that all is well, then nothing more."""
    with seat.open_channel() as channel, channel.makefile("rb") as questions:
        (length,) = LENGTH.unpack(questions.read(LENGTH.size))
        question = msgspec.msgpack.decode(questions.read(length), type=Question)
        channel.sendall(frame(Answer(question.number, Report({}, {}))))
    signal.pause()


if __name__ == "__main__":
    if "LITTLE_LEAVES" in os.environ:
        leave(Seat.from_text(sys.argv[1]))
    if "LITTLE_STATUS" in os.environ:
        sys.exit(int(os.environ["LITTLE_STATUS"]))
    run("little", build, Settings, Seat.from_text(sys.argv[1]))
