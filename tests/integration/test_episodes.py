"""Episodes over HTTP, from the real ClickHouse: one with all that is stored of it, and those that there are none of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from ratchet.analyst.http_api import http_app
from ratchet.analyst.http_episodes import EpisodeRoutes
from ratchet.core.contract import named_id
from ratchet.core.contract.learning import Pattern, Trigger
from ratchet.core.rules.access import Caller
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.trajectories import StoredTrajectories
from ratchet.core.stores.warehouse import Warehouse
from tests.support.adaptation import pattern_of
from tests.support.callers import called_by
from tests.support.console_data import store
from tests.support.messages import trajectory, turn
from tests.support.rewards import feedback
from tests.support.running import prepared_warehouse

OPS = Caller("k", "ops", frozenset({"view:support"}))


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


@pytest.fixture
async def http(warehouse: Warehouse) -> AsyncIterator[httpx.AsyncClient]:
    async def open_patterns(role: str) -> Sequence[Pattern]:
        agent = Trigger(attribute="agent", value="agent-zero-main")
        return [pattern_of(role=role, triggers=(agent,), advice="Look at the date.")]

    app = called_by(http_app([EpisodeRoutes(StoredTrajectories(warehouse), open_patterns)]), OPS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8086") as client:
        yield client


async def test_an_episode_has_all_that_is_stored_of_a_trajectory(http: httpx.AsyncClient, warehouse: Warehouse) -> None:
    parent = trajectory("one")
    child = trajectory("two", agent_id="clerk", parent_trajectory_id=parent.trajectory_id)
    analysis = feedback(2, kind="error_analysis", value="It asked twice.")
    await store(warehouse, parent, child, turn("one"), turn("one", 1), feedback(1), analysis)
    answer = await http.get(f"/v1/episodes/{parent.trajectory_id}")

    assert answer.status_code == 200
    episode = answer.json()
    assert (episode["episode_id"], episode["role"]) == (parent.trajectory_id, "support")
    assert (episode["resources"]["tokens"], episode["resources"]["calls"]) == (30, 2)
    assert [each["kind"] for each in episode["feedback"]] == ["thumbs", "error_analysis"]
    assert [(each["from"], each["to"]) for each in episode["communication"]] == [("agent-zero-main", "clerk")]
    assert episode["suggestions"] == ["Look at the date."]


@pytest.mark.parametrize("name", ["open", "secret", "unknown"])
async def test_what_is_open_of_another_role_or_unknown_is_no_episode(
    http: httpx.AsyncClient, warehouse: Warehouse, name: str
) -> None:
    await store(warehouse, turn("open"), trajectory("secret", role="billing"))
    assert (await http.get(f"/v1/episodes/{named_id('trajectory', name)}")).status_code == 404
