"""The whole loop at a glance, put together from ClickHouse, the broker and the other services.

All parts are read at the same time, and none is waited for longer than `PART_S`. A part that cannot be read is named
with the reason, and what was last read of it stays for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.figures import stream_figures
from ratchet.console.clickhouse_loop import History
from ratchet.console.domain.attention import Picture, attention
from ratchet.console.domain.loop import Lags, loop_roles
from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AlertsOut, LoopOut, ServiceOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import StatusOut, TrainingStatusOut
from ratchet.core.contract.state import Route
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.service.files import LOW_BYTES, free_bytes, shortage

PART_S = 2.0
"""Longest wait for a part."""
FRESH_S = 1.5
"""An answer that is no older serves the next request too."""
KEPT_S = 60.0
"""For so long what was last read of a part stays."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the parts come from. Each raises errors of the tree."""

    history: Callable[[], Awaitable[History]]
    streams: Callable[[], Awaitable[Sequence[StreamOut]]]
    training: Callable[[], Awaitable[tuple[StatusOut, TrainingStatusOut]]]
    """From the coordinator."""
    rollouts: Callable[[], Awaitable[Sequence[RolloutOut]]]
    """From the deployer."""
    services: Callable[[], Awaitable[Sequence[ServiceOut]]]
    disk: Callable[[], Awaitable[str | None]]
    """What is wrong with the room on the disk."""
    alerts: Callable[[], Awaitable[Sequence[Alert]]]
    """Those that hold."""
    notified: Callable[[], Awaitable[AlertsOut]]
    """The same, and what was sent to whom."""
    routes: Callable[[], Mapping[str, Route]]


class _Part(Generic[T]):
    """One source, and what it last said."""

    def __init__(self, name: str, read: Callable[[], Awaitable[T]], empty: T, monotonic: Callable[[], float]) -> None:
        self.name = name
        self._read = read
        self._empty = empty
        self._monotonic = monotonic
        self._last: tuple[float, T] | None = None
        self.unread: str | None = None
        """Why it could not be read just now."""

    async def value(self) -> T:
        """What it says now, or said within the last minute, or nothing."""
        try:
            async with asyncio.timeout(PART_S):
                self._last = self._monotonic(), await self._read()
            self.unread = None
        except TimeoutError:
            self.unread = f"no answer within {PART_S:g} s"
        except RatchetError as error:
            self.unread = str(error)
        kept = self._last is not None and self._monotonic() - self._last[0] <= KEPT_S
        return self._last[1] if self._last is not None and kept else self._empty


class Loop:
    """The picture of the loop, read once for all who ask at the same time."""

    def __init__(self, sources: Sources, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._history = _Part("clickhouse", sources.history, History(), monotonic)
        self._streams = _Part[Sequence[StreamOut]]("nats", sources.streams, (), monotonic)
        self._training = _Part[tuple[StatusOut, TrainingStatusOut] | None](
            "coordinator", sources.training, None, monotonic
        )
        self._rollouts = _Part[Sequence[RolloutOut]]("deployer", sources.rollouts, (), monotonic)
        self._services = _Part[Sequence[ServiceOut]]("services", sources.services, (), monotonic)
        self._disk = _Part[str | None]("disk", sources.disk, None, monotonic)
        self._alerts = _Part[Sequence[Alert]]("alerts", sources.alerts, (), monotonic)
        self._routes = sources.routes
        self.alerts = sources.notified
        """The alerts that hold, and what was sent to whom."""
        self._now = now
        self._monotonic = monotonic
        self._lags = Lags()
        self._reading = asyncio.Lock()
        self._newest: tuple[float, LoopOut] | None = None

    async def current(self) -> LoopOut:
        """The picture, at most `FRESH_S` old."""
        async with self._reading:
            if self._newest is None or self._monotonic() - self._newest[0] > FRESH_S:
                picture = await self._read()
                self._newest = self._monotonic(), picture
            return self._newest[1]

    async def _read(self) -> LoopOut:
        history, streams, training, rollouts, services, disk = await asyncio.gather(
            self._history.value(),
            self._streams.value(),
            self._training.value(),
            self._rollouts.value(),
            self._services.value(),
            self._disk.value(),
        )
        alerts = await self._alerts.value()  # they are here already
        now, (status, jobs) = self._now(), training or (None, None)
        picture = Picture(
            now=now,
            rollouts=rollouts,
            ended_jobs=[*jobs.last.values()] if jobs is not None else (),
            services=services,
            ledger=history.ledger,
            streams=streams,
            growths=self._lags.growths(streams, self._monotonic()) if self._streams.unread is None else (),
            disk=disk,
            alerts=alerts,
        )
        parts = (self._history, self._streams, self._training, self._rollouts, self._services, self._disk, self._alerts)
        return LoopOut(
            at=now,
            minutes=[*history.minutes],
            open_trajectories=history.open_trajectories,
            streams=[*streams],
            ledger=[*history.ledger],
            services=[*services],
            roles=loop_roles(self._routes(), status.roles if status is not None else {}, jobs, rollouts, now),
            jobs=status.jobs if status is not None else {},
            attention=attention(picture),
            unread={part.name: part.unread for part in parts if part.unread is not None},
        )


async def streams_of(bus: Bus) -> list[StreamOut]:
    """All streams of the registry. Raises `BusUnavailable`."""
    figures = await asyncio.gather(*(stream_figures(bus, name) for name in sorted(bus.contracts.streams)))
    return msgspec.convert(figures, list[StreamOut], from_attributes=True)


async def disk_of(folder: Path) -> str | None:
    """What is wrong with the room on the disk that this service writes to: on one machine it is that of all."""
    try:
        return shortage(await asyncio.to_thread(free_bytes, folder), LOW_BYTES, folder)
    except OSError as error:
        raise Unavailable(f"the disk of {folder} cannot be looked at: {error}") from error
