"""A broker that lost data while programs run: streams are made again, and publishers send again what they hold."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Message, Trajectory, encode
from ratchet.core.contract.state import BASELINES
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.errors import BusUnavailable, RatchetError
from ratchet.core.preferences.clickhouse_stored import Selection, StoredPreferences
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.integration.test_reward_computer import build, loop, opinions_in, rewards, schemas_met, settings_of
from tests.support.consuming import messages_of
from tests.support.messages import AT, trajectory
from tests.support.preferences import preferred
from tests.support.rewards import feedback, received
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.servers import Broker, RunningServer

STREAM = "RL_TRAJECTORIES"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


async def held(bus: Bus) -> set[str]:
    """The sessions of the trajectories that the stream has."""
    try:
        return {message.session_id for message in await messages_of(bus, Trajectory)}
    except RatchetError:
        return set()


def sessions(*numbers: int) -> set[str]:
    return {f"session-{number}" for number in numbers}


async def alert(bus: Bus, key: str) -> Alert | None:
    alerts = await messages_of(bus, Alert)
    return next((alert for alert in alerts if alert.key.startswith(key)), None)


@pytest.mark.own_broker
async def test_publisher_sends_again_what_a_restored_broker_lacks(
    settings: SharedSettings, nats: RunningServer, tmp_path: Path
) -> None:
    data = nats.program.directories[0] / "jetstream"
    async with connected(settings, "agents") as bus:
        await bus.publish_all([trajectory(str(number)) for number in range(3)])
        await asyncio.to_thread(nats.stop)
        shutil.copytree(data, tmp_path / "copy")
        await asyncio.to_thread(nats.start)
        await eventually(lambda: _true(bus.is_connected))
        await bus.publish_all([trajectory(str(number)) for number in range(3, 8)])
        await asyncio.to_thread(nats.stop)
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "copy", data)
        await asyncio.to_thread(nats.start)

        async def whole() -> bool:
            return await held(bus) == sessions(*range(8))

        await eventually(whole)
        reported = await eventually(lambda: alert(bus, f"published-again:{STREAM}:agents"))
        assert reported.severity == "warning"
        assert "came back as an older copy" in reported.summary


@pytest.mark.parametrize("gone", [STREAM, "RL_ALERTS"])
async def test_stream_that_is_deleted_is_made_again_and_reported(settings: SharedSettings, gone: str) -> None:
    async with connected(settings, "agents") as bus:
        await bus.publish_all([trajectory(str(number)) for number in range(3)])
        await bus.nc.jetstream().delete_stream(gone)
        reported = await eventually(lambda: _when_there(bus, f"made-again:{gone}"))
        assert gone in reported.summary

        async def whole() -> bool:
            return await held(bus) == sessions(0, 1, 2)

        await eventually(whole)


async def _when_there(bus: Bus, key: str) -> Alert | None:
    try:
        return await alert(bus, key)
    except RatchetError:
        return None


async def test_bucket_that_is_deleted_is_made_again_and_takes_values(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        bucket = Bucket(bus, BASELINES, int)
        await bucket.put("a", 1)
        await bus.nc.jetstream().delete_key_value(BASELINES)

        async def takes() -> bool:
            try:
                return await bucket.put("a", 2) > 0
            except RatchetError:
                return False

        await eventually(takes)
        assert await eventually(lambda: alert(bus, f"made-again:KV_{BASELINES}"))
        assert await bus.check() is None


async def _published(bus: Bus, message: Message) -> bool:
    """As producers do that hold what the broker does not take."""
    try:
        await bus.publish(message)
    except BusUnavailable:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["RL_FEEDBACK", f"KV_{BASELINES}", "RL_STORED"])
async def test_stream_deleted_under_traffic_costs_no_reward_and_no_opinion(
    shared_settings: SharedSettings, gone: str
) -> None:
    names = [str(number) for number in range(24)]
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        for place, name in enumerate(names):
            for message in (trajectory(name), feedback(1, name)):
                await eventually(partial(_published, bus, message))
            if place == len(names) // 2:
                await bus.nc.jetstream().delete_stream(gone)

        async def all_opinions() -> bool:
            newest = {reward.trajectory_id: reward for reward in await rewards(warehouse)}
            judged = [reward for reward in newest.values() if "user_feedback" in reward.reward_components]
            return [len(opinions_in(reward)) for reward in judged] == [1] * len(names)

        await eventually(all_opinions)
        await eventually(partial(schemas_met, bus))  # a bucket that was deleted is filled again
        first = [reward.trajectory_id for reward in await rewards(warehouse) if reward.revision == 0]
        assert sorted(first) == sorted(trajectory(name).trajectory_id for name in names)


async def test_newest_opinions_are_those_of_the_stream_made_anew(shared_settings: SharedSettings) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        for generation, sequence, value, at in (("old/0", 9, True, AT), ("new/0", 1, False, AT + timedelta(hours=1))):
            thumb = feedback(sequence, value=value, rater="ann")
            pair = preferred(generation, rater="ann")
            for message in (thumb, pair):
                delivered = replace(received(message, sequence), body=encode(message))
                row = row_of(TABLES[message.TOPIC], delivered, generation, at)
                await Facts(warehouse).insert(TABLES[message.TOPIC], [row])
        newest = Preferences(warehouse, 1)
        assert [thumb.up for thumb in await newest.thumbs("support")] == [False]
        assert [opinion.sequence for opinion in await newest.opinions("support")] == [1]
        pages = StoredPreferences(warehouse)
        (first,) = await pages.newest(Selection(), 1)
        (second,) = await pages.newest(Selection(), 1, first)
        assert (first.sequence, second.sequence) == (1, 9)


async def _true(value: object) -> bool:
    return bool(value)
