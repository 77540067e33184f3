"""Training processes are forked from a warm parent; whichever of the three processes is killed, the others do right.

Real processes, with a parent that imports nothing and trainings that wait for their job file, which is a pipe.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import uvloop

from ratchet.bus.testing import eventually
from ratchet.trainer_worker.child_process import Process, Streams, library_environment
from ratchet.trainer_worker.job import JOB_FILE, Stopped, decode_event
from ratchet.trainer_worker.warm_link import LOG_FILE, WarmLink, supported

pytestmark = pytest.mark.skipif(not supported(), reason="forks from a warm parent only where there are pidfds")
ROOT = Path(__file__).parents[3]
NOTHING = ("sys",)
"""Modules of a parent that need not import torch."""


@dataclass
class Bench:
    """A link and the trainings that it forked. A training ends when its `ours` is closed, as by a worker's death."""

    link: WarmLink
    root: Path
    ours: list[int] = field(default_factory=list[int])
    logs: list[Path] = field(default_factory=list[Path])

    async def fork(self, name: str = "job", **environment: str) -> Process | None:
        directory = waiting_job(self.root / name)
        log = directory / "child.log"
        with own_end(self.ours) as stdin, log.open("wb") as output:
            streams = Streams(stdin, output.fileno(), output.fileno())
            return await self.link.fork(directory, library_environment(os.environ) | environment, streams)

    async def forked(self, name: str = "job", **environment: str) -> Process:
        process = await self.fork(name, **environment)
        assert process is not None
        return process

    def let_go(self) -> None:
        while self.ours:
            os.close(self.ours.pop())


@contextmanager
def own_end(ours: list[int]) -> Iterator[int]:
    theirs, mine = os.pipe()
    ours.append(mine)
    try:
        yield theirs
    finally:
        os.close(theirs)


def waiting_job(directory: Path) -> Path:
    directory.mkdir()
    os.mkfifo(directory / JOB_FILE)
    return directory


@asynccontextmanager
async def bench(root: Path, modules: tuple[str, ...] = NOTHING, delay_s: float = 0.0) -> AsyncIterator[Bench]:
    link = WarmLink(root, delay_s, modules)
    running = asyncio.create_task(link.run())
    one = Bench(link, root)
    try:
        yield one
    finally:
        one.let_go()
        await link.stop()
        await running


def open_files(pid: int, *numbers: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {str(path.readlink()) for path in folder.iterdir() if not numbers or int(path.name) in numbers}


def gone(pid: int) -> Callable[[], bool]:
    def look() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    return look


async def until(test: Callable[[], bool]) -> None:
    async def look() -> bool:
        return test()

    await eventually(look)


async def test_a_forked_training_has_its_own_session_directory_streams_and_environment(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        process = await one.forked(OMP_NUM_THREADS="2", CUDA_VISIBLE_DEVICES="1")
        child = psutil.Process(process.pid)
        await until(lambda: child.cwd() == str(tmp_path / "job"))
        assert os.getsid(process.pid) == process.pid
        assert open_files(process.pid, 1) == open_files(process.pid, 2) == {str(tmp_path / "job" / "child.log")}
        # A training that held the control socket would keep the worker from noticing that the parent has died.
        assert not {name for name in open_files(process.pid) if name.startswith("socket:")}
        one.let_go()
        assert await process.wait() == 3


async def test_a_training_that_still_loads_ends_at_once_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        process = await one.forked()
        # Its handler of signals stands once it works in its directory; from then on it waits for its job file.
        await until(lambda: psutil.Process(process.pid).cwd() == str(tmp_path / "job"))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert decode_event((tmp_path / "job" / "child.log").read_bytes()) == Stopped(step=0)


async def test_the_parent_that_forks_has_one_thread(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.forked()
        assert psutil.Process(one.link.parent_pid).num_threads() == 1


async def test_a_parent_of_trainings_is_fit_to_fork_after_its_imports_and_its_rehearsal(tmp_path: Path) -> None:
    async with bench(tmp_path, modules=()) as one:
        await one.forked()
        assert psutil.Process(one.link.parent_pid).num_threads() == 1
    assert "Traceback" not in (tmp_path / LOG_FILE).read_text()


async def test_imports_that_start_threads_make_trainings_start_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy_module.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    async with bench(tmp_path, ("busy_module",)) as one:
        assert await one.fork() is None


async def test_a_job_whose_libraries_must_be_imported_otherwise_starts_fresh(tmp_path: Path) -> None:
    async with bench(tmp_path, delay_s=60.0) as one:
        assert await one.fork(HF_HUB_OFFLINE="0") is None
        assert one.link.parent_pid is None


async def test_a_killed_training_is_reported_and_the_parent_forks_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        process = await one.forked("first")
        parent = one.link.parent_pid
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await one.forked("second")
        assert one.link.parent_pid == parent


@dataclass(frozen=True)
class AfterAKill:
    """What the trainings of a killed parent, and of the one that replaces it, come to."""

    first_lives: bool
    first_status: int | None
    second_status: int | None


async def outcome_of_killing_the_parent(tmp_path: Path) -> AfterAKill:
    async with bench(tmp_path) as one:
        first = await one.forked("first")
        parent = one.link.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        await until(lambda: one.link.parent_pid not in {None, parent})
        second = await one.forked("second")
        first_lives = psutil.Process(first.pid).is_running()
        first.send_signal(signal.SIGKILL)
        first_status = await first.wait()
        second.send_signal(signal.SIGKILL)
        return AfterAKill(first_lives, first_status, await second.wait())


REPLACED = AfterAKill(first_lives=True, first_status=None, second_status=-signal.SIGKILL)


async def test_a_killed_parent_leaves_its_trainings_alive_and_is_replaced(tmp_path: Path) -> None:
    assert await outcome_of_killing_the_parent(tmp_path) == REPLACED


def test_a_killed_parent_is_replaced_on_the_loop_of_the_services_too(tmp_path: Path) -> None:
    assert uvloop.run(outcome_of_killing_the_parent(tmp_path)) == REPLACED


async def test_a_parent_that_cannot_be_started_costs_no_training_and_no_worker(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a directory cannot be made here, as on a full disk")
    link = WarmLink(tmp_path / "full", 0.0, NOTHING)
    running = asyncio.create_task(link.run())
    with (tmp_path / "out").open("wb") as out:
        streams = Streams(out.fileno(), out.fileno(), out.fileno())
        assert await link.fork(tmp_path, library_environment(os.environ), streams) is None
    assert not running.done()
    await link.stop()
    await running


async def test_stopping_ends_the_parent_and_no_training(tmp_path: Path) -> None:
    link = WarmLink(tmp_path, 0.0, NOTHING)
    one = Bench(link, tmp_path)
    running = asyncio.create_task(link.run())
    process = await one.forked()
    parent = link.parent_pid
    assert parent is not None
    await link.stop()
    await running
    assert gone(parent)()
    assert not gone(process.pid)()
    one.let_go()
    await process.wait()
    assert gone(process.pid)()


async def test_with_a_killed_worker_its_parent_and_its_training_end(tmp_path: Path) -> None:
    waiting_job(tmp_path / "job")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.lone_worker", str(tmp_path / "job"), stdout=-1, cwd=ROOT
    )
    try:
        assert worker.stdout is not None
        parent, training = map(int, (await worker.stdout.readline()).split())
        assert not gone(parent)()
        assert not gone(training)()
    finally:
        worker.kill()
        await worker.wait()
    await until(lambda: gone(parent)() and gone(training)())
