"""Importing with a real broker and warehouse: a file becomes trajectories and rewards; twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.importing import import_file
from ratchet.extras.importers.reading import Records
from ratchet.extras.importers.tau_bench import TAU_BENCH, trajectory_of
from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings
from tests.integration.test_reward_computer import loop, publish_again, settled
from tests.support.real_data import AIRLINE, needs_real_data
from tests.support.running import running_app

OPTIONS = ImportOptions(role="airline", model="gpt-4o")


def record(task: int, trial: int, reward: float) -> dict[str, Any]:
    chat = [
        {"role": "system", "content": "# Airline Agent Policy"},
        {"role": "user", "content": f"task {task}, trial {trial}"},
        {"role": "assistant", "content": "done"},
    ]
    return {"task_id": task, "trial": trial, "reward": reward, "traj": chat}


async def table(warehouse: Warehouse, name: str) -> list[dict[str, Any]]:
    return await warehouse.rows(f"SELECT * EXCEPT ingested_at FROM {name} FINAL ORDER BY event_id")


def holds(warehouse: Warehouse, number: int) -> Callable[[], Any]:
    async def probe() -> bool:
        return len(await table(warehouse, "rewards")) >= number

    return probe


async def handled_everything(bus: Bus) -> None:
    for durable in ("collector-trajectories", "reward-trajectories"):
        await eventually(settled(bus, "RL_TRAJECTORIES", durable))


async def imported_twice(shared: SharedSettings, path: Path, expected: int) -> list[dict[str, Any]]:
    """Import, import again, and once more past the broker's memory; returns the rewards, which never changed."""
    async with loop(shared) as (bus, warehouse), running_app(build(Settings(shared=shared))):
        await import_file(TAU_BENCH, bus, path, OPTIONS)
        await eventually(holds(warehouse, expected))
        trajectories, rewards = await table(warehouse, "trajectories"), await table(warehouse, "rewards")
        await import_file(TAU_BENCH, bus, path, OPTIONS)
        for item in [read.value for read in Records(path)][:10]:
            if isinstance(item, dict) and "traj" in item:
                await publish_again(bus, trajectory_of(item, OPTIONS))
        await handled_everything(bus)
        assert await table(warehouse, "trajectories") == trajectories
        assert await table(warehouse, "rewards") == rewards
        assert len(trajectories) == expected
        return rewards


async def test_importing_twice_leaves_the_same_rows(shared_settings: SharedSettings, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps([record(1, 0, 1.0), {"broken": True}, record(1, 1, 0.0), record(2, 0, 0.5)]))
    rewards = await imported_twice(shared_settings, path, 3)
    assert sorted(row["components"]["task_completion"] for row in rewards) == [0.0, 0.75, 1.0]


@needs_real_data
async def test_the_real_airline_file_is_rewarded_as_it_was_verified(shared_settings: SharedSettings) -> None:
    rewards = await imported_twice(shared_settings, AIRLINE, 120)
    completed = [row["components"]["task_completion"] for row in rewards]
    assert (completed.count(1.0), completed.count(0.0)) == (36, 84)
    assert all(row["total"] == 0.0 for row, done in zip(rewards, completed, strict=True) if not done)
    assert all(row["total"] >= 2 / 3 for row, done in zip(rewards, completed, strict=True) if done)
