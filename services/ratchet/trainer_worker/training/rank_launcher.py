"""The processes of a training with several ranks: the first one forks the others, and none outlives it or is missed.

No torch. A rank is forked before the training imports anything or touches a GPU. It has two pipes to the first rank:
one ends with the first rank, and so ends this one; through the other it sends why it failed. A signal to stop that any
rank gets is the first one's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, NoReturn

import msgspec

from ratchet.core.contract.training import ErrorCode
from ratchet.trainer_worker.job import Failed, decode_event, encode_event

GRACE_S = 2.0
"""How long the first rank, when it fails, waits for another's reason: it may have failed only because that one has."""
PATIENCE_S = 60.0
"""How long another rank that lost its peers waits to be ended by the first."""
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class RankLauncher:
    """The other ranks, as the first one sees them."""

    pids: list[int] = field(default_factory=list[int])
    _lost: threading.Event = field(default_factory=threading.Event)

    def watch(self, reports: list[int], on_loss: Callable[[Failed], None]) -> None:
        """Call `on_loss`, in a thread, when the first of the ranks ends other than well."""
        for pid, report in zip(self.pids, reports, strict=True):
            threading.Thread(target=self._await, args=(pid, report, on_loss), daemon=True).start()

    def explain(self) -> None:
        """Give another rank's failure, which has ended this process by then, the time to be noticed."""
        if self.pids:
            self._lost.wait(GRACE_S)

    def _await(self, pid: int, report: int, on_loss: Callable[[Failed], None]) -> None:
        with os.fdopen(report, "rb") as lines:
            report_line = lines.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0 or self._lost.is_set():
            return
        self._lost.set()
        number = self.pids.index(pid) + 1
        with suppress(msgspec.DecodeError, ValueError):
            event = decode_event(report_line)
            if isinstance(event, Failed):
                on_loss(event)
                return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        on_loss(Failed(code=ErrorCode.INFRA, message=f"process {number + 1} of the training {how}"))


def fork_ranks(count: int, train: Callable[[int], Failed | None], events: BinaryIO) -> RankLauncher:
    """Make the ranks 1 to `count` - 1, which run `train` and never return from here.

    When one of them fails, so does this process: it writes why to `events`, and ends.
    """
    launcher, reports = RankLauncher(), list[int]()
    leader = os.getpid()
    alive, life = os.pipe()
    for index in range(1, count):
        report, own_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(life)
            os.close(report)
            _become_rank(leader, alive, own_end, events, lambda index=index: train(index))
        os.close(own_end)
        launcher.pids.append(pid)
        reports.append(report)
    os.close(alive)  # `life` stays open for as long as this process lives

    def fail(failed: Failed) -> None:
        events.write(encode_event(failed))
        events.flush()
        os._exit(1)

    launcher.watch(reports, fail)
    return launcher


def _become_rank(
    leader: int, alive: int, report: int, events: BinaryIO, train: Callable[[], Failed | None]
) -> NoReturn:
    status = 1
    try:
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(events.fileno())  # the worker reads them until the first rank has ended
        signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(leader, number))
        threading.Thread(target=end_with, args=(alive,), daemon=True).start()
        failed = train()
        if failed is not None:
            os.write(report, encode_event(failed))
        status = 0 if failed is None else 1
    finally:
        sys.stderr.flush()
        os._exit(status)


def end_with(descriptor: int) -> None:
    """Block until the other end of a pipe has closed, by will or by dying, and end this process."""
    while os.read(descriptor, 1024):
        pass
    os._exit(3)


def wait_for_the_end() -> None:
    """Of a rank that lost its peers: the first rank ends it, and tells the reason of the one that failed."""
    threading.Event().wait(PATIENCE_S)
