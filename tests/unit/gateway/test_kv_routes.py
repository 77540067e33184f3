"""Following routes: an unreadable entry concerns its own role alone, the check names it, and a good value heals it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus, eventually
from ratchet.core.contract.state import POLICIES, Route
from ratchet.core.errors import NotFound, Unavailable
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_routes import Routes
from tests.support.fake_bus import fake_bus
from tests.support.gateway_scene import canary_route, put_routes, served, version

UNREADABLE = [b"no json", b'{"role": "\xff"}', b'{"role": 7}', b"[" * 5000]


@asynccontextmanager
async def following(bus: Any, folder: Path, *, monotonic: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Routes]:
    async def connect() -> Any:
        return bus

    routes = Routes(connect, folder, lease_s=20.0, monotonic=monotonic, bundles=Bundles(lambda: None, folder))
    running = asyncio.create_task(routes.run())
    try:
        yield routes
    finally:
        await routes.stop()
        await running


async def put_stored(bus: FakeBus, key: str, stored: bytes) -> None:
    await Bucket(bus, POLICIES, msgspec.Raw).put(key, msgspec.Raw(stored))


async def until_served(routes: Routes, role: str, number: int) -> None:
    async def probe() -> bool:
        route = routes.get_route(role)
        return route is not None and route.stable is not None and route.stable.version == number

    await eventually(probe)


async def until_nothing_is_wrong(routes: Routes) -> None:
    async def probe() -> bool:
        return await routes.check() is None

    await eventually(probe)


async def test_routes_are_ready_once_they_were_read_also_when_there_are_none(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        assert await routes.ready() == (
            "the gateway has not read the routes yet, and none are on disk: it waits for the broker"
        )

        async def ready() -> bool:
            return await routes.ready() is None

        await eventually(ready)


@pytest.mark.parametrize("stored", UNREADABLE)
async def test_unreadable_route_stops_no_other_and_is_named_by_the_check(tmp_path: Path, stored: bytes) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, broken=1, support=1)
        await until_served(routes, "broken", 1)
        await put_stored(bus, "broken", stored)
        await put_routes(bus, support=2)
        await until_served(routes, "support", 2)
        assert routes.get_route("broken").stable == served(1, "broken")  # type: ignore[union-attr]
        assert (await routes.check() or "").startswith("broken cannot be read")
        await put_routes(bus, broken=3)
        await until_served(routes, "broken", 3)
        assert await routes.check() is None


@pytest.mark.parametrize("stored", UNREADABLE)
async def test_an_unreadable_version_stops_no_other(tmp_path: Path, stored: bytes) -> None:
    bus: Any = fake_bus()
    await put_stored(bus, "support.2", stored)
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1)
        await until_served(routes, "support", 1)
        with pytest.raises(Unavailable, match=r"support\.2 cannot be read"):
            await routes.version("support", 2)
        assert (await routes.version("support", 1)).name == version(1).name
        assert routes.newest("support", "dpo") is None
        assert "support.2 cannot be read" in (await routes.check() or "")
        await put_stored(bus, "support.2", msgspec.json.encode(version(2)))
        await until_nothing_is_wrong(routes)
        assert (await routes.version("support", 2)).name == version(2).name


async def test_the_check_no_longer_names_an_unreadable_version_that_was_deleted(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await put_stored(bus, "support.2", b"no json")
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1)
        await until_served(routes, "support", 1)
        with pytest.raises(Unavailable):
            await routes.version("support", 2)
        await Bucket(bus, POLICIES, msgspec.Raw).delete("support.2")
        await until_nothing_is_wrong(routes)
        with pytest.raises(NotFound):
            await routes.version("support", 2)


async def test_route_serves_its_stable_policy_also_when_version_is_unreadable(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    async with following(bus, tmp_path) as routes:
        await put_routes(bus, support=1, planner=1)
        await put_stored(bus, "support.1", b"no json")
        await until_served(routes, "support", 1)
        await until_served(routes, "planner", 1)
        assert "support.1 cannot be read" in (await routes.check() or "")


async def offer_canary(bus: FakeBus, lease: int) -> None:
    route = Route(role="support", stable=served(1), next_version=3, canary=canary_route(lease=lease))
    await Bucket(bus, POLICIES, Route).put("support", route)


async def until_lease(routes: Routes, lease: int) -> None:
    async def probe() -> bool:
        route = routes.get_route("support")
        return route is not None and route.canary is not None and route.canary.lease == lease

    await eventually(probe)


async def test_at_each_start_canary_of_dead_deployer_has_lapsed_until_renewal(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await offer_canary(bus, lease=7)
    for _ in range(2):
        async with following(bus, tmp_path) as routes:
            await until_lease(routes, 7)
            assert routes.has_lapsed("support") is True
    async with following(bus, tmp_path) as routes:
        await until_lease(routes, 7)
        await offer_canary(bus, lease=8)
        await until_lease(routes, 8)
        assert routes.has_lapsed("support") is False


async def test_a_canary_that_begins_while_the_gateway_follows_is_served_at_once(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await put_routes(bus, support=1)
    async with following(bus, tmp_path) as routes:
        await until_served(routes, "support", 1)
        await offer_canary(bus, lease=1)
        await until_lease(routes, 1)
        assert routes.has_lapsed("support") is False


async def test_gateway_names_a_lease_without_renewals_and_waits_for_no_deployer(
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


async def test_a_role_that_left_the_bucket_while_a_gateway_was_away_is_forgotten(tmp_path: Path) -> None:
    bus: Any = fake_bus()
    await put_routes(bus, support=1, mistyped=1)
    async with following(bus, tmp_path) as routes:
        await until_served(routes, "mistyped", 1)
    for key in ("mistyped", "mistyped.1"):
        await Bucket(bus, POLICIES, msgspec.Raw).delete(key)
    (tmp_path / f"{'f' * 64}.json").write_bytes(b"{}")
    async with following(bus, tmp_path) as routes:

        async def forgotten() -> bool:
            return routes.get_route("mistyped") is None

        await until_served(routes, "support", 1)
        await eventually(forgotten)
        with pytest.raises(NotFound):
            await routes.version("mistyped", 1)
    assert not (tmp_path / f"{'f' * 64}.json").exists()
