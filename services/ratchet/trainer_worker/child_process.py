"""The training process of one attempt, as the worker sees it: its events, its end, and the signals it gets."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import msgspec
import psutil
import structlog

from ratchet.core.rules.model_hub import HUB_VARIABLE, PASSIVE
from ratchet.trainer_worker import metrics
from ratchet.trainer_worker.domain import Exit
from ratchet.trainer_worker.job import LOG_FILE, Event, JobSpec, decode_event, write_job

log = structlog.get_logger()

LINE_LIMIT = 1 << 22
"""Bytes of one event; a traceback and metrics are far smaller."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
TRAINING = ("ratchet.trainer_worker.training.child",)
"""The module that a training process runs, and its arguments before the directory."""
KEY_VARIABLE = "RATCHET_SERVICE_KEY"
OWN_VARIABLES = frozenset({*THREAD_VARIABLES, CUDA_VARIABLE})
"""What libraries read when a training begins, not when they are imported: each training has its own."""


class Process(Protocol):
    """A running process, however it was made. `asyncio.subprocess.Process` is one."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Raises `ProcessLookupError` once it has ended."""
        ...

    def wait(self) -> Awaitable[int | None]:
        """Its exit code, negative for a signal; None when the fork server, which would know it, has died."""
        ...


class WarmStart(Protocol):
    """`fork_server.ForkServer`: makes processes that need not import anything."""

    async def fork(self, directory: Path, environment: Mapping[str, str], streams: Streams) -> Process | None:
        """A training process for the job in `directory`, or None when a fresh process has to be started."""
        ...


@dataclass(frozen=True, slots=True)
class Streams:
    """The child's ends: `stdin` closes with the worker, `stdout` takes events."""

    stdin: Connection
    stdout: Connection
    stderr: Connection


class Child:
    """A running training process. It ends by itself when this object's process does."""

    def __init__(self, process: Process, events: asyncio.StreamReader, stdin: Connection, directory: Path) -> None:
        self._process = process
        self._events = events
        self._stdin = stdin
        self._directory = directory
        self._oom_kills = oom_kills()

    @classmethod
    async def start(
        cls,
        spec: JobSpec,
        directory: Path,
        warm: WarmStart | None,
        gpu: str | None = None,
        program: Sequence[str] = TRAINING,
    ) -> Child:
        """Write the job file and start the process in a session of its own: a terminal's Ctrl-C is ours to handle.

        `gpu`: see `slots.Slot`. `program`: what a fresh process runs.
        """
        write_job(directory, spec)
        environment = child_environment(os.environ, spec, gpu)
        with ExitStack() as ours_if_it_fails, ExitStack() as theirs:
            (events, events_end), (stdin_end, stdin) = Pipe(duplex=False), Pipe(duplex=False)
            ours_if_it_fails.callback(events.close)
            ours_if_it_fails.callback(stdin.close)
            theirs.callback(events_end.close)
            theirs.callback(stdin_end.close)
            errors = Connection(os.open(directory / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
            theirs.callback(errors.close)
            streams = Streams(stdin_end, events_end, errors)
            process = await warm.fork(directory, environment, streams) if warm is not None else None
            metrics.STARTS.labels("fresh" if process is None else "forked").inc()
            if process is None:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    *program,
                    str(directory),
                    stdin=stdin_end.fileno(),
                    stdout=events_end.fileno(),
                    stderr=errors.fileno(),
                    env=environment,
                    start_new_session=True,
                )
            ours_if_it_fails.pop_all()
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), events)
        return cls(process, reader, stdin, directory)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def events(self) -> AsyncIterator[Event]:
        """Its events until it ends."""
        async for line in self._events:
            try:
                yield decode_event(line)
            except msgspec.DecodeError as error:
                log.warning("unreadable event of the training process", reason=str(error))

    def memory_gb(self) -> float:
        """Resident memory of all ranks now, with what each shares with the fork server; 0 once they have ended."""
        with suppress(psutil.Error):
            first = psutil.Process(self.pid)
            return sum(child.memory_info().rss for child in (first, *first.children(recursive=True))) / 1e9
        return 0.0

    def ask_to_stop(self) -> None:
        """Stop at the next step boundary, with a checkpoint."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def wait(self) -> Exit:
        """Its end. Called once."""
        code = await self._process.wait()
        self._stdin.close()
        killed = code == -signal.SIGKILL and oom_kills() > self._oom_kills
        return Exit(code=code, oom_killed=killed, log_tail=log_tail(self._directory / LOG_FILE))


def child_environment(environment: Mapping[str, str], spec: JobSpec, gpu: str | None = None) -> dict[str, str]:
    """Our environment without our own settings and secrets, with thread count, GPU and, unless asked for, no hub. A
    search for a bundle has the key with which it asks the gateway.

    A hub that cannot be reached takes minutes to say so; a model that the machine does not have fails at once.
    """
    kept = library_environment(environment) | dict.fromkeys(THREAD_VARIABLES, str(spec.threads))
    if spec.search is not None and (key := environment.get(KEY_VARIABLE)):
        kept[KEY_VARIABLE] = key
    if gpu is not None:
        kept[CUDA_VARIABLE] = gpu
    if not Path(spec.base).is_dir() and environment.get(HUB_VARIABLE) == "1":
        del kept["HF_HUB_OFFLINE"]
    return kept


def library_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the libraries of a training may know of our environment: no settings of ours, one thread, no hub."""
    kept = PASSIVE | {name: value for name, value in environment.items() if not name.startswith("RATCHET_")}
    kept |= dict.fromkeys(THREAD_VARIABLES, "1")
    kept |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return kept | {"HF_HUB_OFFLINE": "1"}


def oom_kills() -> int:
    """How often the kernel has ended a process for lack of memory; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def log_tail(path: Path) -> str:
    """The end of a process' log; empty where there is none."""
    with suppress(OSError):
        return path.read_text(errors="replace")[-2000:]
    return ""
