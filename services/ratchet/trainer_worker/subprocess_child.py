"""The child process of one attempt: start it, read its events, ask it to stop, kill it when it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import structlog

from ratchet.kernel.artifacts import HUB_VARIABLE
from ratchet.trainer_worker.domain import Exit
from ratchet.trainer_worker.job import LOG_FILE, Event, JobSpec, decode_event, write_job

log = structlog.get_logger()

LINE_LIMIT = 1 << 22
"""Bytes of one event; a traceback and metrics are far smaller."""


class Child:
    """A running training process. It ends by itself when this object's process does."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._oom_kills = oom_kills()

    @classmethod
    async def start(cls, spec: JobSpec, directory: Path) -> Child:
        """Write the job file and start the process in a session of its own: a terminal's Ctrl-C is ours to handle."""
        write_job(directory, spec)
        with (directory / LOG_FILE).open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ratchet.trainer_worker.child",
                str(directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=child_environment(os.environ, spec),
                start_new_session=True,
                limit=LINE_LIMIT,
            )
        return cls(process, directory)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def events(self) -> AsyncIterator[Event]:
        """Its events until it ends."""
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe
        async for line in self._process.stdout:
            try:
                yield decode_event(line)
            except msgspec.DecodeError as error:
                log.warning("unreadable event of the training process", reason=str(error))

    def memory_gb(self) -> float:
        """Resident memory now; 0 once it has ended."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).memory_info().rss / 1e9
        return 0.0

    def ask_to_stop(self) -> None:
        """Stop at the next step boundary, with a checkpoint."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> Exit:
        """Its end."""
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        killed = code == -signal.SIGKILL and oom_kills() > self._oom_kills
        return Exit(code=code, oom_killed=killed, log_tail=_tail(self._directory / LOG_FILE))


def child_environment(environment: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """Our environment without our own settings and secrets, with the thread count and, unless asked for, no hub.

    A hub that cannot be reached takes minutes to say so; a model that the machine does not have fails at once.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("RATCHET_")}
    kept |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(spec.threads))
    kept |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if Path(spec.base).is_dir() or environment.get(HUB_VARIABLE) != "1":
        kept["HF_HUB_OFFLINE"] = "1"
    return kept


def oom_kills() -> int:
    """How often the kernel has ended a process for lack of memory; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _tail(path: Path, size: int = 2000) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")[-size:]
    return ""
