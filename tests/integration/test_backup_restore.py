"""A real stack, stopped or at work, is backed up, lost and restored: what was acknowledged is there once."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import nats
import pytest

from ratchet import AsyncClient
from ratchet.bus.connection import Bus
from ratchet.bus.nats_client import read_seed
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.broker_with_users import admin_seed
from tests.support.command_lines import ratchet
from tests.support.fake_engine import FakeProvider, providing
from tests.support.messages import trajectory
from tests.support.running import connected

pytestmark = pytest.mark.slow

SERVICES = ("trajectory_collector", "reward_computer")
KEY = "provider-key"
UNRECORDED = timedelta(seconds=4)
"""A gateway that is killed may lose what it answered in this time before (G3)."""


@asynccontextmanager
async def running(
    directory: Path, only: tuple[str, ...] = SERVICES, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Stack, SharedSettings]]:
    """The stack of a directory, on the ports that it had before."""
    settings = StackSettings(directory=directory, free_ports=True, only=only, env=env or {})
    async with Stack(settings) as stack:
        env = stack.env
        yield (
            stack,
            SharedSettings(
                nats_url=env["RATCHET_NATS_URL"],
                nats_seed_file=admin_seed(directory),
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


@dataclass
class Load:
    """A publisher and an agent that never rest, and what they were answered, with the time of it."""

    gateway: str
    published: dict[str, datetime] = field(default_factory=dict[str, datetime])
    ended: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """Trajectories of calls through the gateway."""

    async def publish(self, bus: Bus) -> None:
        """One trajectory after the other; what was not acknowledged is published again."""
        for number in itertools.count():
            message = trajectory(f"published {number}")
            while True:
                with suppress(BusUnavailable):
                    await bus.publish(message)
                    break
                await asyncio.sleep(0.1)
            self.published[message.trajectory_id] = datetime.now(UTC)
            await asyncio.sleep(0.01)

    async def call(self) -> None:
        """One trajectory of one call after the other, through a gateway that may be away."""
        async with httpx.AsyncClient(base_url=self.gateway, timeout=20) as http:
            while True:
                name = str(uuid.uuid4())
                question = {"model": "helper", "messages": [{"role": "user", "content": f"where is {name}?"}]}
                await self._until(200, http, "/v1/chat/completions", question, {"x-ratchet-trajectory": name})
                outcome = {"role": "helper", "outcome": {"status": "success"}}
                await self._until(202, http, f"/v1/trajectories/{name}/end", outcome, {})
                self.ended[name] = datetime.now(UTC)
                await asyncio.sleep(0.02)

    async def _until(
        self, status: int, http: httpx.AsyncClient, path: str, body: object, headers: Mapping[str, str]
    ) -> None:
        while True:
            with suppress(httpx.HTTPError):
                answer = await http.post(path, json=body, headers=headers)
                if answer.status_code == status:
                    return
                assert answer.status_code >= 500, answer.text
            await asyncio.sleep(0.1)


async def come_and_go(url: str, seed_file: Path) -> None:
    """A stream that is made, filled and deleted again and again."""
    connection = await nats.connect(url, nkeys_seed_str=read_seed(seed_file).seed)
    try:
        jetstream = connection.jetstream()
        while True:
            await jetstream.add_stream(name="SCRATCH", subjects=["scratch.*"])
            for number in range(20):
                await jetstream.publish(f"scratch.{number}", bytes(1000))
            await jetstream.delete_stream("SCRATCH")
    finally:
        await connection.close()


async def counts(shared: SharedSettings, table: str) -> Counter[str]:
    """How many rows each trajectory has."""
    warehouse = await Warehouse.connect(shared)
    try:
        rows = await warehouse.rows(f"SELECT trajectory_id AS name, count() AS n FROM {table} FINAL GROUP BY name")
        return Counter({row["name"]: row["n"] for row in rows})
    finally:
        await warehouse.close()


@pytest.mark.timeout(900)
async def test_stack_that_is_destroyed_under_load_has_what_was_acknowledged(tmp_path: Path) -> None:
    directory, saved, only = tmp_path / "state", tmp_path / "backup", (*SERVICES, "gateway")
    async with AsyncExitStack() as held:
        upstream = {"name": "p", "base_url": await held.enter_async_context(providing(FakeProvider(key=KEY)))}
        upstream |= {"api_key_env": "PROVIDER_KEY", "models": {"*": "big-model"}}
        env = {
            "PROVIDER_KEY": KEY,
            "RATCHET_GATEWAY_UPSTREAMS": json.dumps([upstream]),
            "RATCHET_GATEWAY_ROLES": json.dumps(["helper"]),
        }
        async with running(directory, only, env) as (stack, shared):
            load = Load(stack.url("gateway"))
            bus = await held.enter_async_context(connected(shared))
            for work in (load.publish(bus), load.call()):
                held.push_async_callback(end, asyncio.create_task(work))
            await eventually(lambda: enough(load, 20, UNRECORDED))
            churn = asyncio.create_task(come_and_go(shared.nats_url, admin_seed(directory)))
            made = await asyncio.to_thread(ratchet, "backup", str(saved), "--dir", str(directory), "--json")
            await end(churn)
            assert made.returncode == 0, made.stderr
            goal = len(load.ended) + 20
            await eventually(lambda: enough(load, goal))
            stack.kill_all()
        shutil.rmtree(directory)
        restored = await asyncio.to_thread(ratchet, "restore", str(saved), "--dir", str(directory), "--json")
        assert restored.returncode == 0, restored.stderr

        moment = datetime.fromisoformat(json.loads(made.stdout)["made_at"])
        promised = {name for name, at in load.ended.items() if at < moment - UNRECORDED}
        promised |= load.published.keys()  # its publisher lives, and publishes again what came after the backup
        assert len(promised) > len(load.published)
        async with running(directory, only, env) as (_, again):
            goal = len(load.ended) + 5
            await eventually(lambda: enough(load, goal))
            for table in ("trajectories", "rewards"):

                async def all_there(table: str = table) -> bool:
                    return promised <= (await counts(again, table)).keys()

                await eventually(all_there, 240)
                assert [name for name, number in (await counts(again, table)).items() if number > 1] == []
            await looked_whole(directory)


async def enough(load: Load, number: int, ago: timedelta = timedelta(0)) -> bool:
    """Whether so many trajectories were published, and so many called, by now or some time ago."""
    before = datetime.now(UTC) - ago
    return all(sum(at < before for at in done.values()) >= number for done in (load.published, load.ended))
