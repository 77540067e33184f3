"""A process that has started its GPU waits for each free slot; tried without a GPU, by the same messages."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ratchet.bus.testing import eventually
from ratchet.trainer_worker.child_process import Process, Streams, library_environment
from ratchet.trainer_worker.job import JOB_FILE
from ratchet.trainer_worker.slots import spares_of
from ratchet.trainer_worker.warm_link import WarmLink, supported

needs_pidfds = pytest.mark.skipif(not supported(), reason="forks from a warm parent only where there are pidfds")
DEADLINE_S = 60.0


class Bench:
    """Trainings that wait for their job file, and end when `let_go` closes their standard input."""

    def __init__(self, link: WarmLink, root: Path) -> None:
        self.link = link
        self._root = root
        self._ours: list[int] = []
        self._count = 0

    def children(self) -> set[int]:
        assert self.link.parent_pid is not None
        return {one.pid for one in psutil.Process(self.link.parent_pid).children() if one.status() != "zombie"}

    async def spares(self, count: int) -> set[int]:
        """The parent's children, once there are so many."""

        async def look() -> set[int] | None:
            if self.link.parent_pid is None:
                return None
            children = self.children()
            return children if len(children) == count else None

        return await eventually(look, DEADLINE_S)

    async def fork(self, device: str) -> Process:
        self._count += 1
        directory = self._root / str(self._count)
        directory.mkdir()
        os.mkfifo(directory / JOB_FILE)
        theirs, mine = os.pipe()
        self._ours.append(mine)
        with (directory / "log").open("wb") as output:
            environment = library_environment(os.environ) | {"CUDA_VISIBLE_DEVICES": device, "OMP_NUM_THREADS": "3"}
            process = await self.link.fork(directory, environment, Streams(theirs, output.fileno(), output.fileno()))
        os.close(theirs)
        assert process is not None

        async def at_work() -> bool:
            return psutil.Process(process.pid).cwd() == str(directory)

        await eventually(at_work, DEADLINE_S)
        return process

    def let_go(self) -> None:
        while self._ours:
            os.close(self._ours.pop())


@asynccontextmanager
async def bench(root: Path, *spares: str) -> AsyncIterator[Bench]:
    link = WarmLink(root, 0.0, ("sys",), spares)
    running = asyncio.create_task(link.run())
    one = Bench(link, root)
    try:
        yield one
    finally:
        one.let_go()
        await link.stop()
        await running


def gone(pid: int) -> Callable[[], bool]:
    def look() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    return look


def log_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/fd/2").readlink()


@needs_pidfds
async def test_a_training_takes_the_spare_of_its_gpu_and_leaves_a_new_one(tmp_path: Path) -> None:
    async with bench(tmp_path, "0", "1") as one:
        first = await one.spares(2)
        process = await one.fork("1")
        assert process.pid in first
        assert one.children() == first
        one.let_go()
        assert await process.wait() == 3
        after = await one.spares(2)
        assert len(after & first) == 1
        assert (await one.fork("1")).pid in after - first


@needs_pidfds
async def test_a_training_of_a_spare_has_its_own_environment_and_log(tmp_path: Path) -> None:
    async with bench(tmp_path, "0") as one:
        (spare,) = await one.spares(1)
        process = await one.fork("0")
        assert process.pid == spare
        assert log_of(spare) == tmp_path / "1" / "log"
        assert os.getsid(spare) == spare
        # What another training needs is forked as ever, beside it.
        other = await one.fork("7")
        assert other.pid not in (spare, one.link.parent_pid)


@needs_pidfds
async def test_a_spare_that_died_costs_no_training(tmp_path: Path) -> None:
    async with bench(tmp_path, "0") as one:
        (spare,) = await one.spares(1)
        os.kill(spare, signal.SIGKILL)

        async def ended() -> bool:
            return gone(spare)()

        await eventually(ended, DEADLINE_S)
        assert (await one.fork("0")).pid != spare


@needs_pidfds
async def test_spares_end_with_the_warm_parent_and_its_successor_has_its_own(tmp_path: Path) -> None:
    async with bench(tmp_path, "0") as one:
        first = await one.spares(1)
        parent = one.link.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGKILL)

        async def ended() -> bool:
            return all(gone(pid)() for pid in first) and one.link.parent_pid not in (None, parent)

        await eventually(ended, DEADLINE_S)
        assert not await one.spares(1) & first


def test_there_is_a_spare_for_each_slot_of_one_gpu() -> None:
    assert spares_of(["4", "5"], 1, asked=None) == ["4", "5"]
    assert spares_of(["4,5"], 2, asked=True) == []
    assert spares_of([None, None], 1, asked=None) == spares_of([""], 1, asked=None) == []
    assert spares_of([None], 1, asked=True) == [""]
    assert spares_of(["4"], 1, asked=False) == []
