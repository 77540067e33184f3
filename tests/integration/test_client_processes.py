"""What the processes of an agent record is stored or spooled, whichever way they were made and end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ratchet import AsyncClient
from ratchet.bus.envelope import Record, unseal
from ratchet.bus.spool import Spool
from ratchet.client import ClientSettings
from ratchet.core.contract import Trajectory, decode
from ratchet.core.service.settings import SharedSettings
from tests.support.agent_processes import record_all
from tests.support.running import connected
from tests.support.servers import Broker

CHILDREN, RUNS = 5, 10
NOWHERE = "nats://127.0.0.1:9"
"""No broker listens there."""


def agent(
    kind: str, nats_url: str, data_dir: Path, runs: int = RUNS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run an agent with children to its end; see `agent_processes`."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.agent_processes", kind, str(CHILDREN), str(runs)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            **os.environ,
            "RATCHET_NATS_URL": nats_url,
            "RATCHET_DATA_DIR": str(data_dir),
            "RATCHET_CLIENT_CLOSE_S": "0.5" if nats_url == NOWHERE else "20",
            **environment,
        },
    )


def task_of(record: Record) -> str:
    return decode(unseal(record.headers, record.body), Trajectory).task_context.task_id


async def spooled(data_dir: Path) -> list[str]:
    """Tasks of the runs in all spools, none of which is in use any more."""
    tasks: list[str] = []

    async def take(records: Sequence[Record]) -> None:
        tasks.extend(map(task_of, records))

    for directory in [Path(entry.path) for entry in os.scandir(data_dir / "client-spool")]:
        spool = Spool(directory, 1_000_000)
        await spool.drain(take)
        assert spool.damaged == 0
        spool.close()
    return tasks


async def stored(shared: SharedSettings) -> list[str]:
    """Tasks of the runs in the stream."""
    async with connected(shared) as bus:
        last = (await bus.extent("RL_TRAJECTORIES")).last
        messages = [await bus.nc.jetstream().get_msg("RL_TRAJECTORIES", n) for n in range(1, last + 1)]
    return [task_of(Record("", dict(message.headers or {}), message.data or b"")) for message in messages]


def expected(kind: str) -> list[str]:
    pooled = kind.endswith("pool")
    return [
        f"{job}-0" if pooled else f"{job // RUNS}-{job % RUNS}" for job in range(CHILDREN * RUNS)
    ]  # a pool's workers share jobs of one run


KINDS = [
    "inherited-fork",
    "own-fork",
    "own-forkserver",
    "own-spawn",
    "inherited-pool",
    "own-pool",
    "inherited-sys.exit",
    "own-sys.exit",
    "asyncio-fork",
]


def accounts_for(kept: Iterable[str], kind: str, logged: str) -> None:
    """Each run is kept, or counted as one that a busy machine left no time for."""
    kept, all_runs = {*kept}, {*expected(kind)}
    assert kept <= all_runs
    late = sum(map(int, re.findall(r"no time was left' messages=(\d+)", logged)))
    assert len(all_runs) - len(kept) == late, logged


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_children_lose_no_run_while_a_broker_answers(nats: Broker, tmp_path: Path, kind: str) -> None:
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path)
    async with connected(shared):
        pass
    ended = agent(kind, nats.url, tmp_path)
    assert ended.returncode == 0, ended.stderr
    accounts_for({*await stored(shared), *await spooled(tmp_path)}, kind, ended.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_children_spool_every_run_without_a_broker(tmp_path: Path, kind: str) -> None:
    ended = agent(kind, NOWHERE, tmp_path)
    assert ended.returncode == 0, ended.stderr
    accounts_for(await spooled(tmp_path), kind, ended.stderr)


def test_children_count_what_neither_broker_nor_disk_takes(tmp_path: Path) -> None:
    ended = agent("own-fork", NOWHERE, tmp_path, RATCHET_CLIENT_SPOOL_BYTES="1")
    assert ended.returncode == 0, ended.stderr
    lost = re.findall(r"'never reached a broker' .* overflowed=(\d+)", ended.stderr)
    assert sum(map(int, lost)) == CHILDREN * RUNS, ended.stderr


async def test_a_loop_on_another_thread_spools_as_the_process_ends(tmp_path: Path) -> None:
    ended = agent("asyncio-thread", NOWHERE, tmp_path)
    assert ended.returncode == 0, ended.stderr
    accounts_for(await spooled(tmp_path), "one process", ended.stderr)


async def test_a_child_that_is_killed_leaves_what_it_had_spooled(tmp_path: Path) -> None:
    ended = agent("inherited-killed", NOWHERE, tmp_path, runs=1)
    assert ended.returncode == 0, ended.stderr
    assert await spooled(tmp_path) != []


@pytest.mark.parametrize("kind", ["asyncio-ctrl-c", "asyncio-twice-ctrl-c", "ctrl-c"])
async def test_ctrl_c_while_a_client_closes_spools_or_counts_runs(tmp_path: Path, kind: str) -> None:
    ended = agent(kind, NOWHERE, tmp_path)
    assert ended.returncode in (-signal.SIGINT, 1), ended.stderr  # 1: the second one came while the loop was closed
    assert "KeyboardInterrupt" in ended.stderr
    accounts_for(await spooled(tmp_path), kind, ended.stderr)


async def test_a_cancelled_close_spools_every_run(tmp_path: Path) -> None:
    client = AsyncClient(
        agent_id="a", settings=ClientSettings(shared=SharedSettings(nats_url=NOWHERE, data_dir=tmp_path))
    )
    await client.start()
    record_all(client, CHILDREN, RUNS)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await client.close()
    assert len({*await spooled(tmp_path)}) + client.stats.overflowed == len({*expected("one process")})
