"""The HTTP API of patterns: which roles are looked at, and the trail of one pattern."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from ratchet.analyst.http_api import PatternRoutes, http_app
from ratchet.analyst.nats_trail import Trail
from ratchet.bus.testing.broker import Killed
from ratchet.core.contract.learning import AdaptationPlan
from ratchet.core.rules.access import Caller
from tests.support.analyst_world import POLICY, ROLE, AnalystWorld, pattern
from tests.support.callers import called_by

ANN = Caller("key_o", "ann", frozenset({"operate", "view"}))


@pytest.fixture
def world() -> AnalystWorld:
    return AnalystWorld()


@pytest.fixture
async def http(world: AnalystWorld) -> AsyncIterator[httpx.AsyncClient]:
    async def no_plans(role: str, pattern_id: str) -> list[AdaptationPlan]:
        return []

    async def is_known(role: str) -> bool:
        return role == ROLE

    routes = PatternRoutes(world.store, Trail(world.bus), world.runs(), no_plans, is_known, lambda: world.now)
    app = called_by(http_app([routes]), ANN)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8086") as client:
        yield client


@pytest.mark.parametrize("role", ["x.y", "Shop", "", "a b", "x" * 65])
async def test_what_is_no_role_s_name_is_not_looked_at(http: httpx.AsyncClient, world: AnalystWorld, role: str) -> None:
    answer = await http.post("/v1/analyses", json={"role": role})
    assert (answer.status_code, world.asked) == (400, [])


async def test_the_trail_of_a_pattern_has_its_steps_alone(http: httpx.AsyncClient, world: AnalystWorld) -> None:
    world.claims = [pattern(), pattern("orders")]
    assert (await http.post("/v1/analyses", json={"role": ROLE})).status_code == 200
    whole = (await http.get(f"/v1/learning/{ROLE}/events")).json()["events"]
    asked = {"pattern_id": pattern("orders").pattern_id}
    (opened,) = (await http.get(f"/v1/learning/{ROLE}/events", params=asked)).json()["events"]
    assert (len(whole), opened["what"], opened["pattern_id"]) == (5, "pattern_opened", asked["pattern_id"])


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_dismissal_is_one_step_of_the_trail(
    http: httpx.AsyncClient, world: AnalystWorld, is_killed: bool
) -> None:
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    faults = world.broker.faults
    faults.at = faults.writes + 2 if is_killed else None
    path, reason = f"/v1/patterns/{ROLE}/{pattern().pattern_id}/dismiss", {"reason": "it is known"}
    if is_killed:
        with pytest.raises(Killed):
            await http.post(path, json=reason)
    else:
        assert (await http.post(path, json=reason)).status_code == 200
    world.now += timedelta(hours=1)
    await world.runs().run(ROLE)
    steps = [event for event in await Trail(world.bus).read(ROLE) if event.what == "pattern_dismissed"]
    assert [(step.summary, step.pattern_id) for step in steps] == [("Dismissed: it is known", pattern().pattern_id)]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/patterns?role=suport"), ("POST", "/v1/analyses")])
async def test_a_role_without_trajectories_is_not_found(http: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path, json={"role": "suport"} if method == "POST" else None)
    assert answer.status_code == 404
    assert "suport has no trajectory of the last 56 days" in answer.text


async def test_a_role_whose_trajectories_are_too_old_is_looked_at(http: httpx.AsyncClient, world: AnalystWorld) -> None:
    await world.store.put(pattern(role="quiet"), None)
    assert (await http.post("/v1/analyses", json={"role": "quiet"})).status_code == 200


async def test_a_dismissal_can_be_undone_and_made_again(http: httpx.AsyncClient, world: AnalystWorld) -> None:
    world.claims = [pattern()]
    await world.runs().run(ROLE)
    path = f"/v1/patterns/{ROLE}/{pattern().pattern_id}"
    assert (await http.post(f"{path}/reopen", json={})).status_code == 409
    for _ in range(2):
        assert (await http.post(f"{path}/dismiss", json={"reason": "known"})).status_code == 200
        world.now += timedelta(minutes=1)
        assert (await http.post(f"{path}/reopen", json={"reason": "it is back"})).status_code == 200
        world.now += timedelta(minutes=1)
    assert await world.patterns() == [pattern(opened_under=POLICY)]
    steps = [event.summary for event in await Trail(world.bus).read(ROLE) if event.pattern_id is not None]
    assert steps[1:] == ["Dismissed: known", "Open again: it is back"] * 2
