"""The containers stop while agents work, and come back: as they were, and as a later version over the same volumes."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

import pytest

from tests.chaos.balance import settled
from tests.chaos.traffic import Traffic
from tests.chaos.world import World
from tests.compose.engine import LASTING, OURS, PATIENCE_S, RUN, VENDORS, Engine
from tests.compose.loop import (
    ROLE,
    Agent,
    acknowledged_more,
    agents_at_work,
    policy_answers,
    record_tickets,
    status,
    train,
)

pytestmark = pytest.mark.timeout(7200)
LATER = "0.1.1"


def depth(name: str) -> int:
    """How many containers have to be there before this one, one after the other."""
    return max((1 + depth(needed) for needed in RUN[name].get("depends_on", {}) if needed in RUN), default=0)


def stop_in_order(engine: Engine) -> None:
    """As docker compose does it, and podman-compose does not: nothing stops before what depends on it."""
    for _, names in groupby(sorted(LASTING, key=depth, reverse=True), depth):
        engine.compose("stop", *names)


async def nothing_is_lost(traffic: Traffic) -> None:
    """Return once all that was acknowledged is stored, once each, and rewarded. Raises `Stalled`."""
    await acknowledged_more(traffic)
    traffic.working.clear()
    traffic.world.say(str(dict((await settled(traffic.world, traffic)).figures)))


async def made(world: World) -> dict[str, Any]:
    """Streams and buckets that the broker keeps on disk, tables: when each was made, and how it is set up."""
    streams = await world.connection.jetstream(timeout=PATIENCE_S).streams_info()
    tables = await world.warehouse.rows(
        "SELECT name, uuid, create_table_query FROM system.tables WHERE database = 'default'"
    )
    return {str(one.config.name): (one.created, one.config) for one in streams if one.config.storage == "file"} | {
        one["name"]: one for one in tables
    }


async def test_stop_ends_each_program_well_and_loses_nothing(
    engine: Engine, agent: Agent, looped: dict[str, Any]
) -> None:
    assert looped["roles"]
    async with agents_at_work(engine, agent) as traffic:
        await asyncio.to_thread(stop_in_order, engine)
        ended = {name: one["State"] for name, one in engine.containers().items() if name in LASTING}
        await asyncio.to_thread(engine.up)
        await nothing_is_lost(traffic)

    assert {state["Status"] for state in ended.values()} == {"exited"}
    ours = set(LASTING) - VENDORS
    assert {name: ended[name]["ExitCode"] for name in ours} == dict.fromkeys(ours, 0)
    assert [name for name, state in ended.items() if state["ExitCode"] == 137] == []  # ended by force


async def test_later_version_goes_on_with_the_data_of_the_earlier_one(
    engine: Engine, agent: Agent, looped: dict[str, Any]
) -> None:
    async with agents_at_work(engine, agent) as traffic:
        before = await made(traffic.world)
        await asyncio.to_thread(engine.compose, "down")
        await asyncio.to_thread(engine.build, ["broker_users"], f"--build-arg=VERSION={LATER}")
        await asyncio.to_thread(engine.up)
        await nothing_is_lost(traffic)
        assert await made(traffic.world) == before
    containers = engine.containers()
    labels = {
        name: containers[name]["Config"]["Labels"] for name, one in RUN.items() if f"localhost/{one['image']}" == OURS
    }
    assert {of["org.opencontainers.image.version"] for of in labels.values()} == {LATER}
    await policy_answers(engine)
    assert (await status(engine))["roles"][ROLE]["stable"] == looped["roles"][ROLE]["stable"]

    await record_tickets(engine, agent)
    train(engine)
    assert [job["state"] for job in (await status(engine))["jobs"]] == ["completed", "completed"]
