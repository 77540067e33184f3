"""Training processes forked from the standard library's fork server, which has imported what trainings need.

The server is one process beside the worker, started `DELAY_S` after it or by the first training. It has one thread,
starts no CUDA, and ends once the worker and all trainings have. Linux only: a training is known by its pidfd.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import structlog

from ratchet.core.service.logs import failure
from ratchet.trainer_worker.child_process import (
    OWN_VARIABLES,
    TRAINING,
    Process,
    Streams,
    library_environment,
)

log = structlog.get_logger()

PRELOAD = "ratchet.trainer_worker.training.preload"
DELAY_S = 20.0
"""At the start of a whole stack the cores are the other services'."""
READY_S = 120.0
"""Longest wait of a training for the imports: a fresh process would begin them anew."""
GO = b"go"
UNKNOWN = 255
"""What the standard library calls the status of a process whose server has died."""


class ForkedProcess:
    """A process that the fork server made: `child_process.Process`. `wait` is called once."""

    def __init__(self, process: ForkServerProcess) -> None:
        """Raises `OSError` when it has ended already."""
        assert process.pid is not None  # noqa: S101 - it was started
        self.pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(self.pid)
        self._ended = False

    def send_signal(self, number: int, /) -> None:
        """By pidfd: a process that got the same id since is never meant."""
        if self._ended:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> int | None:
        await _readable(self._process.sentinel)
        code = self._process.exitcode
        if code == UNKNOWN:  # the server has died: from now on only the end itself can be observed
            await _readable(self._pidfd)
        self._ended = True
        os.close(self._pidfd)
        return None if code == UNKNOWN else code


class ForkServer:
    """A component: starts the server in time for the first training."""

    def __init__(self, preload: str = PRELOAD, ready_s: float = READY_S) -> None:
        """`preload`: the module that the server imports. `ready_s`: how long a training waits for it."""
        self._ready_s = ready_s
        self._stopping = asyncio.Event()
        multiprocessing.set_forkserver_preload([preload])

    async def run(self) -> None:
        """Start the server after a while, unless a training did."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DELAY_S):
                await self._stopping.wait()
        if not self._stopping.is_set():
            try:
                await asyncio.to_thread(forkserver.ensure_running)
            except OSError as error:
                log.warning("the fork server cannot be started", **failure(error))
        await self._stopping.wait()

    async def stop(self) -> None:
        """Start no server any more. Trainings that it has forked go on; their attempts end them."""
        self._stopping.set()

    async def fork(self, directory: Path, environment: Mapping[str, str], streams: Streams) -> Process | None:
        # The server's libraries read its environment while they were imported: they fit a child of the same one.
        if self._stopping.is_set() or _without_own(environment) != _without_own(library_environment(os.environ)):
            return None
        word, go = Pipe(duplex=False)
        arguments = (str(directory), dict(environment), streams, word)
        process = multiprocessing.get_context("forkserver").Process(target=become_training, args=arguments, daemon=True)
        with word, go:
            try:
                async with asyncio.timeout(self._ready_s):
                    await asyncio.to_thread(process.start)
                made = ForkedProcess(process)
                go.send_bytes(GO)
            except (OSError, EOFError, TimeoutError) as error:
                log.warning("the fork server makes no process", **failure(error))
                return None
        return made


def become_training(directory: str, environment: Mapping[str, str], streams: Streams, word: Connection) -> None:
    """Train in this process, in a session of its own, with the streams and the environment of the job, once `word` says
    so: what a server forks after the worker has given up on it ends without having touched anything.

    The libraries are imported, but read thread counts and GPUs when a training begins. Where the server is not fit for
    a fork, the process begins anew.
    """
    try:
        word.recv_bytes()
    except EOFError:
        os._exit(1)
    word.close()
    status = 1
    try:
        os.setsid()
        own = (streams.stdin, streams.stdout, streams.stderr)
        for number, stream in enumerate(own):
            os.dup2(stream.fileno(), number)
        for stream in own:
            stream.close()
        os.environ.clear()
        os.environ.update(environment)
        multiprocessing.set_start_method(None, force=True)  # else locks of libraries stay until the worker ends
        if getattr(sys.modules.get(PRELOAD), "unfit", None):
            os.execv(sys.executable, [sys.executable, "-m", *TRAINING, directory])  # noqa: S606 - our own interpreter
        status = import_module(TRAINING[0]).main(Path(directory))
    except BaseException:  # noqa: BLE001 - the boundary of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def supported() -> bool:
    """Whether this system has what forked trainings need."""
    return hasattr(os, "pidfd_open")


def _without_own(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OWN_VARIABLES}


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
