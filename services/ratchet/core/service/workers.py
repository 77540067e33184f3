"""Several processes of one service on one port: starts them, keeps them at work, stops them, and reports for them.

Each worker is the whole service in a process of its own. The kernel spreads connections among them, so they share a
port and nothing else; this process answers no call. Only Linux spreads them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Generator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.core.errors import ConfigError
from ratchet.core.service.health import CHECK_DEADLINE_S
from ratchet.core.service.http import bound
from ratchet.core.service.reports import Family, Report, lasting, reasons_by_check, together
from ratchet.core.service.seat import Answer, Question, Seat, Unfit, frame, read_frame

log = structlog.get_logger()

LOOK_S = 1.0
"""How often a worker is asked for its state."""
ANSWER_S = CHECK_DEADLINE_S + 0.5
"""Who asks this process for its state waits so long for that of a worker."""
START_S = 300.0
"""A worker that has not answered once by then is ended and started again: many may start on few cores."""
SILENCE_S = 60.0
"""A worker that has answered does so again sooner, also on a busy machine."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before a worker starts again."""
STEADY_S = 60.0
"""After so long the next pause is the first again."""
LAST_WORD_S = 5.0
"""How long a worker may take to end that has closed its channel, and what it wrote before to be read."""


@dataclass
class Pauses:
    """How long to wait before a worker starts again: longer and longer while it does not last."""

    next_s: float = FIRST_PAUSE_S

    def after(self, lived_s: float) -> float:
        """The pause after a process that lived for so long."""
        pause_s = FIRST_PAUSE_S if lived_s >= STEADY_S else self.next_s
        self.next_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s


@contextmanager
def held_port(host: str, port: int) -> Generator[int]:
    """Hold a port that workers share, without accepting connections; 0 picks a free one.

    Raises `ConfigError` where any other process listens on it, also one that would share it.
    """
    if sys.platform != "linux":
        raise ConfigError("only Linux spreads connections among several workers; set one")
    bound(host, port).close()
    with bound(host, port, shared=True) as holder:
        yield holder.getsockname()[1]


class _Link:
    """The supervisor's end of the channel to one process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[Report | None]] = {}
        self._number = 0
        self.unfit: str | None = None
        """Why the process says that it cannot run."""

    async def run(self) -> None:
        """Take what the process says until its end of the channel closes."""
        decoder = msgspec.msgpack.Decoder[Answer | Unfit](Answer | Unfit)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    message = decoder.decode(await read_frame(self._reader))
                    if isinstance(message, Unfit):
                        self.unfit = message.reason
                    else:
                        self._settle(message.number, message.report)
        finally:
            for number in [*self._asked]:
                self._settle(number, None)
            self._writer.close()

    @property
    def is_closed(self) -> bool:
        """Nothing can be asked any more: the process ends, or has ended."""
        return self._writer.is_closing()

    def _settle(self, number: int, report: Report | None) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.done():  # the caller may have stopped waiting
            asked.set_result(report)

    async def ask(self, *, metrics: bool, deadline_s: float) -> Report | None:
        """The report of the process; None without an answer in time, and once its end of the channel has closed."""
        if self.is_closed:
            return None
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._writer.write(frame(Question(number, metrics)))
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._asked.pop(number, None)


class WorkerProcess:
    """One worker: a process at a time, started again when it ends."""

    def __init__(self, module: str, seat: Seat, on_death: Callable[[], None], silence_s: float) -> None:
        """See `Workers`."""
        self._module = module
        self._seat = seat
        self._on_death = on_death
        self._silence_s = silence_s
        self._process: asyncio.subprocess.Process | None = None
        self._link: _Link | None = None
        self._answers = False
        """The process has answered once."""
        self._trouble = "starting"
        """Why it has not."""
        self._known: tuple[Family, ...] = ()
        """What its process counted when it was last asked."""
        self._gone: tuple[Family, ...] = ()
        """What those before it counted."""
        self._stopping = asyncio.Event()
        self.has_run = False
        """A process of it was once built."""

    @property
    def pid(self) -> int | None:
        """Id of the process, None while there is none."""
        return self._process.pid if self._process else None

    @property
    def families(self) -> tuple[Family, ...]:
        """What its processes counted, as far as is known."""
        return together([self._known, self._gone])

    async def run(self) -> None:
        """Keep a process at work until stopped. Raises `ConfigError` when the first says that a setting is wrong."""
        pauses, loop = Pauses(), asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            ended, unfit = await self._run_once()
            self._gone, self._known = together([lasting(self._known), self._gone]), ()
            if self._stopping.is_set():
                self._trouble = "it has ended"
                return
            if unfit is not None and not self.has_run:
                raise ConfigError(unfit)
            self._on_death()
            pause_s = pauses.after(loop.time() - began_s)
            self._trouble = f"{unfit or ended}; it starts again"
            log.error("a worker ended", worker=self._seat.number, reason=unfit or ended, pause_s=pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def stop(self) -> None:
        """Ask the process to finish what it has begun."""
        self._stopping.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def report(self, *, metrics: bool, deadline_s: float = ANSWER_S) -> Report | None:
        """What its process says of itself; None without an answer."""
        report = await self._link.ask(metrics=metrics, deadline_s=deadline_s) if self._link is not None else None
        if report is not None:
            self._answers = True
            self._known = report.families if metrics else self._known
        return report

    async def state(self, *, metrics: bool) -> Report:
        """What is known of it now."""
        if not self._answers:
            return Report({"workers": self._trouble}, {})
        report = await self.report(metrics=metrics)
        if report is not None:
            return report
        has_left = self._link is None or self._link.is_closed
        return Report({"workers": "it ends" if has_left else f"no answer within {ANSWER_S:g} s"}, {})

    async def _run_once(self) -> tuple[str, str | None]:
        """How one process ended, and why it could not run, if it said so."""
        ours, theirs = socket.socketpair()
        seat = msgspec.structs.replace(self._seat, channel=theirs.fileno())
        command = (sys.executable, "-m", self._module, seat.text)
        with ours:
            try:
                with theirs:
                    self._process = process = await asyncio.create_subprocess_exec(
                        *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=(seat.channel,)
                    )
            except OSError as error:
                return f"it cannot start: {error.strerror}", None
            try:
                return await self._attend(process, ours)
            finally:
                self._process = None
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _attend(self, process: asyncio.subprocess.Process, channel: socket.socket) -> tuple[str, str | None]:
        """How a process ended, and why it could not run, if it said so. Returns early when it no longer answers."""
        self._link = link = _Link(*await asyncio.open_unix_connection(sock=channel.dup()))
        reading, watching = asyncio.create_task(link.run()), asyncio.create_task(self._watch())
        ended = asyncio.create_task(process.wait())
        try:
            if self._stopping.is_set():  # since before there was a process to ask
                await self.stop()
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ended}, timeout=LAST_WORD_S)  # its channel may close before it has ended
            await asyncio.wait({reading}, timeout=LAST_WORD_S if ended.done() else 0)
            return _ended(ended.result()) if ended.done() else "it no longer answered", link.unfit
        finally:
            self._link, self._answers = None, False
            await end(reading, watching, ended)

    async def _watch(self) -> None:
        """Return when the process no longer answers."""
        report = await self.report(metrics=False, deadline_s=START_S)
        while report is not None:
            self.has_run = self.has_run or "start" not in report.reasons
            await asyncio.sleep(LOOK_S)
            report = await self.report(metrics=False, deadline_s=self._silence_s)


class Workers:
    """All workers of a service as one component."""

    def __init__(
        self,
        module: str,
        number: int,
        port: int,
        *,
        on_death: Callable[[], None],
        largest: Set[str] = frozenset(),
        silence_s: float = SILENCE_S,
    ) -> None:
        """`module`: the program of each, which takes its seat as argument; `on_death`: called when a process has ended
        that was not asked to; `largest`: see `together`; `silence_s`: a process that gives no answer for so long is
        ended, and started again."""
        self._largest = largest
        seats = [Seat(number=one, workers=number, port=port) for one in range(1, number + 1)]
        self.processes = [WorkerProcess(module, seat, on_death, silence_s) for seat in seats]

    async def run(self) -> None:
        """Keep all at work until stopped. Raises `ConfigError` when they cannot run with their settings."""
        running = [asyncio.create_task(process.run()) for process in self.processes]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            for one in running:
                if one.done():
                    one.result()
        finally:
            await end(*running)

    async def stop(self) -> None:
        """Ask all to finish what they have begun."""
        await asyncio.gather(*(process.stop() for process in self.processes))

    async def report(self, *, metrics: bool) -> Report:
        """What all say of themselves, as if they were one process."""
        states = await asyncio.gather(*(process.state(metrics=metrics) for process in self.processes))
        named = {f"worker {number}": state for number, state in enumerate(states, 1)}
        return Report(
            reasons_by_check({name: state.reasons for name, state in named.items()}),
            reasons_by_check({name: state.notes for name, state in named.items()}),
            together([process.families for process in self.processes], self._largest) if metrics else (),
        )


def _ended(status: int) -> str:
    """How a process ended, in words."""
    return f"it ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
