"""Hostile messages on every subject of a real broker: readers go on, and every message is accounted for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, Done, Outcome
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import MESSAGES, DeadLetter, Trajectory
from ratchet.core.errors import InvalidMessage
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.rows import TABLES
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.consuming import consuming, messages_of
from tests.support.contract_files import CONTRACTS, example
from tests.support.hostile import HEADERS, broken_bodies, extreme_bodies, valid_bodies
from tests.support.running import connected, prepared_warehouse, running, running_app
from tests.support.servers import Broker

PER_TOPIC = 24


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


def hostile(stream: str) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """(subject, body, headers) for every topic of a stream."""
    chance = random.Random(stream)
    for topic in (topic for topic in CONTRACTS.topics.values() if topic.stream == stream):
        filters = CONTRACTS.subjects(topic.name)
        good = msgspec.json.encode(example(topic.schema))
        for body in (*broken_bodies(topic.schema, PER_TOPIC), *[good] * len(HEADERS)):
            yield chance.choice(filters).replace("*", "anybody"), body, chance.choice(HEADERS)


def taking(bus: Bus, stream: str, taken: list[int], name: str = "fuzz") -> Consumer:
    """A consumer of all topics of a stream that takes every readable message."""

    async def handle(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        taken.extend(received.sequence for received in batch)
        return [Done()] * len(batch)

    handlers = {MESSAGES[topic.name]: handle for topic in CONTRACTS.topics.values() if topic.stream == stream}
    return consuming(bus, handlers, f"{name}-{stream}")


async def letters(bus: Bus, stream: str) -> list[DeadLetter]:
    """The dead letters about a stream."""
    return await messages_of(bus, DeadLetter, f"{DeadLetter.TOPIC}.{stream}.*")


PUBLISHED = sorted({topic.stream for topic in CONTRACTS.topics.values() if topic.schema} - {"RL_DEADLETTERS"})
"""Streams whose messages have a schema: a gateway reads those of its peers in a way of its own."""


@pytest.mark.parametrize("stream", PUBLISHED)
async def test_every_hostile_message_is_handled_or_dead_with_a_reason(settings: SharedSettings, stream: str) -> None:
    taken: list[int] = []
    async with connected(settings) as bus:
        sent = [
            await bus.nc.jetstream().publish(subject, body, headers=headers or None)
            for subject, body, headers in hostile(stream)
        ]
        consumer = taking(bus, stream, taken)
        async with running(consumer):

            async def settled() -> bool:
                readers = await bus.nc.jetstream().consumers_info(stream)
                return bool(readers) and readers[0].ack_floor.stream_seq == sent[-1].seq

            await eventually(settled)
        dead = await letters(bus, stream)
    assert sorted([*taken, *(letter.sequence for letter in dead)]) == [answer.seq for answer in sent]
    assert all(letter.detail for letter in dead)
    assert {letter.reason for letter in dead} <= {"invalid", "unknown_subject"}
    assert dead


async def test_dead_letters_of_large_messages_push_no_older_one_out(settings: SharedSettings) -> None:
    bound = 1024 * 1024
    small = settings.model_copy(update={"stream_max_bytes": {"RL_DEADLETTERS": bound}})
    async with connected(small) as bus:
        publish = bus.nc.jetstream().publish
        first = [(await publish(Trajectory.TOPIC, b"{", headers={"ce-id": f"small {n}"})).seq for n in range(5)]
        huge = random.Random(1).randbytes(bound // 2)
        large = [(await publish(Trajectory.TOPIC, huge, headers={"ce-id": f"large {n}"})).seq for n in range(14)]
        async with running(*(taking(bus, "RL_TRAJECTORIES", [], name) for name in ("one", "two"))):

            async def settled() -> bool:
                readers = await bus.nc.jetstream().consumers_info("RL_TRAJECTORIES")
                return [reader.ack_floor.stream_seq for reader in readers] == [large[-1]] * 2

            await eventually(settled)
        dead = await letters(bus, "RL_TRAJECTORIES")
    assert sorted(letter.sequence for letter in dead) == [*first, *large]
    assert {letter.sequence for letter in dead if letter.kept == "in_stream"} == set(large)


def legal(topic: str) -> Iterator[tuple[str, bytes]]:
    """(subject, body) of random and of extreme messages of a topic that its contract takes."""
    schema = CONTRACTS.topics[topic].schema
    for document in (*valid_bodies(schema, 6), *extreme_bodies(schema, 40)):
        body = msgspec.json.encode(document)
        with suppress(InvalidMessage):  # 1e300 is an integer for a schema, but for no type
            yield CONTRACTS.check_strict_json(topic, body).subject, body


UNFIT = ("ClickHouse cannot hold it", "ended without a recorded call", "which is not there", "cannot redact")
"""Why a legal message may be dead: a number beyond its column, an end whose calls never come, a call that continues one
that never comes, a value that a schema gives no form in which its secret is taken out."""


async def test_collector_accounts_for_every_legal_message_even_the_extreme_ones(
    shared_settings: SharedSettings,
) -> None:
    messages = [message for topic in TABLES for message in legal(topic)]
    settings = Settings(shared=shared_settings, linger_s=0.05)
    tuning = Tuning(audit_interval_s=0.2, assembly_patience_s=0.5)
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        for number, (subject, body) in enumerate(messages):
            await bus.nc.publish(subject, body, headers={"ce-id": f"event-{number}"})
        await bus.nc.flush()
        async with running_app(build(settings, tuning=tuning)) as app:

            async def accounted() -> bool:
                rows = await warehouse.rows("SELECT sum(accounted) AS n FROM ledger_balance")
                return rows[0]["n"] >= len(messages)

            await eventually(accounted)
            assert await app.checks["ledger"]() is None
        balance = await warehouse.rows("SELECT sum(stored) AS stored, sum(missing) AS missing FROM ledger_balance")
        dead = [letter for stream in CONTRACTS.streams for letter in await letters(bus, stream)]
    assert balance[0] == {"stored": len(messages) - len(dead), "missing": 0}
    assert {letter.reason for letter in dead} == {"rejected", "unredacted"}
    assert [letter.detail for letter in dead if not any(reason in letter.detail for reason in UNFIT)] == []
