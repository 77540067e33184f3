"""What trajectories take, place by place: `python -m tests.bench.bench_retention [TRAJECTORIES]`.

A broker, the embedded ClickHouse and object store, and a collector. Trajectories of two sizes go through them: three
calls of a few sentences, and twenty with tool results. Then the stream's bytes, the tables' after a merge, the
archive's, and a snapshot's are divided by the number. Words are drawn from a seeded list, so that they compress as
text does, not as one text repeated.
"""
# ruff: noqa: T201

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from ratchet.bus.clock import utc_now
from ratchet.bus.message import Message, decode
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Trajectory, Turn
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.datasets.archives import ARCHIVED, Archives
from ratchet.core.datasets.domain.rows import Scored, row_of
from ratchet.core.datasets.parquet import RowWriter
from ratchet.core.service.alerts import Alerts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.archiving import Archiver
from ratchet.trajectory_collector.settings import Settings
from tests.support.messages import trajectory_end, turn
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import ACCESS_KEY, SECRET_KEY, running_clickhouse, running_nats, running_s3

SIZES = {"short": (3, 60), "long": (20, 400)}
"""By name: calls of a trajectory, and words of each message."""
STREAMS = ("RL_TRAJECTORIES", "RL_TURNS")
AGE = timedelta(days=40)
"""Of the collector's clock, so that its rows are due at once."""
CHUNK = 250
"""Rows of a snapshot that are written together, as the coordinator does."""
SCORED = Scored(task_key="task", reward=1.0, raw_reward=1.0, baseline=None)


def words(draw: Random, number: int) -> str:
    """Text of a vocabulary of 20,000 words, the frequent ones more often, as in language."""
    return " ".join(f"{int(20_000 * draw.random() ** 4):x}word" for _ in range(number))


def messages_of(draw: Random, name: str, calls: int, size: int) -> Iterator[Message]:
    """The turns of one trajectory, each with what is new since the one before, and its end."""
    new, known = [{"role": "system", "content": words(draw, size)}], 0
    for index in range(calls):
        new.append({"role": "tool" if index else "user", "content": words(draw, size)})
        answer = {"role": "assistant", "content": words(draw, size)}
        yield turn(name, index, messages=new, parent_messages=known if index else None, response=answer)
        new, known = [], known + len(new) + 1
    yield trajectory_end(name, turns=calls)


async def measured(shared: SharedSettings, name: str, number: int, folder: Path) -> None:
    """Print what `number` trajectories of a size take."""
    draw, (calls, size) = Random(name), SIZES[name]
    sent = 0
    async with connected(shared) as bus, prepared_warehouse(shared) as warehouse:
        objects = prepared_objects(shared)
        async with running_app(build(Settings(shared=shared), now=lambda: utc_now() - AGE)):
            for n in range(number):
                batch = [*messages_of(draw, f"{name} {n}", calls, size)]
                sent += sum(len(msgspec.json.encode(message)) for message in batch)
                await bus.publish_all(batch)

            async def stored() -> bool:
                (row,) = await warehouse.rows("SELECT count() AS n FROM trajectories FINAL")
                return row["n"] == number

            await eventually(stored, 3600)
            states = {stream: await bus.nc.jetstream().stream_info(stream) for stream in STREAMS}
        report = {f"stream {stream}": info.state.bytes for stream, info in states.items()} | await tables(warehouse)
        archives = await archived(warehouse, objects)
        for table in ARCHIVED:
            report[f"archive {table}"] = sum(file.size for file in archives.files(table=table))
        report["snapshot"] = snapshot_bytes(archives, folder)
    print(f"{name}: {calls} calls, {sent / number / 1000:.1f} KB of turns and ends each, {number} trajectories")
    for place, taken in report.items():
        print(f"  {place:24} {taken / number / 1000:8.2f} KB each, {taken / number * 1e6 / 1e9:8.2f} GB for a million")


async def tables(warehouse: Warehouse) -> dict[str, int]:
    """Bytes of each table, merged."""
    for table in ("trajectories", "turns", "trajectory_ends", "ledger_entries", "calls"):
        await warehouse.command(f"OPTIMIZE TABLE {table} FINAL")
    rows = await warehouse.rows(
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts WHERE active AND database = currentDatabase()"
        " AND table IN ('trajectories', 'turns', 'trajectory_ends', 'ledger_entries', 'calls') GROUP BY table"
    )
    return {f"table {row['table']}": row["bytes"] for row in rows}


async def archived(warehouse: Warehouse, objects: Objects) -> Archives:
    """Move all rows to the archive."""

    async def held() -> list[Any]:
        return []

    async def publish(alert: Alert) -> None:
        print(alert.summary)

    ages = {"*": 30}
    alerts = Alerts("bench", publish, utc_now, held)
    archiver = Archiver(warehouse, objects, Erased(warehouse), hot=ages, whole={"*": 120}, alerts=alerts, now=utc_now)
    await archiver.tick()
    return Archives(objects)


def snapshot_bytes(archives: Archives, folder: Path) -> int:
    """Bytes of a snapshot of all archived trajectories, as imitation learns from it."""
    rows = {table: [row for file in archives.files(table=table) for row in archives.rows(file)] for table in ARCHIVED}
    turns: dict[str, list[Turn]] = defaultdict(list)
    for row in rows["turns"]:
        turns[row.trajectory_id].append(decode(row.body, Turn))
    writer = RowWriter(folder / "rows.parquet", TrajectoryRow)
    made: list[TrajectoryRow] = []
    for row in rows["trajectories"]:
        whole = row_of(decode(row.body, Trajectory), turns[row.trajectory_id], SCORED, needs_calls=False)
        assert not isinstance(whole, str), whole
        made.append(whole.row)
    for start in range(0, len(made), CHUNK):
        writer.add(made[start : start + CHUNK])
    writer.close()
    return (folder / "rows.parquet").stat().st_size


def main(arguments: list[str]) -> None:
    """Measure both sizes, each on servers of its own."""
    number = int(arguments[0]) if arguments else 1000
    for name in SIZES:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            broker, clickhouse, s3 = (
                stack.enter_context(run(folder)) for run in (running_nats, running_clickhouse, running_s3)
            )
            shared = SharedSettings(
                nats_url=broker.url,
                clickhouse_url=clickhouse.url,
                s3_endpoint=s3.url,
                s3_access_key=ACCESS_KEY,
                s3_secret_key=SECRET_KEY,
                data_dir=folder / "data",
            )
            asyncio.run(measured(shared, name, number, folder))


if __name__ == "__main__":
    main(sys.argv[1:])
