"""The client for agents without asyncio: the same client on a background thread."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any

from ratchet.client.async_client import AsyncClient
from ratchet.client.recording import Stats
from ratchet.client.trajectory import TrajectoryRecorder


class Client:
    """Records trajectories and feedback in the background; use it as a context manager, from any thread."""

    def __init__(self, agent_id: str, **options: Any) -> None:
        """Takes what `AsyncClient` takes."""
        self._client = AsyncClient(agent_id, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ratchet-client", daemon=True)
        self._thread.start()
        self._call(self._client.start())
        self._open = True

    @property
    def stats(self) -> Stats:
        """Counters since the client was made."""
        return self._client.stats

    def trajectory(self, **task: Any) -> TrajectoryRecorder:
        """Begin a trajectory; see `Recording.trajectory` for what can be said about it."""
        return self._client.trajectory(**task)

    def feedback(self, trajectory_id: str, **said: Any) -> None:
        """Say something about a trajectory; see `Recording.feedback`."""
        self._client.feedback(trajectory_id, **said)

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything is stored; False when the deadline came first."""
        return self._call(self._client.flush(deadline_s))

    def close(self) -> None:
        """Publish what is queued, within `close_s`; the rest stays in the spool for the next start."""
        if not self._open:
            return
        self._open = False
        self._call(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Any) -> Any:
        """Run a coroutine on the background loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
