"""The reward computer with a real broker, warehouse and collector: rewards, revisions, restarts, replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from nats.js.errors import NotFoundError

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.bus.kv import Bucket
from ratchet.bus.projection import positions
from ratchet.bus.registry import Bounds
from ratchet.bus.testing import eventually
from ratchet.core.contract import DeadLetter, Message, Outcome, Reward, Trajectory, decode, named_id
from ratchet.core.contract.state import BASELINES
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer import app as reward_app
from ratchet.reward_computer.app import projections
from ratchet.reward_computer.settings import Settings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.consuming import messages_of
from tests.support.messages import trajectory
from tests.support.rewards import feedback
from tests.support.running import connected, prepared_warehouse, running, running_app
from tests.support.stored_values import check_buckets
from tests.unit.reward_computer.test_reward_components import turns

BRIEF = Bounds(ack_wait_s=2.0)
build = partial(reward_app.build, bounds=BRIEF)
QUICK = Tuning(ack_wait_s=2.0)


def settings_of(shared: SharedSettings, **changes: Any) -> Settings:
    fields: dict[str, Any] = {"linger_s": 0.02} | changes
    return Settings(shared=shared, **fields)


def collector_of(shared: SharedSettings) -> CollectorSettings:
    return CollectorSettings(shared=shared, linger_s=0.02)


@asynccontextmanager
async def loop(shared: SharedSettings) -> AsyncIterator[tuple[Bus, Warehouse]]:
    """Broker and warehouse made ready, and a collector that stores; at the end the baselines keep their contract."""
    collector = build_collector(collector_of(shared), tuning=QUICK)
    async with connected(shared) as bus, prepared_warehouse(shared) as warehouse, running_app(collector):
        yield bus, warehouse
        assert await eventually(partial(schemas_met, bus))


async def schemas_met(bus: Bus) -> set[str]:
    """The schemas of the baselines with a cursor among them; none until a bucket that a test deleted has one again."""
    try:
        met = await check_buckets(bus, BASELINES)
    except BusUnavailable:
        return set()
    return met if "cursor.v1" in met else set()


async def rewards(warehouse: Warehouse, name: str | None = None) -> list[Reward]:
    """The stored rewards, of one trajectory or of all, in order of revision."""
    rows = await warehouse.rows("SELECT body FROM rewards FINAL ORDER BY trajectory_id, revision")
    stored = [decode(row["body"].encode(), Reward) for row in rows]
    return [reward for reward in stored if name is None or reward.trajectory_id == trajectory(name).trajectory_id]


def rewarded(warehouse: Warehouse, number: int, name: str | None = None) -> Callable[[], Any]:
    async def probe() -> list[Reward]:
        stored = await rewards(warehouse, name)
        return stored if len(stored) >= number else []

    return probe


def settled(bus: Bus, stream: str, durable: str) -> Callable[[], Any]:
    """Whether a consumer exists and has handled everything in a stream."""

    async def probe() -> bool:
        last = (await bus.extent(stream)).last
        with suppress(NotFoundError):
            floor = (await bus.nc.jetstream().consumer_info(stream, durable)).ack_floor
            return floor is not None and floor.stream_seq >= last
        return False

    return probe


async def publish_again(bus: Bus, message: Message) -> None:
    """Publish an event past the broker's deduplication, as after its window."""
    record = bus.seal(message)
    del record.headers["Nats-Msg-Id"]
    await bus.nc.jetstream().publish(record.subject, record.body, headers=record.headers)


def opinions_in(reward: Reward) -> set[str]:
    return set((reward.reward_components["user_feedback"].raw_data or {}).get("feedback_ids", ()))


async def test_a_trajectory_becomes_a_reward_row(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))) as app:
        await bus.publish_all([trajectory("good"), trajectory("bad", outcome=Outcome(status="failure"))])
        await eventually(rewarded(warehouse, 2))
        (good,), (bad,) = await rewards(warehouse, "good"), await rewards(warehouse, "bad")
        assert (good.revision, good.role, good.reward_type) == (0, "support", "dense")
        assert good.total_reward > 0.8
        assert bad.total_reward == 0.0
        row = (await warehouse.rows("SELECT * FROM latest_rewards WHERE total > 0.8"))[0]
        assert row["components"]["task_completion"] == 1.0
        assert {await check() for check in app.checks.values()} == {None}


async def test_late_feedback_makes_a_revision_and_its_repetition_none(
    shared_settings: SharedSettings,
) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        await bus.publish(trajectory())
        await eventually(rewarded(warehouse, 1))
        await bus.publish(feedback(1, value=False))
        first, second = await eventually(rewarded(warehouse, 2))
        assert (first.revision, second.revision) == (0, 1)
        assert second.total_reward < first.total_reward
        await publish_again(bus, feedback(1, value=False))
        await bus.publish(feedback(2, kind="comment", value="hm"))
        await bus.publish(feedback(3, kind="rating", value=5))
        third = (await eventually(rewarded(warehouse, 3)))[-1]
        await eventually(settled(bus, "RL_FEEDBACK", "reward-feedback"))
        assert [reward.revision for reward in await rewards(warehouse)] == [0, 1, 2]
        assert third.reward_components["user_feedback"].score == 0.5


async def test_newest_opinion_counts_where_an_older_one_came_of_a_clock_ahead(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        await bus.publish(trajectory())
        await eventually(rewarded(warehouse, 1))
        ahead = bus.now() + timedelta(days=1)
        await bus.publish(feedback(1, at=ahead, value=True, rater="ann"))
        await eventually(rewarded(warehouse, 2))
        await bus.publish(feedback(2, at=bus.now(), value=False, rater="ann"))
        newest = (await eventually(rewarded(warehouse, 3)))[-1]
        assert newest.reward_components["user_feedback"].score == 0.0


async def test_reward_of_a_parent_reaches_the_trajectories_below_it(shared_settings: SharedSettings) -> None:
    """One child is stored before its parent, one after it, and one below that, which succeeds by itself; then people
    speak of the parent.
    """
    weights = {"support": {"user_feedback": 1.0}, "worker": {"task_completion": 0.5, "parent": 0.5}}

    def child(name: str, parent: str, outcome: Outcome | None = None) -> Trajectory:
        above = trajectory(parent).trajectory_id
        return trajectory(name, role="worker", parent_trajectory_id=above, outcome=outcome)

    def totals(warehouse: Warehouse, **expected: float) -> Callable[[], Any]:
        async def probe() -> bool:
            rows = await warehouse.rows("SELECT trajectory_id, total FROM latest_rewards")
            known = {trajectory(name).trajectory_id: total for name, total in expected.items()}
            return {row["trajectory_id"]: row["total"] for row in rows} == known

        return probe

    computer = build(settings_of(shared_settings, weights=weights))
    async with loop(shared_settings) as (bus, warehouse), running_app(computer):
        await bus.publish(child("before", "one"))
        await eventually(rewarded(warehouse, 1))
        await bus.publish_all([feedback(1, value=True, rater="ann"), trajectory()])
        await eventually(totals(warehouse, one=1.0, before=1.0))
        await bus.publish_all([child("leaf", "after", Outcome(status="success")), child("after", "one")])
        await eventually(totals(warehouse, one=1.0, before=1.0, after=1.0, leaf=1.0))
        await bus.publish(feedback(2, value=False, rater="ann"))
        await eventually(totals(warehouse, one=0.0, before=0.0, after=0.0, leaf=0.5))


async def test_feedback_that_comes_first_is_in_the_first_reward(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        await bus.publish(feedback(1, value=False))
        await eventually(settled(bus, "RL_FEEDBACK", "reward-feedback"))
        await bus.publish(trajectory())
        (reward,) = await eventually(rewarded(warehouse, 1))
        assert (reward.revision, opinions_in(reward)) == (0, {feedback(1).feedback_id})
        assert reward.reward_components["user_feedback"].score == 0.0


async def test_two_workers_lose_no_opinion_when_all_messages_come_at_once(shared_settings: SharedSettings) -> None:
    names = [str(number) for number in range(20)]
    opinions = [feedback(number, name, value=bool(number % 2)) for number in range(5) for name in names]
    one, two = (reward_app.build(settings_of(shared_settings), replace(BRIEF, batch=3)) for _ in range(2))
    async with loop(shared_settings) as (bus, warehouse), running_app(one), running_app(two):
        await bus.publish_all([*opinions[:40], *(trajectory(name) for name in names), *opinions[40:]])

        async def complete() -> bool:
            stored = await rewards(warehouse)
            return {opinion for reward in stored for opinion in opinions_in(reward)} >= {
                one.feedback_id for one in opinions
            }

        await eventually(complete)
        for name in names:
            stored = await rewards(warehouse, name)
            assert stored[0].revision == 0
            assert opinions_in(stored[-1]) == {
                opinion.feedback_id for opinion in opinions if opinion.trajectory_id == stored[0].trajectory_id
            }


async def test_a_restart_loses_nothing_and_remembers_the_baselines(shared_settings: SharedSettings) -> None:
    messages = [trajectory(str(number), turns=turns(3 + number % 3)) for number in range(30)]
    async with loop(shared_settings) as (bus, warehouse):
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all(messages[:20])
            await eventually(rewarded(warehouse, 20))
        await bus.publish_all(messages[20:29])
        async with running_app(build(settings_of(shared_settings))):
            await eventually(rewarded(warehouse, 29))
            await bus.publish(messages[29])
            await eventually(rewarded(warehouse, 30))
        (last,) = await rewards(warehouse, "29")
        assert (last.reward_components["efficiency"].raw_data or {})["count"] == 29
        assert (last.reward_components["task_completion"].parameters or {})["count"] >= 20
        assert len(await rewards(warehouse)) == 30


async def test_each_reward_is_measured_against_the_trajectories_before_it(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        await bus.publish_all([trajectory(str(number), turns=turns(1 + number % 4)) for number in range(40)])
        await eventually(rewarded(warehouse, 40))
        for number in range(40):
            (reward,) = await rewards(warehouse, str(number))
            raw = reward.reward_components["efficiency"].raw_data or {}
            before = [1 + earlier % 4 for earlier in range(number)]
            assert raw["count"] == number
            assert raw["mean"] == (sum(before) / number if number else 0.0)


async def test_folding_the_streams_again_gives_the_same_baselines(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse):
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(str(number), turns=turns(1 + number % 4)) for number in range(30)])
            await eventually(rewarded(warehouse, 30))
            await bus.publish(feedback(1, "3"))
            await publish_again(bus, trajectory("3", turns=turns(4)))
            await eventually(rewarded(warehouse, 31))
            rewards_seen = (await bus.extent("RL_REWARDS")).last
            kept = await folded(bus, rewards_seen)
        bucket = Bucket(bus, BASELINES, object)
        for key in await bucket.keys():
            await bucket.delete(key)
        assert await folded(bus, rewards_seen) == kept
        assert [len(history.calls) for history in kept[0].values()] == [30]


async def folded(bus: Bus, rewards_seen: int) -> list[Mapping[str, Any]]:
    """The states of all projections once they have folded everything."""
    histories, *of_rewards = projections(bus)
    async with running(histories, *of_rewards):
        await histories.wait_for((await bus.extent("RL_TRAJECTORIES")).last, 20)
        for projection in of_rewards:
            await projection.wait_for(rewards_seen, 20)
        return [histories.states(), *(projection.states() for projection in of_rewards)]


async def test_rewards_wait_for_the_collector_and_then_come(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:

        async def tried() -> bool:
            with suppress(NotFoundError):
                info = await bus.nc.jetstream().consumer_info("RL_TRAJECTORIES", "reward-trajectories")
                return bool(info.num_redelivered)
            return False

        async with running_app(build(settings_of(shared_settings))):
            await bus.publish_all([trajectory(), feedback()])
            await eventually(tried)
            assert await rewards(warehouse) == []
            async with running_app(build_collector(collector_of(shared_settings), tuning=QUICK)):
                first = await eventually(rewarded(warehouse, 1))
                await eventually(settled(bus, "RL_FEEDBACK", "reward-feedback"))
                assert first[0].revision == 0

                async def heard() -> bool:
                    return opinions_in((await rewards(warehouse))[-1]) == {feedback().feedback_id}

                await eventually(heard)


async def test_messages_that_are_gone_are_noted_and_keep_reward_computer_ready(
    shared_settings: SharedSettings,
) -> None:
    async with loop(shared_settings) as (bus, warehouse):
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish(trajectory())
            await eventually(rewarded(warehouse, 1))

            async def kept() -> bool:
                return all(
                    position.sequence for position in await positions(bus) if position.projection == "turn-history"
                )

            await eventually(kept)
        await bus.nc.jetstream().delete_stream("RL_TRAJECTORIES")  # a broker that comes back without what it had
        await bus.ensure_streams()
        async with running_app(build(settings_of(shared_settings))) as app:

            async def noted() -> bool:
                return "lacks messages" in (await app.notes["turn-history"]() or "")

            await eventually(noted)
            assert {await check() for check in app.checks.values()} == {None}


async def publish_from(bus: Bus, source: str, message: Message) -> None:
    """Publish an event under the id 1, as publishers in other languages that count their events do."""
    record = bus.seal(message)
    headers = {**record.headers, "ce-id": "1", "ce-source": source, "Nats-Msg-Id": named_id(source, message.event_id)}
    await bus.publish_record(Record(record.subject, headers, record.body))


async def test_runs_of_several_sources_under_one_event_id_are_all_rewarded(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        for number in range(6):  # they wait for the collector, so that they come in one batch
            await publish_from(bus, f"agent-{number}", trajectory(str(number)))
        async with running_app(build_collector(collector_of(shared_settings), tuning=QUICK)):
            async with running_app(build(settings_of(shared_settings))):
                await eventually(rewarded(warehouse, 6))
                await publish_from(bus, "later", trajectory("later"))
                await eventually(rewarded(warehouse, 7))
            await publish_from(bus, "while away", trajectory("while away"))
            async with running_app(build(settings_of(shared_settings))):
                await eventually(rewarded(warehouse, 8))
                await eventually(settled(bus, "RL_TRAJECTORIES", "reward-trajectories"))
        of_runs = [reward.trajectory_id for reward in await rewards(warehouse)]
        (row,) = await warehouse.rows("SELECT uniqExact(trajectory_id) AS runs, count() AS n FROM trajectories FINAL")
    assert (len(of_runs), len(set(of_runs)), row["runs"], row["n"]) == (8, 8, 8, 8)


async def test_opinions_of_two_sources_under_one_event_id_are_stored_or_dead(shared_settings: SharedSettings) -> None:
    async with loop(shared_settings) as (bus, warehouse), running_app(build(settings_of(shared_settings))):
        await bus.publish(trajectory())
        await eventually(rewarded(warehouse, 1))
        await publish_from(bus, "web", feedback(1, value=False))
        await eventually(rewarded(warehouse, 2))
        await publish_from(bus, "mail", feedback(2, value=True))
        await eventually(settled(bus, "RL_FEEDBACK", "reward-feedback"))
        await eventually(settled(bus, "RL_FEEDBACK", "collector-feedback"))
        (letter,) = await messages_of(bus, DeadLetter)
        (row,) = await warehouse.rows("SELECT count() AS n, any(feedback_id) AS id FROM feedback FINAL")
    assert letter.detail.startswith("its event id, 1, is that of another event")
    assert (row["n"], row["id"]) == (1, feedback(1).feedback_id)
