"""Waits for a job's end, through a coordinator that is away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratchet.errors import Unavailable

POLL_S = 0.5
SILENCE_S = 60.0
"""A coordinator that restarts answers again within this time; one that is silent for longer is away."""
ENDED = frozenset({"completed", "failed", "cancelled"})

Job = dict[str, Any]
"""A job as the coordinator describes it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long somebody waits, and by which clock."""

    timeout_s: float | None = None
    """None: until the job ends."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def until_ended(job: Job, ask: Callable[[], Job], tell: Callable[[Job], None], waiting: Waiting) -> Job:
    """The job once it has ended, or as it was last seen when the time is up; `tell` hears of it before each look.

    Raises `Unavailable` when the coordinator stays away.
    """
    began = heard = waiting.clock()
    while job["state"] not in ENDED and not (waiting.timeout_s and waiting.clock() - began >= waiting.timeout_s):
        tell(job)
        waiting.sleep(POLL_S)
        try:
            job = ask()
        except Unavailable:
            if waiting.clock() - heard > SILENCE_S:
                raise
        else:
            heard = waiting.clock()
    return job
