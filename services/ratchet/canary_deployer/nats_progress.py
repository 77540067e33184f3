"""Until when everything that was reported has been scored: how far whoever computes rewards has got."""

from __future__ import annotations

import math
from collections import deque
from datetime import datetime

import msgspec

from ratchet.bus.connection import Bus
from ratchet.errors import BusUnavailable

REPORTS, SCORER = "RL_TRAJECTORIES", "reward-trajectories"
"""What first rewards are computed from, and the consumer of whoever computes them (`contracts/topics.json`)."""
DOES_NOT_EXIST = (10014, 10059)
"""The broker's codes for a consumer, and a stream, that do not exist."""
MOST_INSTANTS = 20_000
"""Instants that are remembered while the reward computer is behind: hours of ticks."""


class _Progress(msgspec.Struct):
    """How far a consumer has got, and when by the broker's clock; or the error that there is none."""

    ts: datetime | None = None
    ack_floor: dict[str, int | str] = {}
    num_pending: int = 0
    num_ack_pending: int = 0
    error: dict[str, int | str] | None = None


class _StreamState(msgspec.Struct):
    last_seq: int


class _Stream(msgspec.Struct):
    """What a stream holds, and when by the broker's clock."""

    ts: datetime
    state: _StreamState


class Scored:
    """Until when everything that was reported has its first reward.

    The computer of rewards acknowledges a trajectory when its reward is stored. `_seen` are instants, and what the
    stream held last at each: the newest one up to which all is acknowledged is the answer.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._seen: deque[tuple[float, int]] = deque(maxlen=MOST_INSTANTS)
        self._until = -math.inf

    async def until(self) -> float:
        """An instant by the broker's clock; infinite where no reward computer of Ratchet's reads trajectories."""
        progress = await self._bus.ask(f"CONSUMER.INFO.{REPORTS}.{SCORER}", _Progress)
        if progress.error is not None:
            if progress.error.get("err_code") in DOES_NOT_EXIST:
                return math.inf
            raise BusUnavailable(f"cannot ask how far {SCORER} is: {progress.error}")
        if progress.ts is not None and progress.num_pending + progress.num_ack_pending == 0:
            self._seen.clear()
            self._until = progress.ts.timestamp()
            return self._until
        floor = int(progress.ack_floor.get("stream_seq", 0))
        while self._seen and self._seen[0][1] <= floor:
            self._until = self._seen.popleft()[0]
        stream = await self._bus.ask(f"STREAM.INFO.{REPORTS}", _Stream)
        if not self._seen or self._seen[-1][1] != stream.state.last_seq:
            self._seen.append((stream.ts.timestamp(), stream.state.last_seq))
        return self._until
