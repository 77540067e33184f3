"""The collector with a real broker and warehouse: an event is a row, and the ledger balances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from ratchet.kernel.bus import Bus
from ratchet.kernel.settings import KernelSettings
from ratchet.kernel.tasks import end
from ratchet.kernel.warehouse import Warehouse
from ratchet.messages import Trajectory, decode
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.settings import Settings
from tests.support.messages import trajectory, trajectory_end, turn
from tests.support.running import connected, migrated, running_app
from tests.support.servers import RunningServer
from tests.support.waiting import eventually

HUGE = msgspec.structs.replace(turn().policy, version=2**40)
"""A policy that the contract takes and ClickHouse cannot hold."""


def settings_of(kernel: KernelSettings) -> Settings:
    return Settings(kernel=kernel, linger_s=0.02, ack_wait_s=2.0, audit_interval_s=0.1)


async def stored(warehouse: Warehouse, table: str = "trajectories") -> int:
    return int((await warehouse.rows(f"SELECT count() AS n FROM {table} FINAL"))[0]["n"])


async def balance(warehouse: Warehouse, stream: str = "RL_TRAJECTORIES") -> dict[str, Any]:
    rows = await warehouse.rows("SELECT * FROM ledger_balance WHERE stream = {s:String}", {"s": stream})
    return rows[0] if rows else {}


def has(warehouse: Warehouse, number: int, table: str = "trajectories") -> Callable[[], Any]:
    async def probe() -> bool:
        return await stored(warehouse, table) >= number

    return probe


def accounted(warehouse: Warehouse, number: int) -> Callable[[], Any]:
    async def probe() -> bool:
        return (await balance(warehouse)).get("accounted", 0) >= number

    return probe


async def test_an_event_becomes_a_row_and_is_accounted_for(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(50)])
            await eventually(has(warehouse, 50))
            await eventually(accounted(warehouse, 50))
        row = (await warehouse.rows("SELECT * FROM trajectories WHERE session_id = 'session-7'"))[0]
        assert row["outcome"] == "success"
        assert row["turn_count"] == 1
        assert decode(row["body"].encode(), Trajectory) == trajectory("7")
        assert (await balance(warehouse))["missing"] == 0


async def test_an_event_that_comes_twice_is_stored_once_and_counted_as_duplicate(
    kernel_settings: KernelSettings,
) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish(trajectory())
            await eventually(accounted(warehouse, 1))
            await publish_outside_the_window(bus, trajectory())
            await bus.publish(trajectory("two"))
            await eventually(accounted(warehouse, 3))
        total = await balance(warehouse)
        assert (total["stored"], total["duplicate"], total["missing"]) == (2, 1, 0)
        assert await stored(warehouse) == 2


async def test_a_dead_letter_is_accounted_for(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))) as app:
            await bus.nc.jetstream().publish(Trajectory.TOPIC, b"not json")
            await bus.publish(trajectory())
            await eventually(accounted(warehouse, 2))
            assert await app.checks["ledger"]() is None
        total = await balance(warehouse)
        assert (total["stored"], total["dead"], total["missing"]) == (1, 1, 0)


async def test_a_collector_killed_in_mid_batch_loses_nothing_and_stores_nothing_twice(
    kernel_settings: KernelSettings,
) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        await bus.publish_all([trajectory(str(n)) for n in range(400)])
        async with build(settings_of(kernel_settings)) as app:
            victims = [asyncio.create_task(component.run()) for component in app.components]
            await eventually(has(warehouse, 1))
            await end(*victims)
        async with running_app(build(settings_of(kernel_settings))):
            await eventually(has(warehouse, 400))
            await eventually(accounted(warehouse, 400))
        total = await balance(warehouse)
        assert (await stored(warehouse), total["stored"], total["missing"]) == (400, 400, 0)


async def test_two_collectors_share_a_stream_and_the_ledger_still_balances(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        settings = settings_of(kernel_settings)
        async with running_app(build(settings)), running_app(build(settings)):
            for part in range(10):
                await bus.publish_all([trajectory(f"{part}-{n}") for n in range(50)])
            await eventually(accounted(warehouse, 500))
        total = await balance(warehouse)
        assert (await stored(warehouse), total["stored"], total["missing"]) == (500, 500, 0)


async def test_a_trajectory_is_assembled_from_its_turns_once_they_are_all_stored(
    kernel_settings: KernelSettings,
) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish_all([turn("ride", 0), trajectory_end("ride", turns=2)])
            await eventually(has(warehouse, 1, "turns"))
            assert await stored(warehouse) == 0
            await bus.publish(turn("ride", 1))
            await eventually(has(warehouse, 1))
        body = (await warehouse.rows("SELECT body FROM trajectories"))[0]["body"]
        assembled = decode(body.encode(), Trajectory)
        assert assembled.metadata.source == "assembled"
        assert assembled.policy == turn("ride").policy
        assert [entry.action.raw_response for entry in assembled.turns] == ["answer 0", "answer 1"]
        assert assembled.task_context.group_key == "group-ride"


async def test_only_a_silent_trajectory_with_an_answered_call_can_be_assembled(kernel_settings: KernelSettings) -> None:
    cancelled: dict[str, Any] = {"response": None, "finish_reason": "cancelled"}
    calls = [
        turn("answered"),
        turn("left", **cancelled),
        turn("failed", response=None, error="engine away"),
        turn("answered, then left"),
        turn("answered, then left", 1, **cancelled),
    ]
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish_all(calls)
            await eventually(has(warehouse, len(calls), "turns"))
        now = bus.now()
        found = await Facts(warehouse).idle(since=now - timedelta(hours=1), before=now, limit=10)
        assert {name for _, name in found} == {calls[0].trajectory_id, calls[3].trajectory_id}


async def test_what_clickhouse_lost_is_read_again_from_the_streams(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        small = settings_of(kernel_settings).model_copy(update={"batch": 16})
        async with running_app(build(small)):
            await bus.publish_all([turn("ride", 0), trajectory_end("ride", turns=1)])
            await bus.publish_all([trajectory(str(n)) for n in range(40)])
            await bus.nc.jetstream().publish(Trajectory.TOPIC, b"not json")
            await eventually(accounted(warehouse, 42))
            await publish_outside_the_window(bus, trajectory("7"))
            await bus.publish(trajectory("huge", policy=HUGE))
            await eventually(accounted(warehouse, 44))
            before = await balance(warehouse), await balance(warehouse, "RL_TURNS")
            rows = await stored(warehouse), await stored(warehouse, "turns")
        for table in ("trajectories", "turns", "ledger"):
            await warehouse.command(f"TRUNCATE TABLE {table}")
        async with running_app(build(small)) as app:
            await bus.publish(trajectory("new"))
            await eventually(accounted(warehouse, 45))
            await eventually(has(warehouse, 1, "turns"))

            async def balanced() -> bool:
                return await app.checks["ledger"]() is None and (await balance(warehouse, "RL_TURNS")) == before[1]

            await eventually(balanced)
        after = await balance(warehouse)
        assert (after["stored"], after["dead"], after["duplicate"], after["missing"]) == (42, 2, 1, 0)
        assert (before[0]["stored"], before[0]["dead"]) == (41, 2)
        assert (await stored(warehouse), await stored(warehouse, "turns")) == (rows[0] + 1, rows[1])
        assert await bus.last_sequence("RL_FEEDBACK") == 0


async def test_an_older_backup_is_brought_up_to_date(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(30)])
            await eventually(accounted(warehouse, 30))
        for table in ("trajectories", "ledger"):
            await warehouse.command(f"ALTER TABLE {table} DELETE WHERE sequence BETWEEN 10 AND 19 OR sequence > 25")
        await eventually(lambda: _count_is(warehouse, 15))
        async with running_app(build(settings_of(kernel_settings))):
            await eventually(accounted(warehouse, 30))
        assert await stored(warehouse) == 30
        left = await bus.nc.jetstream().consumers_info("RL_TRAJECTORIES")
        assert [one.name for one in left] == ["collector-trajectories"]
        assert (await balance(warehouse))["missing"] == 0


async def test_what_the_stream_no_longer_holds_is_said_and_stays_red(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(10)])
            await eventually(accounted(warehouse, 10))
        await warehouse.command("TRUNCATE TABLE ledger")
        await bus.nc.jetstream().purge_stream("RL_TRAJECTORIES", seq=5)
        async with running_app(build(settings_of(kernel_settings))) as app:
            await eventually(accounted(warehouse, 6))

            async def said() -> bool:
                return "lacks 4, 4 of them no longer in the stream" in (await app.checks["ledger"]() or "")

            await eventually(said)
            assert (await balance(warehouse))["missing"] == 4
            for _ in range(3):  # looking again changes nothing: what is gone cannot come back
                assert await said()


async def test_while_the_warehouse_is_away_nothing_is_acked_and_nothing_is_lost(
    kernel_settings: KernelSettings, clickhouse: RunningServer
) -> None:
    async with connected(kernel_settings) as bus, migrated(kernel_settings) as warehouse:
        async with running_app(build(settings_of(kernel_settings))) as app:
            await bus.publish(trajectory("before"))
            await eventually(has(warehouse, 1))
            await asyncio.to_thread(clickhouse.kill)
            await bus.publish_all([trajectory(str(n)) for n in range(20)])
            await eventually(lambda: _reason(app.checks["warehouse"]))
            await asyncio.to_thread(clickhouse.start)
            await eventually(has(warehouse, 21), deadline_s=40)
            await eventually(accounted(warehouse, 21))
        assert (await balance(warehouse))["missing"] == 0


async def _count_is(warehouse: Warehouse, number: int) -> bool:
    return await stored(warehouse, "ledger") == number and await stored(warehouse) == number


async def publish_outside_the_window(bus: Bus, message: Trajectory) -> None:
    """Publish the event without the broker's deduplication, as after the window has passed."""
    subject, headers, body = bus.seal(message)
    del headers["Nats-Msg-Id"]
    await bus.nc.jetstream().publish(subject, body, headers=headers)


async def _reason(check: Callable[[], Any]) -> bool:
    try:
        return await check() is not None
    except Exception:  # noqa: BLE001 - any failure of the check is the answer this waits for
        return True
