"""`ratchet rollout history` and `ratchet trajectories show` on the real ClickHouse."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.core.contract import ModelRollout, PolicyClaim, named_id
from ratchet.core.contract.deployment import RolloutStage
from ratchet.core.service.settings import SharedSettings
from tests.support.console_data import store
from tests.support.messages import AT, trajectory, turn
from tests.support.running import prepared_warehouse


def decision(number: int, verdict: str, role: str = "support", **changes: Any) -> ModelRollout:
    return ModelRollout(
        rollout_id=named_id("rollout", role),
        sequence=number,
        timestamp=AT.replace(minute=number),
        role=role,
        from_version=1,
        to_version=2,
        stage=RolloutStage(index=number, weight=0.25 * number),
        verdict=verdict,
        reason=f"reason {number} \x1b[31m",
        actor="ada",
        **changes,
    )


async def test_decisions_are_shown_newest_first_and_those_of_other_roles_are_not(
    shared_settings: SharedSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_CLICKHOUSE_URL", shared_settings.clickhouse_url)
    monkeypatch.setenv("RATCHET_CLICKHOUSE_DATABASE", shared_settings.clickhouse_database)
    words = ["rollout", "history", "support", "--dir", str(tmp_path)]
    async with prepared_warehouse(shared_settings) as warehouse:
        await store(
            warehouse, *(decision(number, verdict) for number, verdict in enumerate(("start", "advance", "roll_back")))
        )
        await store(warehouse, decision(0, "start", "other"))
        assert await asyncio.to_thread(main, [*words, "--json"]) == 0
        decisions = json.loads(capsys.readouterr().out)["decisions"]
        assert [(one["decision"], one["verdict"], one["weight"]) for one in decisions] == [
            (2, "roll_back", 0.5),
            (1, "advance", 0.25),
            (0, "start", 0.0),
        ]
        assert {one["actor"] for one in decisions} == {"ada"}
        assert await asyncio.to_thread(main, [*words, "--limit", "1"]) == 0
        text = capsys.readouterr().out
        assert "reason 2 \\x1b[31m" in text
        assert "reason 1" not in text


async def test_a_trajectory_shows_why_a_call_of_the_canary_failed(
    shared_settings: SharedSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_CLICKHOUSE_URL", shared_settings.clickhouse_url)
    monkeypatch.setenv("RATCHET_CLICKHOUSE_DATABASE", shared_settings.clickhouse_database)
    canary = PolicyClaim(role="support", version=2, digest="b" * 64, arm="canary", weight=0.1)
    failed = turn("moved", policy=canary, error="404, the model is retired", response=None)
    async with prepared_warehouse(shared_settings) as warehouse:
        await store(warehouse, failed, turn("moved", 1), trajectory("moved"))
        words = ["trajectories", "show", failed.trajectory_id, "--dir", str(tmp_path)]
        assert await asyncio.to_thread(main, words) == 0
    assert ["0", "2", "canary", "404,", "the", "model", "is", "retired"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
