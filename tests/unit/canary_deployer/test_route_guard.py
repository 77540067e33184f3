"""Routes that another program has written are set back to what was decided, and alerted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeClock, eventually
from ratchet.canary_deployer.domain.decisions import new_rollout
from ratchet.canary_deployer.domain.rollout import ITSELF, Decision, Verdict
from ratchet.canary_deployer.domain.serving import decided_route
from ratchet.canary_deployer.route_guard import RouteGuard
from ratchet.core.contract import Alert, ModelRollout
from ratchet.core.contract.state import POLICIES, ROLLOUTS, Route
from tests.support.canary_world import ROLE, CanaryWorld, policy, served
from tests.support.running import running


@asynccontextmanager
async def guarded(world: CanaryWorld) -> AsyncIterator[Bucket[msgspec.Raw]]:
    """The bucket of routes, as anybody with its right may write it, while the guard looks at it."""
    routes = Bucket(world.bus, POLICIES, msgspec.Raw)
    async with running(RouteGuard(routes, lambda _: world.controller, world.bus.publish, world.clock)):
        yield routes


def alerts_of(world: CanaryWorld) -> list[Alert]:
    """Those that say that a route was set back."""
    return [alert for alert in world.bus.published(Alert) if alert.key == f"route-set-back:{ROLE}"]


async def set_back_to(world: CanaryWorld, route: Route) -> list[Alert]:
    """The alerts by the time at which the role's route is this one again."""

    async def probe() -> bool:
        entry = await Bucket(world.bus, POLICIES, msgspec.Raw).get(ROLE)
        assert entry is not None
        return bytes(entry.value) == msgspec.json.encode(route)

    await eventually(probe)
    return alerts_of(world)


async def test_forged_route_is_alerted_and_set_back() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    before = await world.route()
    assert before.canary is not None
    heavier = msgspec.structs.replace(before.canary, schedule=[])
    forged = [
        msgspec.json.encode(msgspec.structs.replace(before, stable=served(2))),
        msgspec.json.encode(msgspec.structs.replace(before, canary=heavier)),
        msgspec.json.encode(msgspec.structs.replace(before, audit_hash="0" * 64)),
        b'"no route"',
    ]
    async with guarded(world) as routes:
        for number, value in enumerate(forged, 1):
            world.clock.advance(0.5)
            await routes.put(ROLE, msgspec.Raw(value))
            await eventually(lambda number=number: _has(world, number))
            after = await world.route()
            assert (after.stable, after.audit_hash) == (before.stable, before.audit_hash)
            assert after.canary is not None
            assert after.canary.schedule == before.canary.schedule
    alert = alerts_of(world)[0]
    assert (alert.severity, alert.role) == ("critical", ROLE)
    assert "another program wrote" in alert.summary


async def _has(world: CanaryWorld, alerts: int) -> bool:
    published = len(alerts_of(world)) == alerts
    entry = await Bucket(world.bus, POLICIES, msgspec.Raw).get(ROLE)
    assert entry is not None
    rollout = await world.rollout()
    try:
        route = msgspec.json.decode(bytes(entry.value), type=Route)
    except msgspec.DecodeError:
        return False
    return published and route == decided_route(route, rollout)


async def test_route_of_a_role_without_a_rollout_is_set_back() -> None:
    world = CanaryWorld()
    async with guarded(world) as routes:
        await routes.put(ROLE, msgspec.Raw(msgspec.json.encode(Route(role=ROLE, stable=served(7)))))
        assert len(await set_back_to(world, Route(role=ROLE))) == 1


async def test_stable_policy_without_a_rollout_stays() -> None:
    world = await CanaryWorld().with_policies(1)
    async with guarded(world) as routes:
        forged = msgspec.structs.replace(await world.route(), previous=served(1))
        await routes.put(ROLE, msgspec.Raw(msgspec.json.encode(forged)))
        assert len(await set_back_to(world, Route(role=ROLE, stable=served(1), next_version=2))) == 1


NEW = new_rollout(policy(2), served(1), None, Decision(Verdict.START, "registered", ITSELF), FakeClock()())
OUTBOX = [{"topic": ModelRollout.TOPIC, "body": "{}"}]
UNREADABLE = msgspec.json.encode(msgspec.to_builtins(NEW) | {"role": "broken", "outbox": OUTBOX})


@pytest.mark.parametrize("record", [b"{", UNREADABLE], ids=["no_json", "its_announcement"])
async def test_role_whose_rollout_cannot_be_read_holds_up_no_other(record: bytes) -> None:
    world = CanaryWorld()
    broken = world.new_controller(role="broken")
    controllers = {"broken": broken, ROLE: world.controller}
    await Bucket(world.bus, ROLLOUTS, msgspec.Raw).put("broken", msgspec.Raw(record))
    routes = Bucket(world.bus, POLICIES, msgspec.Raw)
    async with running(RouteGuard(routes, controllers.get, world.bus.publish, world.clock)):
        forged = Route(role="broken", stable=served(7), audit_hash="0" * 64)
        await routes.put("broken", msgspec.Raw(msgspec.json.encode(forged)))
        await routes.put(ROLE, msgspec.Raw(msgspec.json.encode(Route(role=ROLE, stable=served(7)))))
        assert len(await set_back_to(world, Route(role=ROLE))) == 1


async def test_route_that_the_deployer_writes_itself_is_never_set_back() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    for _ in range(40):
        await world.controller.step()
        await world.play(20, 0.9, 0.2)
        world.clock.advance(6)
        rollout, route = await world.rollout(), await world.route()
        if not rollout.outbox:
            assert route == decided_route(route, rollout)
        if not rollout.active:
            break
    assert (await world.rollout()).state == "rolled_back"
