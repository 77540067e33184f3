"""A real stack is backed up, goes on, is lost and restored: the ledger balances, and what comes again counts once."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ratchet import AsyncClient
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.command_lines import ratchet
from tests.support.messages import trajectory
from tests.support.running import connected

pytestmark = pytest.mark.slow

SERVICES = ("trajectory_collector", "reward_computer")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Stack, SharedSettings]]:
    """The stack of a directory, on the ports that it had before."""
    async with Stack(StackSettings(directory=directory, free_ports=True, only=SERVICES)) as stack:
        env = stack.env
        yield (
            stack,
            SharedSettings(
                nats_url=env["RATCHET_NATS_URL"],
                clickhouse_url=env["RATCHET_CLICKHOUSE_URL"],
                clickhouse_database=env["RATCHET_CLICKHOUSE_DATABASE"],
            ),
        )


async def stored(shared: SharedSettings, number: int) -> set[str]:
    """The trajectories, once so many are stored and rewarded, none of them twice."""
    warehouse = await Warehouse.connect(shared)
    try:

        async def all_there() -> bool:
            query = "SELECT (SELECT count() FROM trajectories FINAL) AS t, (SELECT count() FROM rewards FINAL) AS r"
            (row,) = await warehouse.rows(query)
            return (row["t"], row["r"]) == (number, number)

        await eventually(all_there, 120)
        return {
            str(row["id"]) for row in await warehouse.rows("SELECT toString(trajectory_id) AS id FROM trajectories")
        }
    finally:
        await warehouse.close()


async def publish(shared: SharedSettings, names: range) -> None:
    async with connected(shared) as bus:
        await bus.publish_all([trajectory(str(name)) for name in names])


def play(client: AsyncClient) -> None:
    with client.trajectory(task_id="spooled", instructions="Help.", model="gpt-4o") as t:
        t.turn(observation="hi", action="hello")
        t.outcome("success", verified_by="tests")


async def looked_whole(directory: Path) -> None:
    """`ratchet status` ends with 0 and its ledger misses nothing."""

    async def whole() -> bool:
        done = await asyncio.to_thread(ratchet, "status", "--json", "--dir", str(directory))
        if done.returncode != 0:
            return False
        ledger = json.loads(done.stdout)["ledger"]
        return bool(ledger) and all(row["missing"] == 0 and row["lost"] == 0 for row in ledger)

    await eventually(whole, 120)


@pytest.mark.timeout(600)
async def test_a_lost_stack_is_restored_whole_and_what_comes_again_counts_once(tmp_path: Path) -> None:
    directory, saved = tmp_path / "state", tmp_path / "backup"
    async with running(directory) as (stack, shared):
        await publish(shared, range(20))
        before = await stored(shared, 20)
        refused = await asyncio.to_thread(ratchet, "backup", str(saved), "--dir", str(directory))
        assert (refused.returncode, saved.exists()) == (1, False)
        assert "already running" in refused.stderr
    made = await asyncio.to_thread(ratchet, "backup", str(saved), "--dir", str(directory), "--json")
    assert made.returncode == 0, made.stderr

    async with running(directory) as (stack, shared):
        await publish(shared, range(20, 30))
        assert len(await stored(shared, 30)) == 30
        settings = ClientSettings(shared=shared.model_copy(update={"data_dir": tmp_path / "agent"}))
        stack.kill_all()
    async with AsyncClient(agent_id="a", settings=settings) as client:
        play(client)  # into the spool: no broker runs
        shutil.rmtree(directory)
        restored = await asyncio.to_thread(ratchet, "restore", str(saved), "--dir", str(directory), "--json")
        assert restored.returncode == 0, restored.stderr

        async with running(directory) as (_, again):
            assert again.nats_url == shared.nats_url
            assert await client.flush(60)
            assert before < await stored(again, 21)  # all of the backup, and what the spool held
            await publish(again, range(30))  # producers that still have what they sent send it again
            assert len(await stored(again, 31)) == 31
            await looked_whole(directory)
