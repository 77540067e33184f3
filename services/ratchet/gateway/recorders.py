"""The processes that record: started, fed, watched, and started again. What one held when it died is not lost."""

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
from ratchet.gateway import metrics
from ratchet.gateway.recorder_process import LENGTH
from ratchet.gateway.recording import Job, Recorded

log = structlog.get_logger()

TRIES = 3
"""A job whose recorder died is given to the next one; one that so many died of is given up."""
SEARCH_S = 30.0
"""A job on which a recorder works for longer is given up, and the recorder ended."""
START_S = 60.0
"""A recorder that does not begin to work within it is ended, and another one started."""
FINISH_S = 15.0
"""How long a stop waits until what is at hand is recorded; longer than a process takes to start."""
PAUSE_S = 0.5
"""Before a recorder that died is started again."""

Finish = Callable[[Recorded | None], None]
"""Takes what became of a job; None when it is given up."""


class Workers(Protocol):
    """Whoever makes records of jobs."""

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        """Have a job recorded, after all earlier ones of the same key."""
        ...


@dataclass(slots=True)
class _Held:
    """A job that no record was made of yet."""

    frame: bytes
    finish: Finish
    tries: int = 0


class Recorder:
    """One process and the jobs that it has not answered, oldest first."""

    def __init__(self, conversation_bytes: int) -> None:
        self._command = (sys.executable, "-m", "ratchet.gateway.recorder_process", str(conversation_bytes))
        self._held: deque[_Held] = deque()
        self._process: asyncio.subprocess.Process | None = None
        self._working = False
        """The process has begun to work: what it dies of now may be its oldest job."""
        self._progress_at = time.monotonic()
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pid(self) -> int | None:
        """Id of the process, None while there is none."""
        return self._process.pid if self._process else None

    def submit(self, job: Job, finish: Finish) -> None:
        """Hand a job over."""
        sealed = msgspec.msgpack.encode(job)
        held = _Held(LENGTH.pack(len(sealed)) + sealed, finish)
        if not self._held:
            self._progress_at = time.monotonic()
        self._held.append(held)
        self._idle.clear()
        self._write(held)

    async def run(self) -> None:
        """Keep a process at work until stopped."""
        while not self._stopping.is_set():
            await self._one_life()
            if self._held and not self._stopping.is_set():
                metrics.RECORDER_DEATHS.inc()
                self._blame_first()
                await asyncio.sleep(PAUSE_S)
        while self._held:
            self._settle(None)

    async def stop(self) -> None:
        """Finish what is at hand, within `FINISH_S`; the rest is given up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._idle.wait()
        self._stopping.set()

    async def _one_life(self) -> None:
        """Feed one process until it ends, hangs, or is not needed any more."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        except OSError as error:
            log.error("a recorder cannot start", reason=str(error))
            return
        self._process, self._working, self._progress_at = process, False, time.monotonic()
        for held in self._held:
            self._write(held)
        reading = asyncio.create_task(self._read(process))
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
        """Return when the process is not needed any more, or takes too long for one job."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()
            idle_s = time.monotonic() - self._progress_at
            if not self._working and idle_s > START_S:
                return
            if self._working and self._held and idle_s > SEARCH_S:
                self._held[0].tries = TRIES
                return

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Take its answers until it ends."""
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        decoder = msgspec.msgpack.Decoder(Recorded)
        with suppress(asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                self._working, self._progress_at = True, time.monotonic()
                if length:
                    self._settle(decoder.decode(await process.stdout.readexactly(length)))

    def _write(self, held: _Held) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(held.frame)

    def _settle(self, recorded: Recorded | None) -> None:
        """The oldest job is done with."""
        held = self._held.popleft()
        if not self._held:
            self._idle.set()
        held.finish(recorded)

    def _blame_first(self) -> None:
        """The process died of its oldest job, or of nothing that we know; not if it had not begun to work."""
        self._held[0].tries += self._working
        if self._held[0].tries >= TRIES:
            self._settle(None)


class Recorders:
    """Several recorders as one component; all jobs of one key go through the same one, in order."""

    def __init__(self, number: int, conversation_bytes: int) -> None:
        self.recorders = [Recorder(conversation_bytes // number) for _ in range(number)]

    def submit(self, key: str, job: Job, finish: Finish) -> None:
        """Have a job recorded, after all earlier ones of the same key."""
        self.recorders[zlib.crc32(key.encode()) % len(self.recorders)].submit(job, finish)

    async def run(self) -> None:
        """Keep all of them at work until stopped."""
        await asyncio.gather(*(recorder.run() for recorder in self.recorders))

    async def stop(self) -> None:
        """Finish what is at hand."""
        await asyncio.gather(*(recorder.stop() for recorder in self.recorders))
