"""The recorder processes: starts, feeds and watches them, and restarts one with the jobs that it held."""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.core.service.runtime import Component
from ratchet.gateway import metrics
from ratchet.gateway.recorder_process import LENGTH, Job, Recorded
from ratchet.gateway.span_records import SpansJob

log = structlog.get_logger()

TRIES = 3
"""The next process gets the job on which one died; the pool gives a job up that so many died on."""
SEARCH_S = 30.0
"""The pool ends a process that works longer on one job, and gives the job up."""
START_S = 60.0
"""The pool ends a process that does not begin to work within this time, and starts another one."""
FINISH_S = 15.0
"""How long a stop waits for the jobs at hand; longer than a process takes to start."""
PAUSE_S = 0.5
"""Before the pool starts a process again."""

Finish = Callable[[Recorded | None], None]
"""Takes what became of a job; None when the pool gave it up."""


class JobRunner(Protocol):
    """Makes records of jobs."""

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        """Have a job recorded, after all earlier ones of the same key."""
        ...


class Recorders(JobRunner, Component, Protocol):
    """Makes records for as long as the gateway runs."""


@dataclass(slots=True)
class _Held:
    frame: bytes
    finish: Finish
    tries: int = 0


class RecorderProcess:
    """One process at a time, and the jobs that it has not answered, oldest first."""

    def __init__(self, conversation_bytes: int, *, at_once: bool = True) -> None:
        """`at_once`: it starts before there is a job."""
        self._command = (sys.executable, "-m", "ratchet.gateway.recorder_process", str(conversation_bytes))
        self._held: deque[_Held] = deque()
        self._process: asyncio.subprocess.Process | None = None
        self._working = False
        """The process has begun to work: its oldest job may be what it dies of."""
        self._progress_at = time.monotonic()
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._needed = asyncio.Event()
        if at_once:
            self._needed.set()

    @property
    def pid(self) -> int | None:
        """Id of the process, None while there is none."""
        return self._process.pid if self._process else None

    def submit(self, job: Job, finish: Finish) -> None:
        """Hand a job over."""
        encoded = msgspec.msgpack.encode(job)
        held = _Held(LENGTH.pack(len(encoded)) + encoded, finish)
        if not self._held:
            self._progress_at = time.monotonic()
        self._held.append(held)
        self._idle.clear()
        self._needed.set()
        self._write(held)

    async def run(self) -> None:
        """Keep a process at work until stopped."""
        await self._needed.wait()
        while not self._stopping.is_set():
            await self._run_once()
            if self._held and not self._stopping.is_set():
                metrics.RECORDER_DEATHS.inc()
                self._held[0].tries += self._working  # its oldest job may have killed it, if it had begun to work
                if self._held[0].tries >= TRIES:
                    self._finish_oldest(None)
                await asyncio.sleep(PAUSE_S)
        while self._held:
            self._finish_oldest(None)

    async def stop(self) -> None:
        """Finish the jobs at hand within `FINISH_S`, and give up the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._idle.wait()
        self._stopping.set()
        self._needed.set()

    async def _run_once(self) -> None:
        """Feed one process until it ends or hangs, or until a stop."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        except OSError as error:
            log.error("a recorder cannot start", reason=str(error))
            return
        self._process, self._working, self._progress_at = process, False, time.monotonic()
        for held in self._held:
            self._write(held)
        reading = asyncio.create_task(self._read_answers(process))
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._process = None
            await end(reading, watching)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if not self._stopping.is_set():
            log.warning("a recorder ended", status=process.returncode, held=len(self._held))

    async def _watch(self) -> None:
        """Return at a stop, or when the process takes too long for its start or for one job."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()
            waited_s = time.monotonic() - self._progress_at
            if not self._working and waited_s > START_S:
                return
            if self._working and self._held and waited_s > SEARCH_S:
                self._held[0].tries = TRIES
                return

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        """Finish the oldest job with each answer, until the process ends."""
        assert process.stdout is not None  # noqa: S101 - the process was started with a pipe
        decoder = msgspec.msgpack.Decoder(Recorded)
        with suppress(asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                self._working, self._progress_at = True, time.monotonic()
                if length:
                    self._finish_oldest(decoder.decode(await process.stdout.readexactly(length)))

    def _write(self, held: _Held) -> None:
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():  # closed: the process has ended, the next one gets the job
            stdin.write(held.frame)

    def _finish_oldest(self, recorded: Recorded | None) -> None:
        held = self._held.popleft()
        if not self._held:
            self._idle.set()
        held.finish(recorded)


class RecorderPool:
    """Several recorder processes as one component; all jobs of one key go through the same one, in order.

    Telemetry has a process of its own, which starts with its first request: a request takes seconds, and no call's turn
    waits for it.
    """

    def __init__(self, number: int, conversation_bytes: int) -> None:
        self.processes = [RecorderProcess(conversation_bytes // number) for _ in range(number)]
        self.telemetry = RecorderProcess(0, at_once=False)

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        """Have a job recorded, after all earlier ones of the same key."""
        if isinstance(job, SpansJob):
            self.telemetry.submit(job, finish)
        else:
            self.processes[zlib.crc32(key.encode()) % len(self.processes)].submit(job, finish)

    async def run(self) -> None:
        """Keep all processes at work until stopped."""
        await asyncio.gather(*(process.run() for process in (*self.processes, self.telemetry)))

    async def stop(self) -> None:
        """Finish the jobs at hand."""
        await asyncio.gather(*(process.stop() for process in (*self.processes, self.telemetry)))
