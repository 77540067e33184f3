"""The analyst on a real broker and a real ClickHouse: a planted failure opens, keeps its identity, and closes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from ratchet.analyst.app import ELECTION
from ratchet.analyst.clickhouse_episodes import StoredEpisodes
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.questions import Place, ask
from ratchet.analyst.runs import Runs
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Message, named_id
from ratchet.core.contract.learning import LEADERS, Pattern
from ratchet.core.service.leadership import Leader, Leadership
from ratchet.core.service.settings import SharedSettings
from tests.support.coordinator import stored
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse, running
from tests.support.service_process import service_process
from tests.support.training import reward, trajectory

ROLE, PLANTED = "support", "refunds"
START = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
POLICY = f"{ROLE}@3-1a2b3c4d"
AN_HOUR = 320
"""Trajectories of each hour: few enough that windows of an hour are the shortest that hold enough."""


def hour(begin: datetime, *, planted: bool, seed: int) -> list[Message]:
    """Trajectories of an hour, each of a subject of its own, and their rewards; those of one agent fail."""
    drawn, facts = random.Random(seed), list[Message]()
    for number in range(AN_HOUR):
        agent = PLANTED if drawn.random() < 0.4 else drawn.choice(["orders", "returns", "questions"])
        fails = drawn.random() < (0.9 if planted and agent == PLANTED else 0.1)
        name = named_id("trajectory", begin.isoformat(), number)
        at = begin + number * HOUR / AN_HOUR
        run = trajectory(name, success=not fails, at=at, agent_id=agent, session_id=f"session {name}")
        facts += [run, reward(run, 0.1 if fails else 0.9, at=at)]
    return facts


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings, "analyst") as bus:
        yield bus


@asynccontextmanager
async def runs_at(shared: SharedSettings, bus: Bus, clock: list[datetime]) -> AsyncIterator[Runs]:
    """Runs by a clock that the test sets."""

    async def stable(role: str) -> str | None:
        return POLICY

    async def no_alerts(role: str) -> list[Alert]:
        return []

    leadership = Leadership(ELECTION, Bucket(bus, LEADERS, Leader), "http://here")
    place = Place(url=shared.clickhouse_url, database=shared.clickhouse_database, timeout_s=shared.clickhouse_timeout_s)
    async with prepared_warehouse(shared) as warehouse, running(leadership):
        async with asyncio.timeout(10):
            await leadership.gained.wait()
        episodes = StoredEpisodes(warehouse)
        yield Runs(PatternStore(bus), Trail(bus), leadership, episodes, ask, stable, no_alerts, place, lambda: clock[0])


@pytest.mark.slow
async def test_a_planted_failure_opens_keeps_its_identity_and_closes(shared_settings: SharedSettings, bus: Bus) -> None:
    planted = [True, True, True, False, False]
    facts = [fact for i, fails in enumerate(planted) for fact in hour(START + i * HOUR, planted=fails, seed=i)]
    clock, settled = [START], timedelta(minutes=10)

    async def about_the_agent() -> list[Pattern]:
        patterns = [entry.value for entry in await PatternStore(bus).every()]
        return [each for each in patterns if PLANTED in {trigger.value for trigger in each.triggers}]

    async with stored(shared_settings, bus, facts), runs_at(shared_settings, bus, clock) as runs:
        clock[0] = START + 2 * HOUR + settled
        first = await runs.run(ROLE)
        assert (first.trajectories, first.note) == ([AN_HOUR, AN_HOUR], None)
        (opened,) = await about_the_agent()
        assert (opened.state, opened.pattern_id in first.opened) == ("open", True)
        assert opened.effect.low <= (0.8 if opened.effect.measure == "failure" else -0.64) <= opened.effect.high
        assert len(opened.evidence) == 20
        clock[0] += HOUR
        await runs.run(ROLE)
        (again,) = await about_the_agent()
        assert (again.pattern_id, again.state, len(again.trend)) == (opened.pattern_id, "open", 2)
        for _ in range(2):
            clock[0] += HOUR
            await runs.run(ROLE)
        (closed,) = await about_the_agent()
        assert (closed.pattern_id, closed.state, closed.closed_by) == (opened.pattern_id, "closed", None)
        trail = await Trail(bus).read(ROLE)
        steps = [event.what for event in trail if event.pattern_id == opened.pattern_id]
        assert steps == ["pattern_opened", "pattern_closed"]
        assert [event.what for event in trail].count("run") == 4


@pytest.mark.slow
async def test_a_killed_analyst_is_replaced_and_no_run_counts_twice(
    shared_settings: SharedSettings, bus: Bus, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    facts = [fact for i in (2, 1) for fact in hour(now - i * HOUR - timedelta(minutes=12), planted=True, seed=i)]
    async with stored(shared_settings, bus, facts):
        with (
            service_process("analyst", shared_settings, tmp_path / "first") as first,
            service_process("analyst", shared_settings, tmp_path / "second") as second,
        ):
            async with http_client() as client:
                refused = await asked(client, second.url)
                assert (refused.status_code, first.url in refused.text) == (503, True)
                lost = asyncio.create_task(asked(client, first.url))

                async def is_mining() -> bool:
                    return bool(psutil.Process(first.pid).children())

                await eventually(is_mining)
                first.kill()
                with pytest.raises(httpx.TransportError):
                    await lost

                async def answered() -> bool:
                    return (await asked(client, second.url)).status_code == 200

                await eventually(answered)
            trail = await Trail(bus).read(ROLE)
            for what in ("run", "pattern_opened"):
                steps = [event.pattern_id or event.key for event in trail if event.what == what]
                assert steps
                assert len(set(steps)) == len(steps)


async def asked(client: httpx.AsyncClient, url: str) -> httpx.Response:
    return await client.post(f"{url}/v1/analyses", json={"role": ROLE}, timeout=300.0)
