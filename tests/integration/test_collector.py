"""The collector with a real broker and warehouse: an event is a row, and the ledger balances."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Start, Stored, Trajectory, TrajectoryEnd, decode, named_id
from ratchet.core.errors import RatchetError
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector import app as collector_app
from ratchet.trajectory_collector.domain import child_id
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.consuming import messages_of
from tests.support.messages import AT, trajectory, trajectory_end, turn
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.servers import RunningServer

LEDGER = ("ledger_entries", "ledger_windows", "stream_generations")
HUGE = msgspec.structs.replace(turn().policy, version=2**40)
"""A policy that the contract takes and ClickHouse cannot hold."""


QUICK = Tuning(ack_wait_s=2.0, audit_interval_s=0.1, assembly_patience_s=5.0)
IDLE = replace(QUICK, idle_interval_s=0.1)
build = partial(collector_app.build, tuning=QUICK)


def settings_of(shared: SharedSettings) -> Settings:
    return Settings(shared=shared, linger_s=0.02)


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


async def test_an_event_becomes_a_row_and_is_accounted_for(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(50)])
            await eventually(has(warehouse, 50))
            await eventually(accounted(warehouse, 50))
        row = (await warehouse.rows("SELECT * FROM trajectories WHERE session_id = 'session-7'"))[0]
        assert row["outcome"] == "success"
        assert row["turn_count"] == 1
        assert decode(row["body"].encode(), Trajectory) == trajectory("7")
        assert (await balance(warehouse))["missing"] == 0


async def test_an_event_that_comes_twice_is_stored_once_and_counted_as_duplicate(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish(trajectory())
            await eventually(accounted(warehouse, 1))
            await publish_outside_the_window(bus, trajectory())
            await bus.publish(trajectory("two"))
            await eventually(accounted(warehouse, 3))
        total = await balance(warehouse)
        assert (total["stored"], total["duplicate"], total["missing"]) == (2, 1, 0)
        assert await stored(warehouse) == 2


def acked(bus: Bus, sequence: int) -> Callable[[], Awaitable[bool]]:
    """Whether the collector has acked every trajectory up to `sequence`."""

    async def probe() -> bool:
        consumer = await bus.nc.jetstream().consumer_info("RL_TRAJECTORIES", "collector-trajectories")
        return consumer.ack_floor is not None and consumer.ack_floor.stream_seq >= sequence

    return probe


async def test_stored_messages_are_announced_before_they_are_acked(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings):
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(300)])
            await eventually(acked(bus, 300))
            announced: set[int] = set()
            async with aclosing(OrderedReader(bus, "RL_STORED").to_end()) as batches:
                async for batch in batches:
                    for message in batch:
                        stored_ones, _ = bus.read(message)
                        assert isinstance(stored_ones.message, Stored)
                        for part in stored_ones.message.sequences:
                            announced.update(range(part.first, part.last + 1))
        assert announced == set(range(1, 301))


async def test_storing_goes_on_when_announcing_fails(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        await bus.nc.jetstream().delete_stream("RL_STORED")
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(3)])
            await eventually(acked(bus, 3))
        assert await stored(warehouse) == 3


async def test_a_dead_letter_is_accounted_for(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))) as app:
            await bus.nc.jetstream().publish(Trajectory.TOPIC, b"not json")
            await bus.publish(trajectory())
            await eventually(accounted(warehouse, 2))
            assert await app.checks["ledger"]() is None
        total = await balance(warehouse)
        assert (total["stored"], total["dead"], total["missing"]) == (1, 1, 0)


async def test_collector_killed_in_mid_batch_loses_and_doubles_nothing(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        await bus.publish_all([trajectory(str(n)) for n in range(400)])
        async with build(settings_of(shared_settings)) as app:
            victims = [asyncio.create_task(component.run()) for component in app.components]
            await eventually(has(warehouse, 1))
            await end(*victims)
        async with running_app(build(settings_of(shared_settings))):
            await eventually(has(warehouse, 400))
            await eventually(accounted(warehouse, 400))
        total = await balance(warehouse)
        assert (await stored(warehouse), total["stored"], total["missing"]) == (400, 400, 0)


async def test_two_collectors_share_a_stream_and_the_ledger_still_balances(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        settings = settings_of(shared_settings)
        async with running_app(build(settings)), running_app(build(settings)):
            for part in range(10):
                await bus.publish_all([trajectory(f"{part}-{n}") for n in range(50)])
            await eventually(accounted(warehouse, 500))
        total = await balance(warehouse)
        assert (await stored(warehouse), total["stored"], total["missing"]) == (500, 500, 0)


async def test_a_trajectory_is_assembled_from_its_turns_once_they_are_all_stored(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
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
        ended = await bus.nc.jetstream().get_msg("RL_TURNS", subject=f"{TrajectoryEnd.TOPIC}.support", seq=1, next=True)
        assert ended.time is not None
        assert assembled.metadata.reported_at is not None
        assert abs(assembled.metadata.reported_at - ended.time) < timedelta(milliseconds=1), "nats-py rounds twice"


async def test_a_silent_run_of_which_no_call_was_answered_is_a_failure(
    shared_settings: SharedSettings,
) -> None:
    cancelled: dict[str, Any] = {"response": None, "finish_reason": "cancelled"}
    calls = [
        turn("answered"),
        turn("left", **cancelled),
        turn("failed", response=None, error="engine away"),
        turn("answered, then left"),
        turn("answered, then left", 1, **cancelled),
    ]
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all(calls)
            await eventually(has(warehouse, len(calls), "turns"))
            late = settings_of(shared_settings).model_copy(update={"idle_s": 0.0})
            async with running_app(build(late, tuning=IDLE)):
                await eventually(has(warehouse, 4))
        rows = await warehouse.rows("SELECT trajectory_id, outcome FROM trajectories FINAL")
        assert {row["trajectory_id"]: row["outcome"] for row in rows} == {
            calls[0].trajectory_id: None,
            calls[1].trajectory_id: "failure",
            calls[2].trajectory_id: "failure",
            calls[3].trajectory_id: None,
        }


async def test_rows_that_clickhouse_lost_are_read_again_from_the_streams(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        small = replace(QUICK, batch=16)
        async with running_app(build(settings_of(shared_settings), tuning=small)):
            await bus.publish_all([turn("ride", 0), trajectory_end("ride", turns=1)])
            await bus.publish_all([trajectory(str(n)) for n in range(40)])
            await bus.nc.jetstream().publish(Trajectory.TOPIC, b"not json")
            await eventually(accounted(warehouse, 42))
            await publish_outside_the_window(bus, trajectory("7"))
            await bus.publish(trajectory("huge", policy=HUGE))
            await eventually(accounted(warehouse, 44))
            before = await balance(warehouse), await balance(warehouse, "RL_TURNS")
            rows = await stored(warehouse), await stored(warehouse, "turns")
        for table in ("trajectories", "turns", "trajectory_ends", *LEDGER):
            await warehouse.command(f"TRUNCATE TABLE {table}")
        async with running_app(build(settings_of(shared_settings), tuning=small)) as app:
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
        assert (await bus.extent("RL_FEEDBACK")).last == 0


async def test_an_older_backup_is_brought_up_to_date(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(30)])
            await eventually(accounted(warehouse, 30))
        for table in ("trajectories", "ledger_entries"):
            await warehouse.command(f"ALTER TABLE {table} DELETE WHERE sequence BETWEEN 10 AND 19 OR sequence > 25")
        await warehouse.command("TRUNCATE TABLE ledger_windows")
        await eventually(lambda: _count_is(warehouse, 15))
        async with running_app(build(settings_of(shared_settings))):
            await eventually(accounted(warehouse, 30))
        assert await stored(warehouse) == 30
        left = await bus.nc.jetstream().consumers_info("RL_TRAJECTORIES")
        assert [one.name for one in left] == ["collector-trajectories"]
        assert (await balance(warehouse))["missing"] == 0


async def test_rows_that_vanish_while_collector_runs_raise_alert_and_come_back(
    shared_settings: SharedSettings,
) -> None:
    """The ledger's own entries balance all the while: only reading the rows shows the loss."""
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        few = replace(QUICK, audit_window=16, audit_windows_per_tick=2)
        async with running_app(build(settings_of(shared_settings), tuning=few)) as app:
            await bus.publish_all([trajectory(str(n)) for n in range(100)])
            await eventually(accounted(warehouse, 100))
            await warehouse.command("TRUNCATE TABLE trajectories")
            await eventually(has(warehouse, 100))
            await eventually(lambda: _alerted_and_cleared(bus, "ledger:RL_TRAJECTORIES"))
            assert await app.checks["ledger"]() is None
        total = await balance(warehouse)
        assert (total["stored"], total["lost"], total["missing"], total["absent"]) == (100, 0, 0, 0)


async def test_messages_that_no_store_holds_are_reported_as_lost(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(n)) for n in range(10)])
            await eventually(accounted(warehouse, 10))
        for table in ("trajectories", *LEDGER):
            await warehouse.command(f"TRUNCATE TABLE {table}")
        await bus.nc.jetstream().purge_stream("RL_TRAJECTORIES", seq=5)
        await bus.nc.jetstream().delete_msg("RL_TRAJECTORIES", 7)
        async with running_app(build(settings_of(shared_settings))) as app:
            await eventually(accounted(warehouse, 10))
            await eventually(lambda: _is_ready(app))
        total = await balance(warehouse)
        assert (total["stored"], total["lost"], total["missing"], total["absent"]) == (5, 5, 0, 0)
        lost = [alert for alert in await messages_of(bus, Alert) if alert.key.startswith("lost:")]
        assert [alert.labels for alert in lost] == [{"stream": "RL_TRAJECTORIES", "messages": 5}]


@pytest.mark.own_broker
@pytest.mark.parametrize("generation", ["made anew", "restored from an older copy"])
async def test_a_broker_that_gives_sequences_out_again_loses_nothing(
    shared_settings: SharedSettings, nats: RunningServer, tmp_path: Path, generation: str
) -> None:
    copy, data = tmp_path / "older copy", tmp_path / "nats"
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))) as app:
            await bus.publish_all([trajectory(f"first-{n}") for n in range(5)])
            await eventually(accounted(warehouse, 5))
            await asyncio.to_thread(nats.stop)
            await asyncio.to_thread(shutil.copytree, data, copy)
            await asyncio.to_thread(nats.start)
            await bus.publish_all([trajectory(f"second-{n}") for n in range(5)])
            await eventually(has(warehouse, 10))
            await asyncio.to_thread(nats.stop)
            await asyncio.to_thread(shutil.rmtree, data)
            if generation == "restored from an older copy":
                await asyncio.to_thread(shutil.copytree, copy, data)
            await asyncio.to_thread(nats.start)
            async with connected(shared_settings) as renewed:
                await renewed.publish_all([trajectory(f"third-{n}") for n in range(8)])
                await eventually(has(warehouse, 18))
                await eventually(lambda: _is_ready(app))
                await eventually(accounted(warehouse, 13))  # five and eight; of the newest generation
                kind = "rewound" if generation == "restored from an older copy" else "remade"
                await eventually(lambda: _has_alert(renewed, f"{kind}:RL_TRAJECTORIES"))
        total = await balance(warehouse)
        assert (total["missing"], total["absent"], total["lost"], total["dead"]) == (0, 0, 0, 0)
        assert await stored(warehouse) == 18
        generations = await warehouse.rows(
            "SELECT count() AS n FROM stream_generations FINAL WHERE stream = 'RL_TRAJECTORIES'"
        )
        assert generations[0]["n"] == 2


async def test_a_stream_that_fills_by_bytes_is_trimmed_up_to_its_slowest_reader(
    shared_settings: SharedSettings,
) -> None:
    alone = {"absent_readers": ["reward_computer"]}
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        jetstream = bus.nc.jetstream()
        config = (await jetstream.stream_info("RL_TRAJECTORIES")).config
        config.max_bytes = 200_000
        await jetstream.update_stream(config)
        async with running_app(
            build(settings_of(shared_settings).model_copy(update=alone), tuning=replace(QUICK, trim_keep_s=0.0))
        ):
            for part in range(20):
                await _publish_when_there_is_room(bus, [trajectory(f"{part}-{n}") for n in range(20)])
            await eventually(accounted(warehouse, 400))

            async def trimmed() -> bool:
                return (await jetstream.stream_info("RL_TRAJECTORIES")).state.bytes <= 160_000

            await eventually(trimmed)
            assert (await jetstream.stream_info("RL_TRAJECTORIES")).state.bytes > 60_000
        assert await stored(warehouse) == 400
        assert (await balance(warehouse))["missing"] == 0


async def test_stream_is_not_trimmed_below_a_late_reader_and_an_alert_is_raised(
    shared_settings: SharedSettings,
) -> None:
    """The reward computer never ran here: its consumer and its projection need everything."""
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        jetstream = bus.nc.jetstream()
        config = (await jetstream.stream_info("RL_TRAJECTORIES")).config
        config.max_msgs = 100
        await jetstream.update_stream(config)
        async with running_app(build(settings_of(shared_settings), tuning=replace(QUICK, trim_keep_s=0.0))):
            await bus.publish_all([trajectory(str(n)) for n in range(95)])
            await eventually(accounted(warehouse, 95))
            await eventually(lambda: _has_alert(bus, "full:RL_TRAJECTORIES"))
        assert (await jetstream.stream_info("RL_TRAJECTORIES")).state.messages == 95


async def test_a_warehouse_outage_does_not_use_up_the_patience_with_an_end(
    shared_settings: SharedSettings, clickhouse: RunningServer
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        brief = replace(QUICK, assembly_patience_s=2.0)
        async with running_app(build(settings_of(shared_settings), tuning=brief)) as app:
            await bus.publish(trajectory_end("ride", turns=1))
            await eventually(lambda: _is_ready(app))
            await asyncio.to_thread(clickhouse.kill)
            await bus.publish(turn("ride", 0))
            await eventually(lambda: _reason(app.checks["warehouse"]))
            since = bus.now()

            async def longer_than_the_patience() -> bool:
                return bus.now() - since > timedelta(seconds=2.5)

            await eventually(longer_than_the_patience)
            await asyncio.to_thread(clickhouse.start)
            await eventually(has(warehouse, 1))
        row = (await warehouse.rows("SELECT outcome FROM trajectories FINAL"))[0]
        assert row["outcome"] == "success"


async def test_a_trajectory_in_two_roles_is_assembled_and_stored_in_each(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            roles = ("planner", "support")
            calls = [
                turn(
                    "ride", n, role=role, turn_id=named_id(role, n), parent_turn_id=named_id(role, n - 1) if n else None
                )
                for role in roles
                for n in range(2)
            ]
            await bus.publish_all([*calls, *(trajectory_end("ride", role=role, turns=2) for role in roles)])
            await eventually(has(warehouse, 2))
        rows = await warehouse.rows("SELECT role, turn_count FROM trajectories FINAL ORDER BY role")
        assert [(row["role"], row["turn_count"]) for row in rows] == [(role, 2) for role in roles]


@pytest.mark.parametrize("first", [("planner", "support"), ("support",), ("planner",)])
async def test_a_silent_trajectory_in_two_roles_is_assembled_in_each(
    shared_settings: SharedSettings, first: tuple[str, ...]
) -> None:
    """Both roles fall silent at once, or one when the other's trajectory is stored: neither is taken for the other."""
    calls = {role: turn("ride", role=role, turn_id=named_id(role)) for role in ("planner", "support")}
    silent = settings_of(shared_settings).model_copy(update={"idle_s": 0.3})
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(silent, tuning=IDLE)):
            await bus.publish_all([calls[role] for role in first])
            await eventually(has(warehouse, len(first)))
            await bus.publish_all([call for role, call in calls.items() if role not in first])
            await eventually(has(warehouse, 2))
        rows = await warehouse.rows("SELECT role, source, turn_count FROM trajectories FINAL ORDER BY role")
        assert rows == [{"role": role, "source": "assembled", "turn_count": 1} for role in calls]


async def test_conversation_under_one_id_is_stored_once_by_many_collectors(
    shared_settings: SharedSettings,
) -> None:
    """Two collectors, an end that comes twice, and a worker that goes on after it."""
    main = [turn("run", n, timestamp=AT + timedelta(seconds=100 * n)) for n in range(2)]
    workers = [
        turn("run", turn_id=named_id("worker", n), messages=[{"role": "user", "content": f"do {n}"}]) for n in range(2)
    ]
    late = turn(
        "run",
        turn_id=named_id("worker", "late"),
        messages=[{"role": "user", "content": "do more"}],
        timestamp=AT + timedelta(hours=1),
    )
    idle = settings_of(shared_settings).model_copy(update={"idle_s": 3600.0, "idle_s_by_role": {"support": 0.0}})
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([*main, *workers, trajectory_end("run", turns=4)])
            await eventually(has(warehouse, 3))
            await publish_outside_the_window(bus, trajectory_end("run", turns=4))
            await bus.publish(late)
            async with running_app(build(idle, tuning=IDLE)), running_app(build(idle, tuning=IDLE)):
                await eventually(has(warehouse, 4))
        rows = await warehouse.rows(
            "SELECT trajectory_id, recorded_as, parent_trajectory_id, outcome FROM trajectories FINAL"
        )
        run = main[0].trajectory_id
        roots = [workers[0], workers[1], late]
        assert {row["trajectory_id"] for row in rows} == {
            run,
            *(child_id("support", run, root.turn_id) for root in roots),
        }
        begun_later = child_id("support", run, late.turn_id)
        outcomes = {row["trajectory_id"]: row["outcome"] for row in rows}
        assert outcomes == {run_id: None if run_id == begun_later else "success" for run_id in outcomes}
        assert {row["recorded_as"] for row in rows} == {run}
        assert sorted(str(row["parent_trajectory_id"]) for row in rows) == sorted(["None", run, run, run])


async def test_a_run_that_failed_and_ended_is_a_failure_with_its_error(shared_settings: SharedSettings) -> None:
    failed = turn("run", response=None, error="engine away")
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([failed, trajectory_end("run", turns=1, outcome=None)])
            await eventually(has(warehouse, 1))
        (row,) = await warehouse.rows("SELECT outcome, body FROM trajectories")
        assert (row["outcome"], decode(row["body"].encode(), Trajectory).metadata.error) == ("failure", "engine away")


async def test_starts_are_stored_and_accounted_for(shared_settings: SharedSettings) -> None:
    async with (
        connected(shared_settings) as bus,
        prepared_warehouse(shared_settings) as warehouse,
        running_app(build(settings_of(shared_settings))),
    ):
        await bus.publish(
            Start(trajectory_id=turn().trajectory_id, timestamp=bus.now(), policy=turn().policy, role="support")
        )
        await eventually(has(warehouse, 1, "starts"))

        async def balanced() -> bool:
            return (await balance(warehouse, "RL_STARTS")).get("stored") == 1

        await eventually(balanced)
        assert (await balance(warehouse, "RL_STARTS"))["missing"] == 0


async def test_large_trajectories_are_stored_whole(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        many = [trajectory(str(n), labels={"text": _noise(50_000, n)}) for n in range(60)]
        large = [trajectory(f"l{n}", labels={"text": _noise(500_000, n)}) for n in range(6)]
        huge = [trajectory("huge", labels={"text": "word " * 2_000_000})]
        async with running_app(build(settings_of(shared_settings))):
            for message in [*many, *large, *huge]:
                await bus.publish(message)
            await eventually(accounted(warehouse, 67))
        assert await stored(warehouse) == 67
        total = await balance(warehouse)
        assert (total["stored"], total["missing"], total["absent"]) == (67, 0, 0)


async def test_while_the_warehouse_is_away_nothing_is_acked_and_nothing_is_lost(
    shared_settings: SharedSettings, clickhouse: RunningServer
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))) as app:
            await bus.publish(trajectory("before"))
            await eventually(has(warehouse, 1))
            await asyncio.to_thread(clickhouse.kill)
            await bus.publish_all([trajectory(str(n)) for n in range(20)])
            await eventually(lambda: _reason(app.checks["warehouse"]))
            await asyncio.to_thread(clickhouse.start)
            await eventually(has(warehouse, 21))
            await eventually(accounted(warehouse, 21))
        assert (await balance(warehouse))["missing"] == 0


async def _count_is(warehouse: Warehouse, number: int) -> bool:
    return await stored(warehouse, "ledger_entries") == number and await stored(warehouse) == number


async def publish_outside_the_window(bus: Bus, message: Trajectory | TrajectoryEnd) -> None:
    """Publish the event without the broker's deduplication, as after the window has passed."""
    record = bus.seal(message)
    del record.headers["Nats-Msg-Id"]
    await bus.nc.jetstream().publish(record.subject, record.body, headers=record.headers)


def _noise(size: int, seed: int) -> str:
    """Text that compression does not shrink much."""
    return Random(seed).randbytes(size // 2).hex()


async def _publish_when_there_is_room(bus: Bus, messages: list[Trajectory]) -> None:
    """Publish as a producer with a spool does: again, when the stream refuses."""

    async def published() -> bool:
        try:
            await bus.publish_all(messages)
        except RatchetError:
            return False
        return True

    await eventually(published)


async def _has_alert(bus: Bus, prefix: str) -> bool:
    return any(alert.key.startswith(prefix) for alert in await messages_of(bus, Alert))


async def _alerted_and_cleared(bus: Bus, key: str) -> bool:
    return [alert.cleared for alert in await messages_of(bus, Alert) if alert.key == key][-2:] == [False, True]


async def _is_ready(app: App) -> bool:
    return await app.checks["ledger"]() is None


async def _reason(check: Callable[[], Any]) -> bool:
    try:
        return await check() is not None
    except Exception:  # noqa: BLE001 - any failure of the check is the answer this waits for
        return True
