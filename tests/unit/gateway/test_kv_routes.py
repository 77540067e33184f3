"""Routes as they are followed: what cannot be read concerns its own role alone, is named, and heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.testing import FakeBus, eventually
from ratchet.contract.state import POLICIES, Route
from ratchet.errors import NotFound, Unavailable
from ratchet.gateway.kv_routes import Routes
from tests.support.fake_bus import fake_bus
from tests.support.gateway_scene import canary_route, put_routes, served, version

UNREADABLE = [b"no json", b'{"role": "\xff"}', b'{"role": 7}', b"[" * 5000]


@asynccontextmanager
async def following(bus: Any, folder: Path, *, monotonic: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Routes]:
    async def connect() -> Any:
        return bus

    routes = Routes(connect, folder, lease_s=20.0, monotonic=monotonic)
    running = asyncio.create_task(routes.run())
    try:
        yield routes
    finally:
        await routes.stop()
        await running


async def put(bus: FakeBus, key: str, stored: bytes) -> None:
    await bus.bucket(POLICIES, msgspec.Raw).put(key, msgspec.Raw(stored))


async def until_served(routes: Routes, role: str, number: int) -> None:
    async def probe() -> bool:
        route = routes.get(role)
        return route is not None and route.stable is not None and route.stable.version == number

    await eventually(probe)


async def until_nothing_is_wrong(routes: Routes) -> None:
    async def probe() -> bool:
        return await routes.check() is None

    await eventually(probe)


async def test_routes_are_not_ready_before_they_were_looked_at_even_if_there_are_none(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        assert await routes.ready() == "the routes were not looked at yet, and none were kept"

        async def ready() -> bool:
            return await routes.ready() is None

        await eventually(ready)


@pytest.mark.parametrize("stored", UNREADABLE)
async def test_a_route_that_cannot_be_read_holds_up_no_other_and_is_named_until_it_is_put_right(
    tmp_path: Path, stored: bytes
) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, broken=1, support=1)
        await until_served(routes, "broken", 1)
        await put(bus, "broken", stored)
        await put_routes(bus, support=2)
        await until_served(routes, "support", 2)
        assert routes.get("broken").stable == served(1, "broken")  # type: ignore[union-attr]
        assert (await routes.check() or "").startswith("broken cannot be read")
        await put_routes(bus, broken=3)
        await until_served(routes, "broken", 3)
        assert await routes.check() is None


@pytest.mark.parametrize("stored", UNREADABLE)
async def test_a_version_that_cannot_be_read_is_no_other_versions_fault(tmp_path: Path, stored: bytes) -> None:
    bus: Any = fake_bus()
    await put(bus, "support.2", stored)
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1)
        await until_served(routes, "support", 1)
        with pytest.raises(Unavailable, match=r"support\.2 cannot be read"):
            await routes.version("support", 2)
        assert (await routes.version("support", 1)).name == version(1).name
        assert routes.newest("support", "dpo") is None
        assert "support.2 cannot be read" in (await routes.check() or "")
        await put(bus, "support.2", msgspec.json.encode(version(2)))
        await until_nothing_is_wrong(routes)
        assert (await routes.version("support", 2)).name == version(2).name


async def test_a_version_that_was_taken_away_is_no_longer_told(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await put(bus, "support.2", b"no json")
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1)
        await until_served(routes, "support", 1)
        with pytest.raises(Unavailable):
            await routes.version("support", 2)
        await bus.bucket(POLICIES, msgspec.Raw).delete("support.2")
        await until_nothing_is_wrong(routes)
        with pytest.raises(NotFound):
            await routes.version("support", 2)


async def test_a_stable_policy_whose_version_cannot_be_read_is_routed_all_the_same(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1, planner=1)
        await put(bus, "support.1", b"no json")
        await until_served(routes, "support", 1)
        await until_served(routes, "planner", 1)
        assert "support.1 cannot be read" in (await routes.check() or "")


async def offer_canary(bus: FakeBus, lease: int) -> None:
    route = Route(role="support", stable=served(1), next_version=3, canary=canary_route(lease=lease))
    await bus.bucket(POLICIES, Route).put("support", route)


async def until_lease(routes: Routes, lease: int) -> None:
    async def probe() -> bool:
        route = routes.get("support")
        return route is not None and route.canary is not None and route.canary.lease == lease

    await eventually(probe)


async def test_each_start_finds_a_dead_deployers_canary_lapsed_and_a_renewal_brings_it_to_life(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await offer_canary(bus, lease=7)
    for _ in range(2):
        async with following(bus, tmp_path) as routes:
            await until_lease(routes, 7)
            assert routes.lapsed("support") is True
    async with following(bus, tmp_path) as routes:
        await until_lease(routes, 7)
        await offer_canary(bus, lease=8)
        await until_lease(routes, 8)
        assert routes.lapsed("support") is False


async def test_a_canary_that_begins_while_the_gateway_looks_on_is_served_at_once(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await put_routes(bus, support=1)
    async with following(bus, tmp_path) as routes:
        await until_served(routes, "support", 1)
        await offer_canary(bus, lease=1)
        await until_lease(routes, 1)
        assert routes.lapsed("support") is False


async def test_a_gateway_does_not_wait_for_the_deployer_to_be_ready_but_tells_when_it_stays_silent(
    tmp_path: Path,
) -> None:
    bus: Any = fake_bus()
    now_s = [0.0]
    await offer_canary(bus, lease=7)
    async with following(bus, tmp_path, monotonic=lambda: now_s[0]) as routes:
        await until_lease(routes, 7)
        assert await routes.check() is None
        now_s[0] = 21.0
        assert await routes.check() == "canary lease lapsed, serving stable: support"
        await offer_canary(bus, lease=8)
        await until_lease(routes, 8)
        assert await routes.check() is None
