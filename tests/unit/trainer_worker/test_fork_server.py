"""Trainings are forked from the fork server; whichever of the three processes is killed, the others do right.

Real processes, of a server that imports nothing, and trainings that wait for their job file, which is a pipe.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
import uvloop

from ratchet.bus.testing import eventually
from ratchet.trainer_worker.child_process import TRAINING, Process, Streams, library_environment
from ratchet.trainer_worker.fork_server import PRELOAD, ForkServer, supported
from ratchet.trainer_worker.job import JOB_FILE, TEMPORARY, Stopped, decode_event
from tests.support.forked_trainings import own_server

pytestmark = pytest.mark.skipif(not supported(), reason="trainings are forked only where there are pidfds")
ROOT = Path(__file__).parents[3]
NOTHING = "json"
"""What a server imports that needs no torch."""


@dataclass
class Bench:
    """A server and the trainings that it forked. A training ends when its `ours` is closed, as by a worker's death."""

    server: ForkServer
    root: Path
    ours: list[Connection] = field(default_factory=list[Connection])

    async def fork(self, name: str = "job", **environment: str) -> Process | None:
        directory = waiting_job(self.root / name)
        stdin, mine = Pipe(duplex=False)
        self.ours.append(mine)
        with stdin, Connection(os.open(directory / "child.log", os.O_WRONLY | os.O_CREAT), readable=False) as log:
            streams = Streams(stdin, log, log)
            return await self.server.fork(directory, library_environment(os.environ) | environment, streams)

    async def forked(self, name: str = "job", **environment: str) -> Process:
        process = await self.fork(name, **environment)
        assert process is not None
        return process

    def let_go(self) -> None:
        while self.ours:
            self.ours.pop().close()


def waiting_job(directory: Path) -> Path:
    directory.mkdir()
    os.mkfifo(directory / JOB_FILE)
    return directory


@asynccontextmanager
async def bench(root: Path, preload: str = NOTHING) -> AsyncGenerator[Bench]:
    with own_server(preload):
        made = Bench(ForkServer(preload=preload), root)
        try:
            yield made
        finally:
            made.let_go()


def server_of(process: Process) -> int:
    return psutil.Process(process.pid).ppid()


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


async def at_work(process: Process, directory: Path) -> None:
    """Its handler of signals stands once it works in its directory; from then on it waits for its job file."""
    await until(lambda: psutil.Process(process.pid).cwd() == str(directory))


async def test_a_forked_training_has_its_own_session_directory_and_streams(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainings:
        process = await trainings.forked()
        await at_work(process, tmp_path / "job")
        assert os.getsid(process.pid) == process.pid
        assert open_files(process.pid, 1) == open_files(process.pid, 2) == {str(tmp_path / "job" / "child.log")}
        assert psutil.Process(server_of(process)).num_threads() == 1
        trainings.let_go()
        assert await process.wait() == 3


async def test_a_training_that_loads_ends_at_once_when_asked(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainings:
        process = await trainings.forked()
        await at_work(process, tmp_path / "job")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert decode_event((tmp_path / "job" / "child.log").read_bytes()) == Stopped(step=0)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that servers import from."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


async def test_an_unfit_server_makes_fresh_trainings_with_their_environment(modules: Path) -> None:
    (modules / "unfit_module.py").write_text(
        f"import sys, types\nsys.modules['{PRELOAD}'] = types.SimpleNamespace(unfit='threads')\n"
    )
    async with bench(modules, "unfit_module") as trainings:
        process = await trainings.forked(OMP_NUM_THREADS="2", CUDA_VISIBLE_DEVICES="1")
        await at_work(process, modules / "job")
        training = psutil.Process(process.pid)
        assert TRAINING[0] in training.cmdline()
        seen = training.environ()
        assert (seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("2", "1")
        assert not [name for name in seen if name.startswith("RATCHET_")]
        trainings.let_go()
        assert await process.wait() == 3


async def test_what_a_late_server_forks_touches_nothing(modules: Path) -> None:
    (modules / "late_module.py").write_text("import time\ntime.sleep(2)\n")
    with own_server("late_module"):
        trainings = Bench(ForkServer(preload="late_module", ready_s=0.1), modules)
        assert await trainings.fork() is None

        async def has_forked_and_ended() -> bool:
            return not multiprocessing.active_children()

        await eventually(has_forked_and_ended)
        assert not (modules / "job" / TEMPORARY).exists()
        trainings.let_go()


async def test_a_server_whose_preload_breaks_costs_no_training(modules: Path) -> None:
    (modules / "broken_module.py").write_text("raise RuntimeError('a library that is broken')\n")
    async with bench(modules, "broken_module") as trainings:
        assert await trainings.fork() is None


def preloaded(broken: str) -> subprocess.CompletedProcess[str]:
    """The preload in a process where the libraries are missing and `broken` is done first."""
    missing = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'peft'))"
    script = f"{missing}\n{broken}\nfrom {PRELOAD} import unfit\nprint(unfit)"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)


def test_preload_names_what_it_cannot_import_and_goes_on() -> None:
    done = preloaded("")
    assert "the fork server cannot import torch;" in done.stderr
    assert "the fork server cannot import peft;" in done.stderr
    assert done.stdout == "None\n"


def test_preload_reports_that_threads_make_forks_unsafe() -> None:
    done = preloaded("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    assert done.stdout == "the imports started 1 threads\n"


async def test_a_job_whose_libraries_read_other_variables_starts_fresh(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainings:
        assert await trainings.fork(HF_HUB_OFFLINE="0") is None


async def test_a_killed_training_is_reported_and_the_server_forks_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainings:
        process = await trainings.forked("first")
        server = server_of(process)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        assert server_of(await trainings.forked("second")) == server


@dataclass(frozen=True)
class AfterAKill:
    """What the trainings of a killed server, and of the one that replaces it, come to."""

    first_lives: bool
    first_status: int | None
    second_status: int | None
    """Ended by the same worker while the first had no server any more."""


async def outcome_of_killing_the_server(tmp_path: Path) -> AfterAKill:
    async with bench(tmp_path) as trainings:
        first = await trainings.forked("first")
        await at_work(first, tmp_path / "first")
        server = server_of(first)
        os.kill(server, signal.SIGKILL)
        await until(gone(server))
        second = await trainings.forked("second")
        await at_work(second, tmp_path / "second")
        first_lives = psutil.Process(first.pid).is_running()
        first.send_signal(signal.SIGKILL)
        first_status = await first.wait()
        second.send_signal(signal.SIGKILL)
        return AfterAKill(first_lives, first_status, await second.wait())


REPLACED = AfterAKill(first_lives=True, first_status=None, second_status=-signal.SIGKILL)


async def test_a_killed_server_leaves_its_trainings_alive_and_is_replaced(tmp_path: Path) -> None:
    assert await outcome_of_killing_the_server(tmp_path) == REPLACED


def test_a_killed_server_is_replaced_on_the_loop_of_the_services_too(tmp_path: Path) -> None:
    assert uvloop.run(outcome_of_killing_the_server(tmp_path)) == REPLACED


async def test_a_stopped_worker_forks_nothing_and_ends_no_training(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainings:
        running = asyncio.create_task(trainings.server.run())
        process = await trainings.forked()
        await trainings.server.stop()
        await running
        assert await trainings.fork("late") is None
        assert not gone(process.pid)()
        trainings.let_go()
        assert await process.wait() == 3


WORKER = """
import asyncio, os, sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
import psutil
from ratchet.trainer_worker.child_process import Streams, library_environment
from ratchet.trainer_worker.fork_server import ForkServer

async def main():
    (stdin, ours), errors = Pipe(duplex=False), Connection(os.dup(2))
    streams = Streams(stdin, errors, errors)
    process = await ForkServer(preload="json").fork(Path(sys.argv[1]), library_environment(os.environ), streams)
    stdin.close()
    print(psutil.Process(process.pid).ppid(), process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_with_a_killed_worker_its_server_and_its_training_end(tmp_path: Path) -> None:
    waiting_job(tmp_path / "job")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(tmp_path / "job"), stdout=-1, cwd=ROOT
    )
    try:
        assert worker.stdout is not None
        server, training = map(int, (await worker.stdout.readline()).split())
        assert not gone(server)()
        assert not gone(training)()
    finally:
        worker.kill()
        await worker.wait()
    await until(lambda: gone(server)() and gone(training)())
