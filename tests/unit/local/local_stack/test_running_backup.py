"""Backups of a stack that runs: its files are of one moment, and it goes on whatever becomes of the backup.

The stack is three processes that write all the time: an effect is written after its cause, and folders come and go.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.errors import Conflict
from ratchet.local.local_stack.backup import MANIFEST, ROUNDS, back_up, planned_backup, read_manifest, restore
from ratchet.local.local_stack.orphans import STACK_ID_VARIABLE, birth
from ratchet.local.local_stack.state import StackRecord, remove_record, stack_lock, write_record, write_version
from tests.support.small_disk import filled, small_disk

WRITERS = {
    "cause": """
with open("a.cause", "r+b", 0) as file:
    for number in itertools.count(1):
        file.seek(0)
        file.write(b"%20d" % number)
        os.write(1, b".")
        time.sleep(0.0005)
""",
    "effect": """
with open("z.effect", "r+b", 0) as file:
    for number in itertools.count(1):
        os.read(0, 1)
        file.seek(0)
        file.write(b"%20d" % number)
""",
    "streams": """
for number in itertools.count(1):
    os.makedirs(f"m.streams/{number}/obs")
    for block in range(5):
        open(f"m.streams/{number}/{block}.blk", "w").write(str(number))
    time.sleep(0.0005)
    shutil.rmtree(f"m.streams/{number}")
""",
}


class RunningStack:
    """The processes of a stack in `state`, and what they have written."""

    def __init__(self, state: Path) -> None:
        (state / "data" / "m.streams").mkdir(parents=True)
        for name in ("a.cause", "z.effect"):
            (state / "data" / name).write_bytes(b"%20d" % 0)
        write_version(state)
        self.state = state
        self.stack_id = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
        """One of the writers."""
        code = f"import itertools, os, shutil, time\n{WRITERS[name]}"
        env = {**os.environ, STACK_ID_VARIABLE: self.stack_id}
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-S", "-c", code], cwd=self.state / "data", env=env, stdin=stdin, stdout=subprocess.PIPE
        )
        return self.processes[name]

    def stands_still(self) -> bool:
        """Whether all of them are stopped."""
        states = {psutil.Process(process.pid).status() for process in self.processes.values()}
        return states == {psutil.STATUS_STOPPED}

    def goes_on(self) -> None:
        """Return when both numbers are higher than now."""
        before = numbers(self.state)

        async def higher() -> bool:
            return all(now > then for now, then in zip(numbers(self.state), before, strict=True))

        asyncio.run(eventually(higher))


def numbers(directory: Path) -> tuple[int, int]:
    """The cause and the effect that stand in a state."""
    cause, effect = (int((directory / "data" / name).read_bytes()) for name in ("a.cause", "z.effect"))
    return cause, effect


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    """A stack that runs, whose supervisor is this process."""
    stack = RunningStack(tmp_path / "state")
    with running(stack):
        yield stack


@contextmanager
def running(stack: RunningStack) -> Iterator[None]:
    """The processes of a stack, and its record."""
    record = StackRecord(
        pid=os.getpid(),
        stack_id=stack.stack_id,
        ready=True,
        services={},
        stop_s=1.0,
        env={},
        born=birth(os.getpid()),
    )
    with ExitStack() as held:
        held.enter_context(stack_lock(stack.state))
        write_record(stack.state, record)
        cause = stack.start("cause")
        assert cause.stdout is not None
        stack.start("effect", cause.stdout.fileno())
        stack.start("streams")
        try:
            yield
        finally:
            for process in stack.processes.values():
                process.kill()
                process.communicate()
            remove_record(stack.state)


def test_a_stack_that_runs_is_copied_at_one_moment(stack: RunningStack, tmp_path: Path) -> None:
    stack.goes_on()
    files, _ = planned_backup(stack.state, tmp_path / "backup")

    def slow(_done: int, _size: int) -> None:
        cause, _ = numbers(stack.state)
        while not stack.stands_still() and numbers(stack.state)[1] <= cause:
            time.sleep(0.001)

    back_up(stack.state, tmp_path / "backup", slow)
    stack.goes_on()
    restore(tmp_path / "backup", tmp_path / "restored")
    cause, effect = numbers(tmp_path / "restored")
    assert 0 < effect <= cause <= numbers(stack.state)[0]
    assert files >= 2


def test_a_stack_goes_on_where_its_copy_meets_a_full_disk(stack: RunningStack, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, ExitStack() as held:
        full: list[bool] = []

        def fill(_done: int, _size: int) -> None:
            if not full and stack.stands_still():
                held.enter_context(filled(disk))
                full.append(True)

        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            back_up(stack.state, disk / "backup", fill)
        stack.goes_on()
        assert list(disk.iterdir()) == []


KILLED = """
import sys, time
from pathlib import Path
import psutil
from ratchet.local.local_stack.backup import back_up

state, target, pid = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def stop(done, size):
    if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
        print("still", flush=True)
        time.sleep(600)

back_up(state, target, on_progress=stop)
"""


def test_a_stack_goes_on_where_its_backup_is_killed_while_it_stands_still(stack: RunningStack, tmp_path: Path) -> None:
    pid = stack.processes["cause"].pid
    words = [sys.executable, "-P", "-c", KILLED, str(stack.state), str(tmp_path / "backup"), str(pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"still\n"
        process.kill()
    stack.goes_on()
    assert not (tmp_path / "backup" / MANIFEST).exists()
    back_up(stack.state, tmp_path / "backup")
    assert not list(tmp_path.glob(".*.partial"))


def test_a_stack_goes_on_where_the_guard_of_its_standstill_is_killed(stack: RunningStack, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_the_guard(_done: int, _size: int) -> None:
        if not killed and stack.stands_still():
            guard = next(each for each in psutil.Process().children() if stack.stack_id in each.cmdline())
            guard.kill()
            killed.append(guard.pid)

    back_up(stack.state, tmp_path / "backup", kill_the_guard)
    assert killed
    stack.goes_on()


def test_a_second_backup_of_a_stack_is_refused_and_the_first_is_made(stack: RunningStack, tmp_path: Path) -> None:
    def again(_done: int, _size: int) -> None:
        with pytest.raises(Conflict, match=r"another backup of .*state is being made"):
            back_up(stack.state, tmp_path / "second")

    back_up(stack.state, tmp_path / "first", again)
    assert read_manifest(tmp_path / "first").files
    assert not (tmp_path / "second").exists()
    back_up(stack.state, tmp_path / "second")


def test_a_stack_that_does_not_stand_still_is_refused_in_words(stack: RunningStack, tmp_path: Path) -> None:
    rounds: list[bool] = []

    def wake(_done: int, _size: int) -> None:
        if stack.stands_still():  # as a supervisor does that starts a member
            rounds.append(True)
            stack.processes["cause"].send_signal(signal.SIGCONT)

    with pytest.raises(Conflict, match=f"was not copied within {ROUNDS} standstills"):
        back_up(stack.state, tmp_path / "backup", wake)
    assert len(rounds) == ROUNDS
    stack.goes_on()
    assert not (tmp_path / "backup").exists()


def test_a_stack_that_stops_meanwhile_is_copied_as_it_is_then(tmp_path: Path) -> None:
    stack = RunningStack(tmp_path / "state")
    with ExitStack() as held:
        held.enter_context(running(stack))
        stack.goes_on()

        def end(_done: int, _size: int) -> None:
            held.close()

        back_up(stack.state, tmp_path / "backup", end)
    restore(tmp_path / "backup", tmp_path / "restored")
    assert numbers(tmp_path / "restored") == numbers(stack.state)
