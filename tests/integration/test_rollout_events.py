"""How a rollout reads a real broker: every message that is lost behind its places is noticed."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import SUMMARY
from ratchet.bus.ordered_reader import BATCH, OrderedReader, fetch
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.domain.trajectories import Call, Event, Opinion, Score, Started
from ratchet.canary_deployer.nats_events import PORTION, EvidenceLost, NatsEvents, NatsEventSource, Places, Read
from ratchet.core.contract import Start, Turn, named_id
from ratchet.core.errors import BusUnavailable, NotFound
from ratchet.core.service.settings import SharedSettings
from tests.support.canary_world import complaint_of, reward_of
from tests.support.messages import turn
from tests.support.running import connected
from tests.support.servers import Broker

ROLE = "support"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


async def start(bus: Bus, number: int, role: str = ROLE) -> None:
    """Announce a trajectory."""
    policy = turn().policy
    await bus.publish(
        Start(trajectory_id=named_id(role, number), timestamp=bus.now(), policy=policy, role=role),
    )


async def read(events: NatsEvents, number: int) -> Places:
    """Read until `number` events came; the places after them."""
    seen = 0

    async def there() -> Places | None:
        nonlocal seen
        read_now = await events.next(0.1)
        seen += len(read_now.batch.events)
        return read_now.places if seen >= number else None

    places = await eventually(there)
    assert places is not None
    return places


async def test_a_stream_that_was_made_anew_under_a_rollout_is_noticed(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        begun = await NatsEventSource(bus).newest_places()
        events = await NatsEventSource(bus).open(ROLE, begun)
        await start(bus, 1)
        places = await read(events, 1)
        await bus.nc.jetstream().delete_stream("RL_STARTS")
        await bus.ensure_streams()
        for number in range(2, 5):
            await start(bus, number)

        async def noticed() -> bool:
            try:
                await events.next(0.1)
            except BusUnavailable:
                return True
            return False

        await eventually(noticed)
        await events.close()
        with pytest.raises(EvidenceLost, match="was made anew"):
            await NatsEventSource(bus).open(ROLE, places)


async def test_an_older_copy_of_a_stream_is_noticed(settings: SharedSettings) -> None:
    """The stream says that it is the same one, and ends before the rollout's place."""
    async with connected(settings) as bus:
        made = (await NatsEventSource(bus).newest_places()).streams_made
        await start(bus, 1)
        with pytest.raises(EvidenceLost, match="ends at 1"):
            await NatsEventSource(bus).open(ROLE, Places(5, 0, 0, 0, made))


async def test_messages_lost_behind_a_rollouts_place_raise_one_alert(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        begun = await NatsEventSource(bus).newest_places()
        for number in range(4):
            await start(bus, number)
        await bus.nc.jetstream().purge_stream("RL_STARTS", seq=3)
        for _ in range(2):
            events = await NatsEventSource(bus).open(ROLE, begun)
            assert (await read(events, 2)).start_seq == 4
            await events.close()
        assert (await bus.extent("RL_ALERTS")).last == 1


@pytest.mark.slow
async def test_a_backlog_is_read_in_portions_and_is_not_taken_for_a_loss(
    settings: SharedSettings,
) -> None:
    """A full request is answered with a status of its own; a reader that took it for a loss would begin for ever."""
    async with connected(settings) as bus:
        count = 3 * PORTION
        policy = turn().policy
        ids = [named_id(ROLE, number) for number in range(count)]
        starts = [Start(trajectory_id=one, timestamp=bus.now(), policy=policy, role=ROLE) for one in ids]
        await bus.publish_all(starts)
        await bus.publish(reward_of(ids[0], success=True))
        events = await NatsEventSource(bus).open(ROLE, Places())
        reads: list[Read] = []
        while not reads or reads[-1].places.reward_seq == 0:
            reads.append(await events.next(0.1))
        handed_out = [event for one in reads for event in one.batch.events]
        assert (len(handed_out), isinstance(handed_out[-1], Score)) == (count + 1, True)
        assert max(len(one.batch.events) for one in reads) <= PORTION + BATCH
        assert [one.batch.as_of > 0 for one in reads] == [False] * (len(reads) - 1) + [True]
        await events.close()


async def test_rewards_that_the_broker_has_and_does_not_send_are_noticed(settings: SharedSettings) -> None:
    """Else a reader that lost its deliveries would look like a role without outcomes, for ever."""
    async with connected(settings) as bus:
        events = await NatsEventSource(bus).open(ROLE, Places())
        (reader,) = await bus.nc.jetstream().consumers_info("RL_REWARDS")
        paused = {"pause_until": (bus.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")}
        await bus.nc.request(f"$JS.API.CONSUMER.PAUSE.RL_REWARDS.{reader.name}", json.dumps(paused).encode())
        await bus.publish(reward_of(named_id(ROLE, 1), success=True))

        async def noticed() -> str | None:
            try:
                read_now = await events.next(0.1)
            except BusUnavailable as error:
                return str(error)
            assert not read_now.batch.events
            return None

        assert await eventually(noticed) == "RL_REWARDS holds messages that do not come: reading again"
        await events.close()
        again = await NatsEventSource(bus).open(ROLE, Places())
        assert (await read(again, 1)).reward_seq == 1
        await again.close()


async def test_opinions_come_behind_starts_with_the_time_of_the_broker(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        events = await NatsEventSource(bus).open(ROLE, Places())
        await start(bus, 1)
        await bus.publish(complaint_of(named_id(ROLE, 1)))
        await bus.publish(
            msgspec.structs.replace(complaint_of(named_id(ROLE, 1)), rater="ann", feedback_id=named_id("another"))
        )
        seen: list[Event] = []

        async def both_came() -> Read | None:
            read_now = await events.next(0.1)
            seen.extend(read_now.batch.events)
            return read_now if read_now.places.feedback_seq == 2 else None

        last = await eventually(both_came)
        assert last is not None
        stored = (await bus.nc.jetstream().get_msg("RL_FEEDBACK", 1)).time
        assert stored is not None
        announced, opinion = seen
        assert isinstance(announced, Started)
        assert isinstance(opinion, Opinion)
        assert (opinion.trajectory_id, opinion.bad) == (announced.trajectory_id, True)
        assert opinion.at == pytest.approx(stored.timestamp(), abs=1e-3)
        await events.close()


async def test_places_move_over_events_of_other_roles(settings: SharedSettings) -> None:
    """Else what other roles did would never be trimmed, or its trimming would look like a loss."""
    async with connected(settings) as bus:
        await start(bus, 1)
        for number in range(3):
            await start(bus, number, role="planner")
        events = await NatsEventSource(bus).open(ROLE, Places())
        assert (await read(events, 1)).start_seq == 4
        await events.close()


async def test_turns_come_from_their_headers_and_without_one_from_their_bodies(settings: SharedSettings) -> None:
    """The second call's gateway is older than summaries, and the third one's says something that is none."""
    async with connected(settings) as bus:
        sent = [turn("one", index, latency_ms=10.0 * (index + 1), role=ROLE) for index in range(3)]
        records = [bus.seal(one) for one in sent]
        for index, record in enumerate(records):
            headers = {name: text for name, text in record.headers.items() if index == 0 or name != SUMMARY}
            headers |= {SUMMARY: "{}"} if index == 2 else {}
            await bus.publish_record(msgspec.structs.replace(record, headers=headers))
        events = await NatsEventSource(bus).open(ROLE, Places())
        seen: list[Event] = []

        async def all_came() -> bool:
            seen.extend((await events.next(0.1)).batch.events)
            return len(seen) == len(sent)

        await eventually(all_came)
        assert [call for call in seen if isinstance(call, Call)] == seen
        assert [call.latency_ms for call in seen if isinstance(call, Call)] == [10.0, 20.0, 30.0]
        assert all(call.at > 0 for call in seen)
        await events.close()


async def test_a_turn_whose_body_is_gone_before_it_is_fetched_is_skipped(settings: SharedSettings) -> None:
    async with connected(settings) as bus:
        record = bus.seal(turn("one", 0, role=ROLE))
        await bus.publish_record(msgspec.structs.replace(record, headers={}))
        await bus.publish(turn("one", 1, role=ROLE))
        reader = OrderedReader(bus, "RL_TURNS", headers_only=True)
        await reader.open()
        first, second = await reader.next(5.0)
        await bus.nc.jetstream().delete_msg("RL_TURNS", 1)
        with pytest.raises(NotFound, match="no longer holds 1"):
            await fetch(bus, first)
        assert isinstance(bus.read(await fetch(bus, second))[0].message, Turn)
        await reader.close()
