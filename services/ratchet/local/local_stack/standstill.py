"""A running stack stands still: every process of it is stopped (SIGSTOP) for a moment, and goes on afterwards.

What its servers and services have written by then is what `kill -9` of all at once would leave: no message is there
without the one that caused it, for a process that is stopped sends nothing. A guard, a process of its own, stops them,
and lets them go on when this one says so, ends in whatever way, or takes too long. Where the guard itself is killed,
this one does.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from ratchet.core.errors import Unavailable
from ratchet.local.local_stack.orphans import STACK_ID_VARIABLE

LONGEST_S = 5.0
"""Of a standstill. A supervisor ends a gateway that has been silent for 10 s, and a deployer's lead lapses after 5."""
GUARD_S = 2.0
"""How much longer its guard waits for a process that was stopped itself."""
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Standstill:
    """A moment at which nothing of a stack runs."""

    began_at: datetime
    until: float
    """`time.monotonic()` at which it has taken too long."""
    stack_id: str

    def holds(self) -> bool:
        """Whether nothing of the stack has run, or was started, since it began."""
        return time.monotonic() < self.until and not _moving(self.stack_id)


@contextmanager
def standing_still(stack_id: str) -> Iterator[Standstill]:
    """Nothing of the stack runs within the block. Raises `Unavailable` where a process does not stop."""
    command = [sys.executable, "-P", "-m", __name__, stack_id]
    guard = subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        with guard:
            assert guard.stdout is not None  # noqa: S101 - the process was started with a pipe
            began = guard.stdout.readline()  # from the first process that stops on
            until = time.monotonic() + LONGEST_S
            if not began or not guard.stdout.readline():
                raise Unavailable("a process of the stack does not stop: is its disk away?")
            yield Standstill(datetime.now(UTC), until, stack_id)
    finally:
        if guard.returncode != 0:  # it was killed, and let nothing go on
            _signal(_processes(stack_id), signal.SIGCONT)


def _guard() -> None:
    """Stop a stack until standard input ends."""
    stack_id = sys.argv[1]
    sys.stdout.write("stopping\n")
    sys.stdout.flush()
    until = time.monotonic() + LONGEST_S + GUARD_S
    try:
        while moving := _moving(stack_id):
            if time.monotonic() > until:
                return
            _signal(moving, signal.SIGSTOP)
            time.sleep(LOOK_S)
        sys.stdout.write("still\n")
        sys.stdout.flush()
        select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))
    finally:
        _signal(_processes(stack_id), signal.SIGCONT)


def _processes(stack_id: str) -> list[psutil.Process]:
    """The processes of a stack: its members, known by their environment, and what descends from them."""
    processes: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    members: set[int] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended meanwhile, or is another user's and so not the stack's
            processes[process.pid], parents[process.pid] = process, process.ppid()
            if process.environ().get(STACK_ID_VARIABLE) == stack_id:
                members.add(process.pid)

    def is_ours(pid: int) -> bool:
        while pid not in members and pid in parents:
            pid = parents[pid]
        return pid in members

    return [process for pid, process in processes.items() if is_ours(pid)]


def _moving(stack_id: str) -> list[psutil.Process]:
    """The processes of a stack of which a thread is not stopped yet: it may be within a write."""
    return [process for process in _processes(stack_id) if not _threads(process.pid) <= {"T", "t", "Z", "X"}]


def _threads(pid: int) -> set[str]:
    """The states of a process's threads, as in /proc/PID/stat."""
    states: set[str] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.add(task.read_text().rpartition(")")[2].split()[0])
    return states


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):
            process.send_signal(number)


if __name__ == "__main__":
    _guard()
