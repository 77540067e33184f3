"""Projections on a real broker: each folds every event once, and reports every message that it lacks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.projection import Cursor, Position, Projection, positions, project
from ratchet.bus.received import Received
from ratchet.bus.tasks import SHARE_S, end
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Message, Trajectory
from ratchet.core.service.settings import SharedSettings
from tests.support.consuming import messages_of, projecting
from tests.support.messages import trajectory
from tests.support.running import connected, running
from tests.support.servers import Broker, RunningServer

STREAM = "RL_TRAJECTORIES"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


def sessions(bus: Bus, name: str = "sessions") -> Projection[list[str]]:
    """Folds the names of trajectories into one list per role; fails on one that is called `poison`."""

    def step(state: list[str] | None, received: Received[Message]) -> list[str]:
        assert isinstance(received.message, Trajectory)
        name = received.message.session_id.removeprefix("session-")
        if name == "poison":
            raise ZeroDivisionError
        return [*(state or []), name]

    return projecting(
        bus,
        name,
        Trajectory,
        kind=list[str],
        key_of=lambda received: received.message.role if isinstance(received.message, Trajectory) else None,
        step=step,
    )


async def publish(bus: Bus, names: Sequence[str], take: str = "") -> None:
    """Publish, `take` by `take` under new message ids: as if the broker had forgotten the first time."""
    for name in names:
        await bus.publish_record(bus.seal(trajectory(name)).with_message_id(f"{take}{name}"))


async def folded(projection: Projection[Any], expected: Sequence[str]) -> None:
    async def there() -> bool:
        return projection.state("support") == list(expected)

    await eventually(there)


async def alerts(bus: Bus) -> list[str]:
    """Those of projections."""
    every = await messages_of(bus, Alert)
    return [alert.summary for alert in every if alert.key.startswith("projection-")]


async def test_an_event_that_the_broker_stored_twice_is_folded_once(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        first = sessions(bus)
        async with running(first):
            await publish(bus, "abc")
            await publish(bus, "cbd", take="again")
            await folded(first, "abcd")
        second = sessions(bus)
        async with running(second):
            await publish(bus, "ade", take="after a restart")
            await folded(second, "abcde")
            assert await second.check() is None
        assert await alerts(bus) == []


async def test_message_that_cannot_be_folded_is_left_out_alone(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        projection = sessions(bus)
        async with running(projection):
            await publish(bus, ["a", "poison", "b"])
            await folded(projection, "ab")
            await projection.wait_for(3)
            assert projection.state("support") == ["a", "b"]


async def test_messages_gone_before_they_were_read_are_reported_once(
    settings: SharedSettings,
) -> None:
    async with connected(settings) as bus:
        async with running(projection := sessions(bus)):
            await publish(bus, "abc")
            await folded(projection, "abc")
        await publish(bus, "def")
        await bus.nc.jetstream().purge_stream(STREAM, seq=6)
        async with running(projection := sessions(bus)):
            await folded(projection, "abcf")
            assert "lacks messages" in (await projection.check() or "")
            (alert,) = await alerts(bus)
            assert "begins at 6: up to 2 messages after 3 are gone" in alert
        async with running(projection := sessions(bus)):  # alerted once: the loss is in the cursor
            await publish(bus, "g")
            await folded(projection, "abcfg")
            assert await projection.check() is None
        assert len(await alerts(bus)) == 1
        cursor = await Bucket(bus, "baselines", Cursor).get("cursor-sessions")
        assert cursor is not None
        assert (cursor.value.sequence, cursor.value.lost) == (7, 2)


async def test_a_stream_that_was_made_anew_is_noticed_by_a_projection_that_runs(settings: SharedSettings) -> None:
    async with connected(settings) as bus, running(projection := sessions(bus)):
        await publish(bus, "abc")
        await folded(projection, "abc")
        await bus.nc.jetstream().delete_stream(STREAM)
        await bus.ensure_streams()
        await publish(bus, "cde", take="anew")
        await folded(projection, "abcde")
        assert "lacks messages" in (await projection.check() or "")
        assert "made anew" in (await alerts(bus))[0]


async def test_folds_since_the_last_cursor_are_known_in_a_stream_made_anew(
    settings: SharedSettings,
) -> None:
    async with connected(settings) as bus:
        projection = sessions(bus)
        reading = asyncio.create_task(projection.run())
        await publish(bus, "a")
        await folded(projection, "a")  # the cursor is stored now, and not again for the next messages
        await publish(bus, "bc")
        await folded(projection, "abc")
        # It starts over as after an error: nothing more is stored. Python 3.11 may lose a cancellation that meets a
        # result.
        while not reading.done():
            reading.cancel()
            await asyncio.wait([reading], timeout=1.0)
        await bus.nc.jetstream().delete_stream(STREAM)
        await bus.ensure_streams()
        await publish(bus, "cde", take="anew")
        async with running(projection):
            await folded(projection, "abcde")
            assert projection.sequence("support") == 3


async def test_stream_that_was_made_anew_is_noticed_by_a_projection_that_starts(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        async with running(projection := sessions(bus)):
            await publish(bus, "abc")
            await folded(projection, "abc")
        await bus.nc.jetstream().delete_stream(STREAM)
        await bus.ensure_streams()
        await publish(bus, "defgh", take="anew")
        async with running(projection := sessions(bus)):
            await folded(projection, "abcdefgh")
            assert "lacks messages" in (await projection.check() or "")
        (alert,) = await alerts(bus)
        assert "made anew" in alert


async def test_stream_restored_from_an_older_copy_is_noticed(
    settings: SharedSettings,
) -> None:
    """Its creation time stays, and it ends before the last folded message."""
    async with connected(settings) as bus:
        async with running(projection := sessions(bus)):
            await publish(bus, "abc")
            await folded(projection, "abc")
        cursors = Bucket(bus, "baselines", Cursor)
        cursor = await cursors.get("cursor-sessions")
        assert cursor is not None
        await cursors.put("cursor-sessions", msgspec.structs.replace(cursor.value, sequence=9))
        async with running(projection := sessions(bus)):
            await publish(bus, "de")
            await folded(projection, "abcde")
            assert "lacks messages" in (await projection.check() or "")
        (alert,) = await alerts(bus)
        assert "restored from an older copy" in alert


@pytest.mark.own_broker
async def test_a_broker_that_lost_everything_is_followed_from_the_beginning(
    settings: SharedSettings, nats: RunningServer, tmp_path: Path
) -> None:
    async with connected(settings) as bus, running(projection := sessions(bus)):
        await publish(bus, "abc")
        await folded(projection, "abc")
        lost = await bus.extent(STREAM)
        await asyncio.to_thread(nats.kill)
        shutil.rmtree(tmp_path / "nats" / "jetstream")
        await asyncio.to_thread(nats.start)

        async def made_anew() -> bool:
            return bus.nc.is_connected and (await bus.extent(STREAM)).made != lost.made

        await eventually(lambda: _patiently(made_anew))
        await publish(bus, "xy")

        async def all_folded() -> list[str] | None:
            """Its states were in the broker too, and what that had acknowledged is published again."""
            names = projection.state("support") or []
            return names if len(names) >= 5 else None

        assert sorted(await eventually(all_folded)) == list("abcxy")


async def test_positions_name_every_projection_and_skip_messages_none_folds(
    settings: SharedSettings,
) -> None:
    async with connected(settings) as bus:
        projection = project(
            bus, "preferences", kind=int, key_of=lambda _: "all", step=lambda state, _: (state or 0) + 1
        )
        for number in range(3):
            await bus.nc.jetstream().publish("agent.rl.feedback.v1", b"{}", headers={"Nats-Msg-Id": str(number)})
        async with running(projection):

            async def there() -> bool:
                return any(position.sequence == 3 for position in await positions(bus))

            await eventually(there)
        named = {position.projection: position for position in await positions(bus)}
        made = (await bus.extent("RL_FEEDBACK")).made
        assert named.keys() == bus.contracts.projections.keys()
        assert named["preferences"] == Position("preferences", "RL_FEEDBACK", 3, made, 0)
        assert named["rewarded"] == Position("rewarded", "RL_REWARDS", 0, "", 0)


async def test_a_projection_lets_others_work_while_it_folds_a_long_batch(settings: SharedSettings) -> None:
    turns = 0
    at: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def step(state: int | None, _: Received[Message]) -> int:
        at.append(turns)
        time.sleep(1.2 * SHARE_S)
        return (state or 0) + 1

    async with connected(settings) as bus:
        await publish(bus, "abcdefgh")
        working = asyncio.create_task(others())
        projection = projecting(bus, "counted", Trajectory, kind=int, step=step)
        async with running(projection):
            await eventually(lambda: _is_folded(projection, 8))
        await end(working)
        assert len({*at}) == 8


async def _is_folded(projection: Projection[int], number: int) -> bool:
    return projection.state("all") == number


async def _patiently(probe: Any) -> bool:
    try:
        return await probe()
    except Exception:  # noqa: BLE001 - the broker is on its way
        return False
