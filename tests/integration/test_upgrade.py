"""From what a release stored to today: `init` and services come up over it, and its data is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Nats
from nats.js.api import StreamConfig

from ratchet.bus.envelope import unseal
from ratchet.bus.nats_client import read_seed
from ratchet.bus.stream_configs import stream_configs
from ratchet.bus.testing import eventually
from ratchet.core.contract import (
    MESSAGES,
    Feedback,
    Preference,
    Reward,
    Spans,
    Start,
    Trajectory,
    Turn,
    WorkflowExecution,
)
from ratchet.core.errors import BusUnavailable, ConfigError, WarehouseUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.schema import schema_digest, upgrade_statements
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.bootstrap import bootstrap
from ratchet.local.local_stack.broker_users import ADMIN, broker_users
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.command_lines import ratchet as command_line
from tests.support.contract_files import CONTRACTS
from tests.support.released import WAIT_S, Installation, recorded_versions
from tests.support.running import connected
from tests.support.stored_values import check_buckets

VERSIONS = recorded_versions()
SHAPE = """
SELECT name, replaceAll(create_table_query, currentDatabase() || '.', '') AS made FROM system.tables
WHERE database = currentDatabase()
"""
OLDER = Installation.of(VERSIONS[0]).without("turns", "trajectory_name")
"""A made-up release from which a step is needed."""
SENT_BY_AGENTS = (
    *(Trajectory.TOPIC, Start.TOPIC, Turn.TOPIC, Spans.TOPIC),
    *(Reward.TOPIC, Feedback.TOPIC, Preference.TOPIC, WorkflowExecution.TOPIC),
)
"""What the collector had not settled: what comes from outside but ends, whose turns are no examples; and rewards."""
AT_REST = ("opt_outs", "raters", "held_out")
"""Buckets whose examples stand alone: those of jobs, rollouts and policies name objects that are not there."""
STEP = "ALTER TABLE turns ADD COLUMN IF NOT EXISTS trajectory_name String AFTER trajectory_id;\n"


async def shape(warehouse: Warehouse) -> dict[str, str]:
    return {row["name"]: row["made"] for row in await warehouse.rows(SHAPE)}


async def shape_of_today(shared: SharedSettings) -> dict[str, str]:
    async with database(shared, "today") as warehouse:
        await warehouse.make_tables()
        return await shape(warehouse)


@asynccontextmanager
async def database(shared: SharedSettings, name: str) -> AsyncIterator[Warehouse]:
    """An empty database beside that of the test, which may hold tables already."""
    name = f"{shared.clickhouse_database}_{name}"
    warehouse = await Warehouse.connect(shared.model_copy(update={"clickhouse_database": name}))
    try:
        yield warehouse
    finally:
        await warehouse.command(f"DROP DATABASE {name}")
        await warehouse.close()


async def counts(warehouse: Warehouse, tables: Any) -> dict[str, int]:
    return {table: (await warehouse.rows(f"SELECT count() AS n FROM {table} FINAL"))[0]["n"] for table in tables}


@asynccontextmanager
async def broker(shared: SharedSettings) -> AsyncIterator[Nats]:
    """A connection to the broker, by the library that releases may change with."""
    key = {"nkeys_seed_str": read_seed(shared.nats_seed_file).seed} if shared.nats_seed_file else {}
    nc = await nats.connect(shared.nats_url, **key)
    try:
        yield nc
    finally:
        await nc.close()


@asynccontextmanager
async def filled(shared: SharedSettings, release: Installation) -> AsyncIterator[Warehouse]:
    """The tables of a release, with its rows."""
    async with database(shared, "before") as warehouse:
        await release.fill_tables(warehouse)
        yield warehouse


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_leads_to_the_schema_of_today(version: str) -> None:
    digest = Installation.of(version).digest
    assert upgrade_statements([digest]) is not None, (
        f"schema.sql is not that of {version} any more: deploy/clickhouse/upgrades needs <number>-{digest}.sql, see its"
        f" README. Before {version} is tagged, record it anew instead: python -m tools.record_release {version}"
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_init_brings_the_broker_of_a_release_up_to_date(version: str, shared_settings: SharedSettings) -> None:
    release = Installation.of(version)
    of_today = {config.name: config for config in stream_configs(CONTRACTS, 1)}
    async with broker(shared_settings) as nc:
        await release.fill_broker(nc, topics=MESSAGES, buckets=CONTRACTS.buckets)
        await bootstrap(shared_settings)
        held = {name: await nc.jetstream(timeout=WAIT_S).stream_info(name) for name in release.streams}
        assert held.keys() <= of_today.keys(), "a stream or bucket of the release is gone, with what it holds"
        assert {name: odd for name, info in held.items() if (odd := unlike(info.config, of_today[name]))} == {}
        read = [
            CONTRACTS.read(message.subject, unseal(dict(message.headers or {}), message.data or b""))
            for name, info in held.items()
            if not name.startswith("KV_")
            for sequence in range(1, info.state.last_seq + 1)
            for message in [await nc.jetstream(timeout=WAIT_S).get_msg(name, sequence)]
        ]
    assert len(read) == len(release.messages)
    assert {unknown for _, unknown in read} == {0}
    async with connected(shared_settings) as bus:
        assert await check_buckets(bus, *CONTRACTS.buckets) == {one["example"].split("/")[0] for one in release.values}


async def test_init_updates_buckets_and_leaves_a_raised_bound(shared_settings: SharedSettings) -> None:
    release = Installation.of(VERSIONS[-1])
    streams = {**release.streams}
    streams["KV_keys"] = {**streams["KV_keys"], "max_msgs_per_subject": 2}
    raised = 2 * streams["KV_judgements"]["max_bytes"]
    streams["KV_judgements"] = {**streams["KV_judgements"], "max_bytes": raised}
    streams["KV_workflows"] = {**streams["KV_workflows"], "max_bytes": -1}
    async with broker(shared_settings) as nc:
        await replace(release, streams=streams).fill_broker(nc, topics=(), buckets=("keys",))
        await bootstrap(shared_settings)
        keys, judgements, workflows = [
            await nc.jetstream(timeout=WAIT_S).stream_info(f"KV_{name}") for name in ("keys", "judgements", "workflows")
        ]
    assert (keys.config.max_msgs_per_subject, keys.state.messages) == (8, 1)
    assert (judgements.config.max_bytes, workflows.config.max_bytes) == (raised, -1)


async def test_init_shows_why_the_broker_cannot_change_a_stream(shared_settings: SharedSettings) -> None:
    release = Installation.of(VERSIONS[-1])
    streams = {
        name: config | ({"deny_delete": True} if name == "RL_REWARDS" else {})
        for name, config in release.streams.items()
    }
    async with broker(shared_settings) as nc:
        await replace(release, streams=streams).fill_broker(nc, topics=(), buckets=())
        with pytest.raises(BusUnavailable, match=r"RL_REWARDS: .*can not .*deny.*`nats stream info RL_REWARDS`"):
            await bootstrap(shared_settings)


def unlike(held: StreamConfig, of_today: StreamConfig) -> dict[str, Any]:
    """What of a stream is not as it should be."""
    asked, has = of_today.as_dict(), held.as_dict()
    return {name: has.get(name) for name, value in asked.items() if (has.get(name) or None) != (value or None)}


@pytest.mark.parametrize("version", VERSIONS)
async def test_init_brings_tables_of_a_release_up_to_date(version: str, shared_settings: SharedSettings) -> None:
    release = Installation.of(version)
    async with filled(shared_settings, release) as warehouse:
        before = await counts(warehouse, release.rows)
        await warehouse.make_tables()
        assert await shape(warehouse) == await shape_of_today(shared_settings)
        assert await counts(warehouse, release.rows) == before
        assert before == {table: len(rows) for table, rows in release.rows.items()}
        assert await warehouse.stored_schemas() == {schema_digest()}


async def test_tables_that_no_step_leads_from_are_refused(shared_settings: SharedSettings) -> None:
    async with filled(shared_settings, OLDER) as warehouse:
        before = await shape(warehouse)
        refusal = rf"\(schema {OLDER.digest}, this version's is .*has no step from there: use that version, or an empty"
        with pytest.raises(ConfigError, match=refusal):
            await warehouse.make_tables()
        assert await shape(warehouse) == before


async def test_a_step_brings_older_tables_and_rows_to_the_schema(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    (tmp_path / f"001-{OLDER.digest}.sql").write_text(f"-- Turns have the name that their agent gave.\n{STEP}")
    async with filled(shared_settings, OLDER) as warehouse:
        await warehouse.make_tables(tmp_path)
        assert await shape(warehouse) == await shape_of_today(shared_settings)
        assert await warehouse.rows("SELECT DISTINCT trajectory_name AS name FROM turns") == [{"name": ""}]
        assert await warehouse.rows("SELECT digest FROM schemas") == [{"digest": schema_digest()}]


async def test_tables_of_an_upgrade_to_a_newer_version_are_refused(shared_settings: SharedSettings) -> None:
    """A newer version that was cut off has left its digest beside that of this one."""
    async with database(shared_settings, "newer") as warehouse:
        await warehouse.make_tables()
        await warehouse.insert("schemas", [{"digest": "of-a-newer"}], token=None)
        with pytest.raises(ConfigError, match=r"\(schema of-a-newer, this version's is "):
            await warehouse.make_tables()
        assert await warehouse.stored_schemas() == {schema_digest(), "of-a-newer"}


async def test_an_upgrade_that_was_cut_off_is_done_again(shared_settings: SharedSettings, tmp_path: Path) -> None:
    (tmp_path / f"001-{OLDER.digest}.sql").write_text(f"{STEP}SELECT throwIf(count() = 0) FROM numbers;\n")
    async with filled(shared_settings, OLDER) as warehouse:
        with pytest.raises(WarehouseUnavailable, match="numbers"):
            await warehouse.make_tables(tmp_path)
        assert await warehouse.stored_schemas() == {OLDER.digest, schema_digest()}
        await warehouse.command("CREATE TABLE numbers (n UInt8) ENGINE = Memory")
        await warehouse.insert("numbers", [{"n": 1}], token=None)
        await warehouse.make_tables(tmp_path)
        assert await warehouse.stored_schemas() == {schema_digest()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
async def test_stack_starts_over_the_state_of_a_release(version: str, tmp_path: Path) -> None:
    release, directory = Installation.of(version), tmp_path / "state"
    await leave(release, directory)
    ratchet = partial(typed, directory)
    await ratchet("up", "--free-ports", "--detach")
    try:
        sent = sum(one["headers"]["ce-type"] in SENT_BY_AGENTS for one in release.messages)

        async def settled() -> list[dict[str, Any]] | None:
            ledger = (await ratchet("status"))["ledger"]
            return ledger if sum(row["duplicate"] for row in ledger) == sent else None

        ledger = await eventually(settled, 120)
        assert [row for row in ledger if any(row[odd] for odd in ("dead", "lost", "missing", "absent"))] == []
        kept = [row["columns"] for row in release.rows["trajectories"]]
        listed = (await ratchet("trajectories", "list", "--since", "2020-01-01"))["trajectories"]
        assert {one["trajectory_id"] for one in listed} == {one["trajectory_id"] for one in kept}
        counted = await ratchet("stats", "--since", "2026-01-01")
        assert counted["total"]["trajectories"] == sum(one["ended_at"] >= "2026-01-01" for one in kept)
        snapshot = await ratchet("dataset", "build", "--role", "helpdesk", "-o", str(tmp_path / "snapshot"))
        of_role = [one["trajectory_id"] for one in kept if one["role"] == "helpdesk"]
        assert snapshot["manifest"]["trajectories"] == of_role
        assert await ratchet("deadletters", "list") == {"deadletters": []}
        assert (await ratchet("doctor"))["checks"]
    finally:
        await ratchet("down")


async def typed(directory: Path, *words: str) -> Any:
    """The document of a command that ends with 0."""
    done = await asyncio.to_thread(command_line, *words, "--json", "--dir", str(directory))
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout or "null")


async def leave(release: Installation, directory: Path) -> None:
    """A stack's folder as a release left it: its servers' data, made by the servers alone."""
    settings = StackSettings(directory=directory, free_ports=True)
    async with Stack(replace(settings, only=("nats",))) as stack:
        seed = broker_users(directory).seed_file(ADMIN)
        async with broker(SharedSettings(nats_url=stack.url("nats"), nats_seed_file=seed)) as nc:
            await release.fill_broker(nc, topics=SENT_BY_AGENTS, buckets=AT_REST)
    async with Stack(replace(settings, only=("clickhouse",))) as stack:
        url, name = stack.env["RATCHET_CLICKHOUSE_URL"], stack.env["RATCHET_CLICKHOUSE_DATABASE"]
        warehouse = await Warehouse.connect(SharedSettings(clickhouse_url=url, clickhouse_database=name))
        await release.fill_tables(warehouse)
        await warehouse.close()
    (directory / "version.json").write_text(json.dumps({"program": release.version, **release.state_folder}))
