"""Agents that only set a base_url, with a real broker, warehouse, collector and reward computer: silence ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.contract import Outcome, Reward, Trajectory, decode
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.app import build as build_rewards
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.domain import Inference
from ratchet.trajectory_collector.idle import IdleAssembler, Patience
from ratchet.trajectory_collector.nats_streams import Streams
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.messages import trajectory, trajectory_end, turn
from tests.support.running import connected, prepared_warehouse, running_app

IDLE_S = 600.0


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def collector(shared: SharedSettings, later_s: float = 0.0) -> Any:
    """A collector whose clock is `later_s` ahead."""
    settings = Settings(shared=shared, linger_s=0.02)
    tuning = Tuning(ack_wait_s=2.0, audit_interval_s=0.1, idle_interval_s=0.1)
    return build(settings, now=lambda: utc_now() + seconds(later_s), tuning=tuning)


def rewards(shared: SharedSettings) -> Any:
    return build_rewards(RewardSettings(shared=shared, linger_s=0.02))


async def stored(warehouse: Warehouse, table: str) -> list[dict[str, Any]]:
    return await warehouse.rows(f"SELECT * FROM {table} FINAL ORDER BY sequence")


def has(warehouse: Warehouse, table: str, number: int) -> Callable[[], Any]:
    async def probe() -> list[dict[str, Any]] | None:
        rows = await stored(warehouse, table)
        return rows if len(rows) >= number else None

    return probe


async def stored_trajectory(warehouse: Warehouse) -> Trajectory:
    (row,) = await stored(warehouse, "trajectories")
    return decode(row["body"].encode(), Trajectory)


def outcome_is(warehouse: Warehouse, status: str) -> Callable[[], Any]:
    async def probe() -> bool:
        rows = await stored(warehouse, "trajectories")
        return [row["outcome"] for row in rows] == [status]

    return probe


async def test_silence_makes_one_trajectory_and_reward_though_a_collector_dies(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with collector(shared_settings) as app:
            running = [asyncio.create_task(component.run()) for component in app.components]
            await bus.publish_all([turn("ride", 0), turn("ride", 1)])
            await eventually(has(warehouse, "turns", 2))
            await end(*running)
        assert await stored(warehouse, "trajectories") == []
        late = IDLE_S + 60
        async with (
            running_app(collector(shared_settings, late)),
            running_app(collector(shared_settings, late)),
            running_app(rewards(shared_settings)),
        ):
            await eventually(has(warehouse, "rewards", 1))
        async with running_app(collector(shared_settings, 2 * late)), running_app(rewards(shared_settings)):
            await bus.publish(trajectory("other"))
            await eventually(has(warehouse, "rewards", 2))
        assert (await bus.extent("RL_TRAJECTORIES")).last == 2
        row = (await stored(warehouse, "trajectories"))[0]
        assembled = decode(row["body"].encode(), Trajectory)
        assert (assembled.metadata.source, assembled.outcome) == ("assembled", None)
        assert [entry.action.raw_response for entry in assembled.turns] == ["answer 0", "answer 1"]
        bodies = [decode(row["body"].encode(), Reward) for row in await stored(warehouse, "rewards")]
        (reward,) = [each for each in bodies if each.trajectory_id == assembled.trajectory_id]
        assert (reward.revision, reward.metadata.confidence) == (0, 0.0)


async def assemble(bus: Bus, warehouse: Warehouse, later_s: float) -> int:
    """Look for idle trajectories once, `later_s` from now; how many the stream of trajectories holds then."""
    clock = Bus(
        bus.nc,
        name="later",
        contracts=bus.contracts,
        replicas=1,
        now=lambda: utc_now() + seconds(later_s),
    )
    durables = {"RL_TURNS": "collector-turns", "RL_TRAJECTORIES": "collector-trajectories"}
    patience = Patience(seconds(IDLE_S), lookback=seconds(2 * IDLE_S))
    idle = IdleAssembler(clock, Facts(warehouse), Streams(clock), durables, patience=patience, inference=Inference())
    await idle.tick()
    return (await bus.extent("RL_TRAJECTORIES")).last


async def test_a_trajectory_is_left_alone_until_it_is_silent_for_long_enough(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(collector(shared_settings)):
            await bus.publish_all([turn("ride"), turn("failed", error="engine away", response=None)])
            await eventually(has(warehouse, "turns", 2))
        assert await assemble(bus, warehouse, IDLE_S - 60) == 0
        assert await assemble(bus, warehouse, IDLE_S + 60) == 2


async def test_an_end_after_the_silence_fills_the_row_and_revises_the_reward(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(collector(shared_settings)):
            await bus.publish(turn("ride"))
            await eventually(has(warehouse, "turns", 1))
        async with running_app(collector(shared_settings, IDLE_S + 60)), running_app(rewards(shared_settings)):
            await eventually(has(warehouse, "rewards", 1))
            await bus.publish(trajectory_end("ride", turns=1, outcome=Outcome(status="failure")))
            await eventually(outcome_is(warehouse, "failure"))
            first, second = await eventually(has(warehouse, "rewards", 2))
            (update,) = await eventually(has(warehouse, "feedback", 1))

            async def accounted() -> bool:
                balance = await warehouse.rows("SELECT * FROM ledger_balance WHERE stream = 'RL_TRAJECTORIES'")
                return [(one["stored"], one["duplicate"], one["missing"]) for one in balance] == [(1, 1, 0)]

            await eventually(accounted)
        assert (first["revision"], second["revision"], second["total"]) == (0, 1, 0.0)
        assert second["confidence"] > 0
        assert (await stored_trajectory(warehouse)).task_context.group_key == "group-ride"
        assert update["kind"] == "update"


async def test_outcome_right_after_an_end_without_one_is_no_repetition(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(collector(shared_settings)), running_app(rewards(shared_settings)):
            await bus.publish(turn("ride"))
            for outcome in (None, None, Outcome(status="failure"), Outcome(status="success")):
                await bus.publish(trajectory_end("ride", turns=1, outcome=outcome))
            await eventually(outcome_is(warehouse, "failure"))
            first, second = await eventually(has(warehouse, "rewards", 2))
            assert (first["revision"], second["revision"], second["total"]) == (0, 1, 0.0)

            async def settled() -> bool:
                balance = await warehouse.rows("SELECT * FROM ledger_balance WHERE stream = 'RL_TRAJECTORIES'")
                return [(one["stored"], one["duplicate"], one["missing"]) for one in balance] == [(1, 2, 0)]

            await eventually(settled)
        assert (await stored_trajectory(warehouse)).outcome == Outcome(status="failure")


async def test_later_trajectory_of_the_agents_own_client_replaces_assembled_one(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(collector(shared_settings)):
            await bus.publish(turn("ride"))
            await eventually(has(warehouse, "turns", 1))
        async with running_app(collector(shared_settings, IDLE_S + 60)):
            await eventually(has(warehouse, "trajectories", 1))
            await bus.publish(trajectory("ride", trajectory_id=turn("ride").trajectory_id))
            await eventually(outcome_is(warehouse, "success"))
            await eventually(has(warehouse, "feedback", 1))
        assert (await stored_trajectory(warehouse)).metadata.source == "client"


async def test_turns_after_the_silence_make_the_same_trajectory_longer(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(collector(shared_settings)):
            await bus.publish(turn("ride", 0))
            await eventually(has(warehouse, "turns", 1))
        async with running_app(collector(shared_settings, IDLE_S + 60)):
            await eventually(has(warehouse, "trajectories", 1))
            await bus.publish(turn("ride", 1))
            await eventually(has(warehouse, "turns", 2))
            assert len((await stored_trajectory(warehouse)).turns) == 1
        async with running_app(collector(shared_settings, 2 * IDLE_S + 120)):

            async def longer() -> bool:
                return len((await stored_trajectory(warehouse)).turns) == 2

            await eventually(longer)
        assert await stored(warehouse, "feedback") == []
