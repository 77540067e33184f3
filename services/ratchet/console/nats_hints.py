"""Changes as the streams bring them, for as long as a page is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.console.domain.hints import hint_of, trajectory_hint
from ratchet.core.contract import DEFAULT_ROLE, Trajectory
from ratchet.core.contract.http.console import HintOut
from ratchet.core.errors import BusUnavailable, ContractError

log = structlog.get_logger()

STREAMS = ("RL_TRAINING", "RL_DEPLOYMENTS", "RL_ALERTS", "RL_REWARDS", "RL_FEEDBACK")
"""Read with their bodies, which are small."""
TRAJECTORIES = "RL_TRAJECTORIES"
"""Read without bodies: a trajectory may have megabytes."""
WAIT_S = 5.0
AGAIN_S = 1.0
"""Pause before a stream is read again that could not be read."""


class NatsHints:
    """Reads the streams from now on. What is missed while the broker is away is no loss: pages ask again."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def follow(self, take: Callable[[HintOut], None]) -> None:
        """Hand on every hint; goes on until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in (*STREAMS, TRAJECTORIES):
                group.create_task(self._follow(stream, take))

    async def _follow(self, stream: str, take: Callable[[HintOut], None]) -> None:
        since = self._bus.now()
        while True:
            reader = OrderedReader(self._bus, stream, start=since, headers_only=stream == TRAJECTORIES)
            try:
                await reader.open()
                while True:
                    for message in await reader.next(WAIT_S):
                        since = max(since, message.metadata.timestamp)
                        hint = self._hint(message, stream)
                        if hint is not None:
                            take(hint)
            except BusUnavailable as error:
                log.debug("hints wait for the broker", stream=stream, reason=str(error))
            finally:
                await reader.close()
            await asyncio.sleep(AGAIN_S)

    def _hint(self, message: Msg, stream: str) -> HintOut | None:
        at: datetime = message.metadata.timestamp
        if stream == TRAJECTORIES:
            return trajectory_hint(message.subject.removeprefix(Trajectory.TOPIC).lstrip(".") or DEFAULT_ROLE, at)
        try:
            return hint_of(self._bus.read(message)[0].message, at)
        except ContractError:  # its consumers make it a dead letter
            return None
