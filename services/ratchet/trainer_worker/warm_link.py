"""The worker's side of the warm parent: starts it, starts it again when it has died, and asks it for processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.core.service.logs import failure
from ratchet.trainer_worker.child_process import OWN_VARIABLES, Process, Streams, library_environment, log_tail
from ratchet.trainer_worker.job import MESSAGE_BYTES, Exited, Fork, Forked, Ready, Refused, Spares, WarmAnswer

log = structlog.get_logger()

LOG_FILE = "warm-parent.log"
QUIET = {
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Environment that keeps the parent from starting threads and from initialising CUDA."""
READY_S = 120.0
"""Longest wait of a training for the imports: a fresh process would begin them anew."""
ANSWER_S = 5.0
"""Longest wait for a fork."""
RESTART_S, LONGEST_RESTART_S = 1.0, 60.0
"""Pause before a warm parent that has died is started again; it doubles from death to death without a fork."""


class ForkedProcess:
    """A process that the warm parent made: `child_process.Process`."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def send_signal(self, number: int, /) -> None:
        """By pidfd: a process that got the same id since is never meant."""
        if self._ended.done():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> int | None:
        """See `Process`."""
        return await asyncio.shield(self._ended)

    def exited(self, code: int | None) -> None:
        """The process ended; `code` is None where no warm parent was left to report it."""
        if not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._ended.set_result(code)

    def orphaned(self) -> None:
        """The warm parent has died: from now on only the end itself can be observed."""
        if not self._ended.done():
            asyncio.get_running_loop().add_reader(self._pidfd, self.exited, None)


@dataclass(slots=True, eq=False)
class _Parent:
    """One warm parent that lives."""

    process: asyncio.subprocess.Process
    control: socket.socket
    ready: asyncio.Future[bool]
    """Whether it forks; set once it has imported everything, or has ended."""


class WarmLink:
    """A component. Prepares the parent `delay_s` after its start, or when the first training needs it."""

    def __init__(
        self, directory: Path, delay_s: float, modules: Sequence[str] = (), spares: Sequence[str] = ()
    ) -> None:
        """`modules`: what the parent imports, if anything, instead of what trainings need. `spares`: `job.Spares`."""
        self._spares = Spares([*spares])
        self._directory = directory
        self._modules = modules
        self._delay_s = delay_s
        self._needed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._parent: _Parent | None = None
        self._prepared = asyncio.Event()
        """Set while a parent runs, and once it is clear that none will."""
        self._unfit: str | None = None
        self._tickets = itertools.count(1)
        self._asked: dict[int, asyncio.Future[ForkedProcess | None]] = {}
        self._living: dict[int, ForkedProcess] = {}
        self._pause_s = RESTART_S

    @property
    def parent_pid(self) -> int | None:
        """Process id of the warm parent, while one runs."""
        return self._parent.process.pid if self._parent else None

    async def run(self) -> None:
        """Keep a parent alive until `stop`."""
        if supported():
            await self._either(self._needed, self._delay_s)
        else:
            self._unfit = "this system has no pidfds"
        while not self._stopping.is_set() and self._unfit is None:
            try:
                await self._live()
            except OSError as error:
                log.warning("the warm parent cannot be started", pause_s=self._pause_s, **failure(error))
                self._prepared.set()  # until it can, trainings start in fresh processes
            if self._unfit is None and not self._stopping.is_set():
                await self._either(None, self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_RESTART_S)
        if self._unfit is not None:
            log.info("trainings start in fresh processes", reason=self._unfit)
        self._prepared.set()
        await self._stopping.wait()

    async def stop(self) -> None:
        """End the parent. Trainings that it has forked go on; their attempts end them."""
        self._stopping.set()

    async def fork(self, directory: Path, environment: Mapping[str, str], streams: Streams) -> Process | None:
        """See `child_process.WarmStart`."""
        # The parent's libraries read its environment while they were imported: they fit a child of the same one.
        theirs, ours = (
            {name: value for name, value in one.items() if name not in OWN_VARIABLES}
            for one in (environment, library_environment(os.environ))
        )
        if theirs != ours or self._stopping.is_set():
            return None
        self._needed.set()
        parent = await self._ready_parent()
        if parent is None:
            return None
        ticket = next(self._tickets)
        answer: asyncio.Future[ForkedProcess | None] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        try:
            body = msgspec.json.encode(Fork(ticket, str(directory), dict(environment)))
            socket.send_fds(parent.control, [body], [streams.stdin, streams.stdout, streams.stderr])
            async with asyncio.timeout(ANSWER_S):
                process = await answer
        except (OSError, TimeoutError) as error:
            # A parent that does not answer is of no use; what it may fork late finds its streams closed.
            log.warning("the warm parent does not fork", reason=repr(error))
            _kill(parent.process)
            return None
        finally:
            self._asked.pop(ticket, None)
        self._pause_s = RESTART_S
        return process

    async def _ready_parent(self) -> _Parent | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await self._prepared.wait()
                parent = self._parent
                if parent is not None and await asyncio.shield(parent.ready):
                    return parent
        return None

    async def _live(self) -> None:
        """The whole life of one parent. Raises `OSError` when none can be started: a full disk, no process to spare."""
        loop = asyncio.get_running_loop()
        parent = self._parent = await self._start()
        loop.add_reader(parent.control, self._read_message, parent)
        self._prepared.set()
        ended = asyncio.create_task(parent.process.wait())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._forget(parent)
            _kill(parent.process)
            await parent.process.wait()
            await end(ended, stopped)
        if self._unfit is None and not self._stopping.is_set():
            log.warning("the warm parent has died", log=log_tail(self._directory / LOG_FILE))

    async def _start(self) -> _Parent:
        self._directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as ours_if_it_fails:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours_if_it_fails.enter_context(ours)
            with theirs, (self._directory / LOG_FILE).open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ratchet.trainer_worker.training.warm_parent",
                    str(theirs.fileno()),
                    *self._modules,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=library_environment(os.environ) | QUIET,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            ours_if_it_fails.pop_all()
        ours.setblocking(False)
        log.info("preparing the warm parent", pid=process.pid)
        return _Parent(process, ours, asyncio.get_running_loop().create_future())

    def _read_message(self, parent: _Parent) -> bool:
        """Read one message and act on it. False when there is none, or no more."""
        try:
            body, descriptors, _, _ = socket.recv_fds(parent.control, MESSAGE_BYTES, 1)
        except OSError:
            return False
        if not body:
            asyncio.get_running_loop().remove_reader(parent.control)
            return False
        answer: WarmAnswer = msgspec.json.decode(body, type=WarmAnswer)
        match answer:
            case Ready(unfit=reason):
                self._unfit = reason
                parent.ready.set_result(reason is None)
                if self._spares.devices and reason is None:
                    parent.control.send(msgspec.json.encode(self._spares))
            case Forked(ticket=ticket, pid=pid):
                process = self._living[pid] = ForkedProcess(pid, descriptors[0])
                if not self._answer(ticket, process):
                    with suppress(ProcessLookupError):
                        process.send_signal(signal.SIGKILL)
            case Refused(ticket=ticket, reason=reason):
                log.warning("the system makes no process", reason=reason)
                self._answer(ticket, None)
            case Exited(pid=pid, code=code):
                if process := self._living.pop(pid, None):
                    process.exited(code)
        return True

    def _answer(self, ticket: int, process: ForkedProcess | None) -> bool:
        """Give the fork request its process. False when it is no longer waiting."""
        answer = self._asked.get(ticket)
        if answer is None or answer.done():
            return False
        answer.set_result(process)
        return True

    def _forget(self, parent: _Parent) -> None:
        """Read what the parent wrote before its end, then answer everything that still waits for it."""
        while self._read_message(parent):
            pass
        asyncio.get_running_loop().remove_reader(parent.control)
        parent.control.close()
        if not parent.ready.done():
            parent.ready.set_result(False)
        self._parent = None
        self._prepared.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)
        for process in self._living.values():
            process.orphaned()
        self._living.clear()

    async def _either(self, event: asyncio.Event | None, delay_s: float) -> None:
        """Wait for `event`, the stop or `delay_s`."""
        waits = [asyncio.create_task(one.wait()) for one in (event, self._stopping) if one is not None]
        try:
            await asyncio.wait(waits, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)


def supported() -> bool:
    """Whether this system has what forking from a warm parent needs."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
