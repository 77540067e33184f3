"""The messages that the trimmer must keep: the broker and other services' records name their readers."""

from __future__ import annotations

import msgspec
import pytest
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.manager import JetStreamManager

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.projection import Cursor
from ratchet.canary_deployer.domain.rollout import WITH_TRAFFIC, Rollout, State
from ratchet.core.contract import Start, named_id
from ratchet.core.contract.state import ROLLOUTS, ServedPolicy
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.nats_readers import READING, NatsReaders
from ratchet.trajectory_collector.nats_streams import Streams
from tests.support.canary_world import complaint_of
from tests.support.messages import AT, trajectory, turn
from tests.support.running import connected
from tests.support.servers import Broker

SERVED = ServedPolicy(version=2, digest="b" * 64, name="support@2")


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


async def start(bus: Bus, role: str, number: int) -> None:
    await bus.publish(Start(trajectory_id=named_id(role, number), timestamp=bus.now(), policy=turn().policy, role=role))


async def rollout(bus: Bus, state: State, **places: int) -> None:
    """The record of a rollout of the role `support`."""
    record = Rollout(
        rollout_id="r", role="support", state=state, candidate=SERVED, created_at=AT, actor="test", **places
    )
    await Bucket(bus, ROLLOUTS, Rollout).put("support", record)


async def test_nothing_is_kept_for_a_reader_that_is_optional(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        await bus.publish(turn())
        await bus.pull("RL_TURNS", ConsumerConfig(durable_name="spans-turns"), batch=1, linger_s=0.0).open()
        read = await NatsReaders(bus, Streams(bus), []).read_up_to("RL_TURNS")
        assert read == {"collector-turns": 0}


async def test_a_count_of_the_broker_that_is_late_hides_no_message(
    settings: SharedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the acknowledgement: what the broker answered a moment ago, it may answer now."""
    async with connected(settings) as bus:
        stream, jetstream = "RL_TURNS", bus.nc.jetstream()
        await bus.pull(stream, ConsumerConfig(durable_name="collector-turns"), batch=1, linger_s=0.0).open()
        before = await jetstream.consumers_info(stream)
        await bus.publish(turn())

        async def late(self: JetStreamManager, stream: str) -> list[ConsumerInfo]:
            return before

        assert (await Streams(bus).settled_by(stream))["collector-turns"] == 0
        monkeypatch.setattr(JetStreamManager, "consumers_info", late)
        assert (await Streams(bus).settled_by(stream))["collector-turns"] == 0


def test_every_state_with_traffic_reads() -> None:
    assert {str(state) for state in WITH_TRAFFIC} <= READING


@pytest.mark.parametrize(("read", "needed_after"), [(0, 1), (2, 2), (3, 4)])
async def test_a_rollout_under_way_keeps_the_starts_that_it_has_not_read(
    settings: SharedSettings, read: int, needed_after: int
) -> None:
    """Starts 1 and 4 are another role's. A rollout that has read none has no place in its record."""
    async with connected(settings) as bus:
        for role, number in (("planner", 1), ("support", 1), ("support", 2), ("planner", 2)):
            await start(bus, role, number)
        readers = NatsReaders(bus, Streams(bus), [])
        await rollout(bus, State.RUNNING, start_seq=read)
        assert (await readers.read_up_to("RL_STARTS"))["the rollout of support"] == needed_after
        await rollout(bus, State.PROMOTED, start_seq=read)
        assert "the rollout of support" not in await readers.read_up_to("RL_STARTS")


async def test_a_rollout_under_way_keeps_the_feedback_that_it_has_not_read(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        await bus.publish_all([complaint_of(named_id("support", number)) for number in range(3)])
        await rollout(bus, State.RUNNING, feedback_seq=2)
        readers = NatsReaders(bus, Streams(bus), [])
        assert (await readers.read_up_to("RL_FEEDBACK"))["the rollout of support"] == 2


@pytest.mark.parametrize("body", [b'{"state": "\xff"}', b'{"beside": ' + b"[" * 100_000, b"null", b'{"state": 7}'])
async def test_rollout_whose_record_cannot_be_read_keeps_everything_of_its_role(
    settings: SharedSettings, body: bytes
) -> None:
    async with connected(settings) as bus:
        for role, number in (("planner", 1), ("support", 1), ("planner", 2)):
            await start(bus, role, number)
        await Bucket(bus, ROLLOUTS, msgspec.Raw).create("support", msgspec.Raw(body))
        applied = await NatsReaders(bus, Streams(bus), []).read_up_to("RL_STARTS")
        assert applied["the rollout of support"] == 1


async def test_a_projection_keeps_the_messages_that_it_has_not_folded(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(n)) for n in range(5)])
        readers = NatsReaders(bus, Streams(bus), [])
        assert (await readers.read_up_to("RL_TRAJECTORIES"))["turn-history"] == 0
        await Bucket(bus, "baselines", Cursor).put("cursor-turn-history", Cursor(3))
        assert (await readers.read_up_to("RL_TRAJECTORIES"))["turn-history"] == 3
        without = NatsReaders(bus, Streams(bus), ["reward_computer"])
        assert "turn-history" not in await without.read_up_to("RL_TRAJECTORIES")
