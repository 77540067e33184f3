"""The rule of four eyes: promotions and overrides wait for a second person, who gives the same order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from ratchet.canary_deployer.four_eyes import WAITS, FourEyes
from ratchet.core.contract import ModelRollout
from ratchet.core.rules.access import ANYONE, Caller
from tests.support.callers import called_by
from tests.support.canary_world import ROLE, CanaryWorld
from tests.unit.canary_deployer.test_http_api import ACT, Operator

ADA, BOB = (Caller(f"key_000000000{n}", name, frozenset({"operate"})) for n, name in enumerate(("ada", "bob")))
ADA_AGAIN = Caller("key_0000000007", "ada", frozenset({"operate"}))
OVERRIDE = {**ACT, "override": True}


class People:
    """A deployer with the rule, and the people who give it orders."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.now = operator.world.bus.now()
        self.rule = operator.api.four_eyes = FourEyes(lambda: self.now)

    async def post(self, who: Caller, verb: str, body: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(called_by(self.operator.app, who))
        async with httpx.AsyncClient(transport=transport, base_url="http://deployer") as http:
            return await http.post(f"/v1/rollouts/{ROLE}/{verb}", json=body)

    async def state(self) -> str:
        return (await self.operator.get(f"/v1/rollouts/{ROLE}"))["state"]


@pytest_asyncio.fixture
async def people() -> AsyncIterator[People]:
    operator = Operator(await CanaryWorld().with_policies(1, 2))
    operator.world.controller = await operator.controllers.controller(ROLE)
    await operator.world.until("running")
    yield People(operator)
    await operator.client.aclose()


async def test_promotion_waits_for_another_person_and_names_both(people: People) -> None:
    first = await people.post(ADA, "promote", OVERRIDE)
    assert (first.status_code, first.json()["state"]) == (202, "running")
    assert any("ada (key_0000000000)" in one for one in first.json()["waiting_for"])
    for again in (ADA, ADA_AGAIN):
        assert (await people.post(again, "promote", OVERRIDE)).status_code == 202
    assert await people.state() == "running"
    second = await people.post(BOB, "promote", OVERRIDE)
    assert (second.status_code, second.json()["state"]) == (200, "promoted")
    actor = people.operator.world.bus.published(ModelRollout)[-1].actor
    assert actor.startswith("bob (key_0000000001)")
    assert "asked by ada (key_000000000" in actor
    assert people.rule.waiting_for(ROLE) == []


async def test_second_person_gives_the_same_order_in_time(people: People) -> None:
    assert (await people.post(ADA, "promote", OVERRIDE)).status_code == 202
    named = {**OVERRIDE, "rollout_id": (await people.operator.get(f"/v1/rollouts/{ROLE}"))["rollout_id"]}
    assert (await people.post(BOB, "promote", named)).status_code == 200, "that of the newest rollout"
    assert await people.state() == "promoted"


async def test_order_about_a_rollout_that_is_over_promotes_no_other(people: People) -> None:
    assert (await people.post(ADA, "promote", OVERRIDE)).status_code == 202
    assert (await people.post(ADA, "rollback", ACT)).status_code == 200
    await people.operator.register(3)
    await people.operator.world.until("running")
    assert (await people.post(BOB, "promote", OVERRIDE)).status_code == 202, "Ada has not seen this one"
    assert await people.state() == "running"
    assert (await people.post(ADA, "promote", OVERRIDE)).status_code == 200


async def test_order_that_waited_too_long_is_forgotten(people: People) -> None:
    assert (await people.post(ADA, "promote", OVERRIDE)).status_code == 202
    people.now += WAITS + timedelta(seconds=1)
    assert people.rule.waiting_for(ROLE) == []
    assert (await people.post(BOB, "promote", OVERRIDE)).status_code == 202
    assert await people.state() == "running"


async def test_impossible_order_waits_for_nobody(people: People) -> None:
    assert (await people.post(ADA, "promote", ACT)).status_code == 409, "undecided"
    assert people.rule.waiting_for(ROLE) == []
    assert (await people.post(ANYONE, "promote", OVERRIDE)).status_code == 409, "no person is known"


@pytest.mark.parametrize("verb", ["pause", "rollback"])
async def test_what_takes_traffic_away_waits_for_nobody(people: People, verb: str) -> None:
    assert (await people.post(ADA, verb, ACT)).status_code == 200


async def test_override_of_a_start_takes_two(people: People) -> None:
    assert (await people.post(ADA, "rollback", ACT)).status_code == 200
    await people.operator.register(3)
    start = {**OVERRIDE, "version": 3}
    assert (await people.post(ADA, "start", {**start, "dry_run": True})).status_code == 200
    assert (await people.post(ADA, "start", start)).status_code == 202
    assert (await people.post(BOB, "start", start)).status_code == 200
