"""The client for asyncio agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any

from ratchet.client.recording import Recording, Stats, new_id
from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import TrajectoryRecorder
from ratchet.kernel.bus import Bus, utc_now
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.outbox import Outbox
from ratchet.kernel.spool import Spool
from ratchet.messages import DEFAULT_ROLE


class AsyncClient:
    """Records trajectories and feedback in the background; use it as an asynchronous context manager.

    An absent broker is fine, at the start and later: messages wait in a bounded spool on disk.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        role: str = DEFAULT_ROLE,
        session_id: str | None = None,
        subordinate_profile: str | None = None,
        settings: ClientSettings | None = None,
        strict: bool = False,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`strict` raises on messages that break the contract, instead of logging and counting them."""
        self._settings = settings or ClientSettings()
        self._contracts = Contracts.load()
        self._spool = Spool.claim(self._settings.kernel.data_dir / "client-spool", self._settings.spool_bytes)
        self._outbox = Outbox(
            self._contracts, f"client:{agent_id}", self._spool, queue_limit=self._settings.queue_limit, now=now
        )
        self._recording = Recording(
            agent_id=agent_id,
            role=role,
            session_id=session_id or new_id(),
            settings=self._settings,
            outbox=self._outbox,
            strict=strict,
            now=now,
            subordinate_profile=subordinate_profile,
        )
        self._bus: Bus | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def stats(self) -> Stats:
        """Counters since the client was made."""
        return self._recording.stats

    def trajectory(self, **task: Any) -> TrajectoryRecorder:
        """Begin a trajectory; see `Recording.trajectory` for what can be said about it."""
        return self._recording.trajectory(**task)

    def feedback(self, trajectory_id: str, **said: Any) -> None:
        """Say something about a trajectory; see `Recording.feedback`."""
        self._recording.feedback(trajectory_id, **said)

    async def flush(self, deadline_s: float) -> bool:
        """Wait until everything is stored; False when the deadline came first."""
        return await self._outbox.flush(deadline_s)

    async def start(self) -> None:
        """Begin publishing in the background."""
        self._running = asyncio.create_task(self._outbox.run(self._connect))

    async def close(self) -> None:
        """Publish what is queued, within `close_s`; the rest stays in the spool for the next start."""
        if self._running is None:
            return
        await self._outbox.flush(self._settings.close_s)
        await self._outbox.stop()
        await self._running
        self._running = None
        if self._bus is not None:
            await self._bus.close()
        self._spool.close()

    async def __aenter__(self) -> AsyncClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _connect(self) -> Bus:
        self._bus = await Bus.connect(self._settings.kernel, name="client", contracts=self._contracts)
        return self._bus
