"""One child process: start it in its own group, see it ready, stop it and all its descendants."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.service.files import PRIVATE, write_whole
from ratchet.core.service.readiness import not_ready
from ratchet.local.local_stack.log_files import log_tail
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.program import Program

POLL_S = 0.05
"""How often a start or a stop is looked at."""


class StartFailed(RatchetError):
    """A process ended, or was not ready in time; the message holds the end of its log."""


class Process:
    """A running `Program`. Its group id is its pid, so its children end with it."""

    def __init__(self, program: Program, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.program = program
        self.log = log
        self._popen = popen
        self.pid = popen.pid
        try:
            self.started_at = psutil.Process(popen.pid).create_time()
        except psutil.NoSuchProcess as error:
            raise Unavailable(f"process {popen.pid} ended at once") from error
        self.born = birth(popen.pid)

    @classmethod
    def start(cls, program: Program, log: Path, env: Mapping[str, str] | None = None) -> Process:
        """Run `program`, its output appended to `log`. Raises `OSError`, `Unavailable`."""
        for directory in program.directories:
            directory.mkdir(parents=True, exist_ok=True)
        for path, text in program.files.items():
            if not path.exists() or path.read_text() != text:  # a full disk is no reason not to start again
                write_whole(path, text.encode(), mode=PRIVATE, durable=False)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            popen = subprocess.Popen(  # noqa: S603 - the command is ours
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {}), **program.env},
                cwd=program.cwd,
                start_new_session=True,
                umask=0o077,  # what members write is this user's alone to read
            )
        return cls(program, popen, log)

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._popen.poll()

    def not_ready(self) -> str | None:
        """None when it answers that it is ready, else why not."""
        return not_ready(self.program.ready_url)

    async def wait_ready(self, deadline_s: float) -> None:
        """Return once it is ready. Raises `StartFailed` when it ends first or the deadline passes."""
        until = time.monotonic() + deadline_s
        while (reason := await asyncio.to_thread(self.not_ready)) is not None:
            code = self.exit_code()
            if code is not None:
                raise StartFailed(f"{self.program.name} {ended(code)} during start{self._tail()}")
            if time.monotonic() > until:
                raise StartFailed(f"{self.program.name} is not ready after {deadline_s:g} s: {reason}{self._tail()}")
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """SIGTERM to the process, `stop_s` later SIGKILL; whatever is left of its group is killed."""
        with suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._popen.wait, self.program.stop_s)
        self.kill()
        await asyncio.to_thread(self.wait)
        for path in self.program.leftovers:
            path.unlink(missing_ok=True)

    def wait(self) -> int:
        """Block until it has ended; returns its exit code."""
        return self._popen.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _tail(self) -> str:
        lines = log_tail(self.log)
        return "".join(f"\n  | {line}" for line in lines) or f" (nothing in {self.log})"


def not_ready_for(seconds: float) -> str:
    """What is said of a process that starts and is not ready yet."""
    return f"not ready for {seconds:.0f} s"


def ended(code: int) -> str:
    """An exit code in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
