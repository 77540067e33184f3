"""The client for agents without asyncio: the same client on a background thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from typing import Any, TypeVar

import structlog

from ratchet.client.async_client import GRACE_S, AsyncClient
from ratchet.client.bundles import TrajectoryBundle
from ratchet.client.leaving import Latch, at_exit
from ratchet.client.recording import Stats
from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import TrajectoryRecorder

log = structlog.get_logger()

T = TypeVar("T")
TRAIN_S = 60.0
"""Longer than every deadline inside."""


class Client:
    """Records trajectories and feedback in the background; use it as a context manager, from any thread.

    The process's exit closes a client that is still open. After a fork, its first use in the child gives the child
    threads, a connection and a spool of its own, which the child's exit closes.
    """

    def __init__(self, agent_id: str, *, settings: ClientSettings | None = None, **options: Any) -> None:
        """Takes what `AsyncClient` takes."""
        self._settings = settings or ClientSettings()
        self._client = AsyncClient(agent_id, settings=self._settings, **options)
        self._open = True
        self._lock = threading.Lock()
        self._begin()

    @property
    def stats(self) -> Stats:
        """Counters since the client was made."""
        return self._client.stats

    def trajectory(self, **task: Any) -> TrajectoryRecorder:
        """Begin a trajectory; see `Recording.trajectory` for the options."""
        return self._here().trajectory(**task)

    def feedback(self, trajectory_id: str, **feedback: Any) -> None:
        """Give feedback on a trajectory; see `Recording.feedback`."""
        self._here().feedback(trajectory_id, **feedback)

    def record_episode(self, **episode: Any) -> str:
        """Record a whole episode that is over, in one call; see `Recording.record_episode`."""
        return self._here().record_episode(**episode)

    def preference(self, prompt: Any, chosen: Any, rejected: Any, **about: Any) -> str:
        """Prefer one answer over another; see `Recording.preference`."""
        return self._here().preference(prompt, chosen, rejected, **about)

    def opt_out(self, **who: str | None) -> None:
        """Record nothing of someone any more: `user=`, `session=` or `agent=`; see `Recording.opt_out`."""
        self._here().opt_out(**who)

    def opt_in(self, **who: str | None) -> None:
        """Record someone again; takes what `opt_out` takes."""
        self._here().opt_in(**who)

    def train(self, role: str | None = None, algorithm: str = "rloo", **options: Any) -> str:
        """Ask for training, and return the id of the job; see `AsyncClient.train`."""
        return self._call(self._here().train(role, algorithm, **options), TRAIN_S)

    def bundle(self, role: str | None = None, **whose: str | None) -> TrajectoryBundle:
        """The bundle of a trajectory's policy; see `AsyncClient.bundle`."""
        return self._call(self._here().bundle(role, **whose), TRAIN_S)

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything is stored; False when the deadline came first."""
        client = self._here()
        return self._call(client.flush(deadline_s), deadline_s + GRACE_S)

    def close(self) -> None:
        """Publish the queue within `close_s`; the rest stays in the spool for the next start.

        Ctrl-C ends the waiting: all goes to the spool at once.
        """
        if not self._open or self._pid != os.getpid():
            return
        try:
            self._call_soon(self._ending.set)
            in_time = self._ended.wait(self._settings.close_s + 3 * GRACE_S)
        except BaseException:
            self._call_soon(self._living.cancel)
            self._ended.wait(2 * GRACE_S)
            raise
        self._open = False
        self._stay()
        if not in_time:
            log.warning("did not close in time", pending=self._client.stats.pending)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._client.be_here()  # what it does at the exit comes after `close`
        self._ending, self._ended = asyncio.Event(), Latch()
        self._loop = asyncio.new_event_loop()
        self._living = self._loop.create_task(self._live())
        threading.Thread(target=self._run, name="ratchet-client", daemon=True).start()
        self._stay = at_exit(self.close)
        self._pid = os.getpid()  # the last: from now on other threads need not wait

    def _run(self) -> None:
        try:
            with closing(self._loop), suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._living)
        finally:
            self._ended.open()  # `Thread.join` takes a thread for ended when Ctrl-C breaks it off (Python 3.11)

    async def _live(self) -> None:
        async with self._client:
            await self._ending.wait()

    def _call_soon(self, callback: Callable[[], object]) -> None:
        """Call it on the background loop, while there is one."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _here(self) -> AsyncClient:
        """The client of this process: threads do not survive a fork."""
        if self._pid != os.getpid() and self._open:
            with self._lock:
                if self._pid != os.getpid():
                    self._begin()
        return self._client

    def _call(self, work: Coroutine[Any, Any, T], deadline_s: float) -> T:
        """Run a coroutine on the background loop and wait for it. Raises `TimeoutError`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(deadline_s)
