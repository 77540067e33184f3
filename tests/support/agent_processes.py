"""An agent whose work is done by child processes: `python -m tests.support.agent_processes KIND CHILDREN RUNS`.

Each child records its runs and ends as its kind of process does; none waits until a run is published. Kinds that end in
`ctrl-c` have no children: the agent itself is interrupted while it closes its client.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from ratchet import AsyncClient, Client
from ratchet.core.service.settings import SharedSettings

client: Client | AsyncClient | None = None
"""The parent's, where its children use that one."""


def play(recorder: Client | AsyncClient, task_id: str) -> None:
    """Record one run."""
    with recorder.trajectory(task_id=task_id) as t:
        t.turn(observation="hi", action="hello")


def work(child: int, runs: int) -> None:
    """What one child does, with the client that it inherited or with one of its own."""
    global client  # noqa: PLW0603 - a worker of a pool keeps its client from job to job
    if client is None:
        client = Client(agent_id="a child's own")
    for run in range(runs):
        play(client, f"{child}-{run}")


def in_processes(method: str, children: int, runs: int) -> None:
    """`multiprocessing.Process`, started as `method` says."""
    context = multiprocessing.get_context(method)
    started = [context.Process(target=work, args=(child, runs)) for child in range(children)]
    for process in started:
        process.start()
    for process in started:
        process.join()


def in_a_pool(children: int, runs: int) -> None:
    """A `ProcessPoolExecutor`, a job for each run."""
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(children, mp_context=context) as pool:
        for job in [pool.submit(work, job, 1) for job in range(children * runs)]:
            job.result()


def by_fork(leave: Callable[[int], object], children: int, runs: int) -> None:
    """Bare `os.fork`; `leave` ends a child."""
    for child in range(children):
        if os.fork() == 0:
            work(child, runs)
            leave(0)
    for _ in range(children):
        os.wait()


async def in_a_loop(children: int, runs: int) -> None:
    """Children of an asyncio agent, with its `AsyncClient`."""
    global client
    async with AsyncClient(agent_id="a") as client:
        in_processes("fork", children, runs)


def killed_once_spooled(code: int) -> None:
    """End as a killed process does, once there is a record in this process's spool."""
    own = SharedSettings().data_dir / "client-spool"
    while not any(path.stat().st_size for path in own.glob("*/*.segment")):
        time.sleep(0.01)
    os._exit(code)


def record_all(recorder: Client | AsyncClient, children: int, runs: int) -> None:
    """The runs of all children, in this process."""
    for child in range(children):
        for run in range(runs):
            play(recorder, f"{child}-{run}")


async def interrupted_loop(children: int, runs: int, again_s: float | None) -> None:
    """Ctrl-C comes while `__aexit__` waits; with `again_s` once more so much later."""
    async with AsyncClient(agent_id="a") as recorder:
        record_all(recorder, children, runs)
        if again_s is not None:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, again_s)
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)


def in_a_thread(children: int, runs: int) -> None:
    """A loop on a daemon's thread, in whose midst the process ends."""
    recorded = threading.Event()

    async def never_closed() -> None:
        recorder = AsyncClient(agent_id="a")
        await recorder.start()
        record_all(recorder, children, runs)
        recorded.set()
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(never_closed(),), daemon=True).start()
    recorded.wait()


def interrupted(children: int, runs: int, after_s: float) -> None:
    """Ctrl-C comes while `close` waits."""
    with Client(agent_id="a") as recorder:
        record_all(recorder, children, runs)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, after_s)


KINDS: dict[str, Callable[[int, int], object]] = {
    "fork": partial(in_processes, "fork"),
    "forkserver": partial(in_processes, "forkserver"),
    "spawn": partial(in_processes, "spawn"),
    "pool": in_a_pool,
    "sys.exit": partial(by_fork, sys.exit),
    "killed": partial(by_fork, killed_once_spooled),
    "asyncio-fork": lambda children, runs: asyncio.run(in_a_loop(children, runs)),
    "asyncio-ctrl-c": lambda children, runs: asyncio.run(interrupted_loop(children, runs, None)),
    "asyncio-twice-ctrl-c": lambda children, runs: asyncio.run(interrupted_loop(children, runs, 0.005)),
    "asyncio-thread": in_a_thread,
    "ctrl-c": partial(interrupted, after_s=0.01),
}


def main(kind: str, children: int, runs: int) -> None:
    """Do the runs of all children in the way that `kind` says, with the parent's client where it is `inherited`."""
    global client  # noqa: PLW0603 - children use it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    if kind.startswith("inherited-"):
        client = Client(agent_id="a")
    KINDS[kind.removeprefix("inherited-").removeprefix("own-")](children, runs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
