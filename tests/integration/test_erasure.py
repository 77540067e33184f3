"""Erasures at a real broker and warehouse: what is a person's goes, another's stays, and the ledger balances."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, Message, Preference, Trajectory, named_id
from ratchet.core.contract.erasure import ASKED, ERASURES, SESSION, USER, Erasure
from ratchet.core.rules.erasing import CLOCKS
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erased import KEYS, Erased
from ratchet.core.stores.erasures import ask_erasure
from ratchet.core.stores.schema import schema_statements
from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector import app as collector_app
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.executions import execution
from tests.support.messages import AT, trajectory, trajectory_end, turn
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app

QUICK = Tuning(
    ack_wait_s=2.0, audit_interval_s=0.1, assembly_patience_s=5.0, erasure_interval_s=0.05, erasure_settle_s=0.5
)
PROBE = "PLANTED"
ANN, ANNA = "ann", "anna"
"""Two people: the one's ref begins like the other's."""
WITHOUT_TEXT = {
    "calls": "numbers of calls, with ids of runs, keys and models",
    "deployments": "what became of policies",
    "erased": "ids",
    "kept_since": "instants",
    "ledger_entries": "outcomes by sequence",
    "ledger_windows": "counts",
    "pair_skips": "ids of answers",
    "rollouts": "decisions and their statistics",
    "schemas": "a digest",
    "stream_generations": "names of streams",
    "training_requests": "settings, and the words of who asked for a training",
    "training_statuses": "numbers, and faults of trainings",
}
"""Tables that hold no text of a person, with what they hold instead."""


def settings_of(shared: SharedSettings) -> Settings:
    return Settings(shared=shared, linger_s=0.02)


build = partial(collector_app.build, tuning=QUICK)


def messages_of(person: str, name: str) -> list[Message]:
    """All kinds of messages about a trajectory of a person, each with a text of theirs."""
    text = f"{PROBE} {person}"
    whole, other = trajectory(name, user_ref=person), trajectory(f"{name} again", user_ref=person)
    (entry,) = whole.turns
    words = [replace(entry, observation=replace(entry.observation, content=text))]
    return [
        replace(whole, turns=words),
        replace(other, turns=words),
        turn(f"call {name}", user_ref=person, messages=[{"role": "user", "content": text}]),
        trajectory_end(f"call {name}", user_ref=person, turns=1),
        Feedback(
            feedback_id=named_id("feedback", name),
            trajectory_id=whole.trajectory_id,
            kind="comment",
            at=AT,
            role="support",
            value=text,
        ),
        Preference(
            preference_id=named_id("preference", name),
            prompt=text,
            chosen="yes",
            rejected="no",
            source="human",
            role="support",
            chosen_trajectory_id=whole.trajectory_id,
            rejected_trajectory_id=other.trajectory_id,
        ),
        replace(
            execution(),
            workflow_id=named_id("workflow", name),
            timestamp=AT,
            role="support",
            user_ref=person,
            instruction=text,
        ),
    ]


async def rows_with(warehouse: Warehouse, text: str) -> dict[str, int]:
    """By table, the rows whose body has a text."""
    counts: dict[str, int] = {}
    for table in KEYS:
        rows = await warehouse.rows(
            f"SELECT count() AS n FROM {table} FINAL WHERE position(body, {{text:String}}) > 0", {"text": text}
        )
        counts[table] = rows[0]["n"]
    return {table: number for table, number in counts.items() if number}


def erasure_of(kind: str, ref: str) -> Erasure:
    at = datetime.now(UTC)
    return Erasure(
        erasure_id=named_id("erasure", kind, ref),
        kind=kind,
        ref=ref,
        role=None,
        asked_by="test",
        asked_at=at,
        phase=ASKED,
    )


async def erased(bus: Bus, erasure: Erasure) -> Erasure:
    """Ask for it, and wait until what is there is removed, but for files that the engine keeps for minutes."""
    await ask_erasure(bus, erasure)
    bucket = Bucket(bus, ERASURES, Erasure)

    async def over() -> Erasure | None:
        entry = await bucket.get(erasure.erasure_id)
        return entry.value if entry and entry.value.removed else None

    return await eventually(over)


async def uneven(warehouse: Warehouse) -> list[Any]:
    query = "SELECT stream, missing, absent, lost FROM ledger_balance WHERE missing + absent + lost > 0"
    return await warehouse.rows(query)


def test_every_table_is_known_to_hold_words_or_none() -> None:
    tables = {name for name, statement in schema_statements().items() if statement.startswith("CREATE TABLE")}
    assert tables | {"schemas"} == KEYS.keys() | WITHOUT_TEXT.keys()


async def test_person_is_erased_and_another_one_stays(shared_settings: SharedSettings) -> None:
    objects = prepared_objects(shared_settings)
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        async with running_app(build(settings_of(shared_settings))):
            opinion, *_ = (one for one in messages_of(ANNA, "two") if isinstance(one, Feedback))
            on_hers = replace(opinion, feedback_id=named_id("feedback", "on hers"), user_ref=ANN, value="good")
            await bus.publish_all([on_hers, *messages_of(ANN, "one"), *messages_of(ANNA, "two")])
            await eventually(lambda: complete(warehouse, ANN, ANNA))
            before = await rows_with(warehouse, f"{PROBE} {ANNA}")
            key = f"archive/turns/role=support/day=2026-01-01/{'0' * 64}.parquet"
            client, bucket = objects._client, objects._bucket  # pyright: ignore[reportPrivateUsage]
            client.put_object(Bucket=bucket, Key=key, Body=b"PAR1 cut off")
            done = await erased(bus, erasure_of(USER, ANN))
            assert await rows_with(warehouse, f'{PROBE} {ANN}"') == {}
            assert await rows_with(warehouse, f"{PROBE} {ANNA}") == before
            assert done.removed["RL_TRAJECTORIES"] == done.removed["trajectories"] == 3
            assert done.damaged == [f"s3://{bucket}/{key}"]
            await eventually(lambda: balanced(warehouse, 17))
        assert await messages_with(bus, f'{PROBE} {ANN}"') == 0
        assert await messages_with(bus, f"{PROBE} {ANNA}") == 7


async def test_what_comes_late_is_dropped_and_accounted_for(shared_settings: SharedSettings) -> None:
    async with connected(shared_settings) as bus, prepared_warehouse(shared_settings) as warehouse:
        first, late = trajectory("one", user_ref=ANN), trajectory("late", user_ref=ANN)
        opinion, *_ = (one for one in messages_of(ANN, "late") if isinstance(one, Feedback))
        async with running_app(build(settings_of(shared_settings))):
            await bus.publish(first)
            await eventually(lambda: stored_ids(warehouse, first))
            await erased(bus, erasure_of(USER, ANN))
            await publish_again(bus, first)
            await bus.publish(late)
            await eventually(lambda: balanced(warehouse, 3))
            await bus.publish(opinion)  # names the trajectory alone
            await bus.publish(trajectory("two", user_ref=ANNA))
            await eventually(lambda: balanced(warehouse, 5))
            assert await stored_ids(warehouse) == {trajectory("two").trajectory_id}
            assert (await warehouse.rows("SELECT count() AS n FROM feedback"))[0]["n"] == 0
            ends = await warehouse.rows("SELECT sum(erased) AS n FROM ledger_balance")
            assert ends[0]["n"] == 4


async def test_erasures_side_by_side_take_what_is_each_ones(shared_settings: SharedSettings) -> None:
    people = [trajectory(name, user_ref=name) for name in ("ann", "anna", "annabel")]
    helper = trajectory("helper", parent_trajectory_id=people[0].trajectory_id)
    async with (
        connected(shared_settings) as bus,
        prepared_warehouse(shared_settings) as warehouse,
        running_app(build(settings_of(shared_settings))),
        running_app(build(settings_of(shared_settings))),  # a second collector
    ):
        await bus.publish_all([*people, helper])
        await eventually(lambda: stored_ids(warehouse, *people, helper))
        asked = [erasure_of(USER, "ann"), erasure_of(SESSION, "session-anna")]
        await asyncio.gather(*(erased(bus, one) for one in asked))
        await eventually(lambda: balanced(warehouse, 4))
        assert await stored_ids(warehouse) == {people[2].trajectory_id}


async def publish_again(bus: Bus, message: Message) -> None:
    """As after the broker's window of repetitions."""
    record = bus.seal(message)
    await bus.publish_record(record.with_message_id("again"))


async def stored_ids(warehouse: Warehouse, *awaited: Trajectory) -> set[str] | None:
    """The trajectories that are stored; None while an awaited one is not."""
    ids = {row["trajectory_id"] for row in await warehouse.rows("SELECT trajectory_id FROM trajectories FINAL")}
    return ids if {one.trajectory_id for one in awaited} <= ids else None


async def complete(warehouse: Warehouse, *people: str) -> bool:
    """Whether all of `messages_of` is stored, with the trajectory that is assembled of the call."""
    rows = [await rows_with(warehouse, f'{PROBE} {person}"') for person in people]
    kept = ("trajectories", "preferences", "turns", "workflow_executions")
    return all([row.get(table) for table in kept] == [3, 1, 1, 1] for row in rows)


async def messages_with(bus: Bus, text: str) -> int:
    """Messages of all streams with a text."""
    number = 0
    for stream in ("RL_TRAJECTORIES", "RL_TURNS", "RL_FEEDBACK", "RL_WORKFLOWS"):
        async with aclosing(OrderedReader(bus, stream).to_end()) as batches:
            async for batch in batches:
                number += sum(text.encode() in message.data for message in batch)
    return number


async def balanced(warehouse: Warehouse, accounted: int) -> bool:
    (row,) = await warehouse.rows("SELECT sum(accounted) AS n, sum(missing + absent + lost) AS bad FROM ledger_balance")
    return row == {"n": accounted, "bad": 0}


async def test_telemetry_of_later_than_an_erasure_is_no_part_of_it(shared_settings: SharedSettings) -> None:
    asked = erasure_of(USER, ANN)
    later = (asked.asked_at + 2 * CLOCKS).isoformat()
    begun = {"a": later, "b": AT.isoformat(), "c": None}  # None: what only an event says
    async with prepared_warehouse(shared_settings) as warehouse:
        at = datetime.now(UTC)
        for trace, started_at in begun.items():
            spans = [{"user_ref": ANN, **({"started_at": started_at} if started_at else {})}]
            body = msgspec.json.encode({"spans": spans}).decode()
            row = {"event_id": trace, "trace_id": trace, "role": "support", "body": body, "ingested_at": at}
            await warehouse.insert("spans", [row], token=None)
        assert await Erased(warehouse).preview(asked) == 2


def stored_of(person: str) -> dict[str, Any]:
    at = datetime.now(UTC)
    ids = {"event_id": person, "trajectory_id": person, "user_ref": person, "role": "support"}
    return {**ids, "started_at": at, "ingested_at": at, "body": "{}"}


@pytest.mark.slow
async def test_files_of_a_later_erasure_hold_up_no_earlier_one(shared_settings: SharedSettings) -> None:
    ann, anna = erasure_of(USER, ANN), erasure_of(USER, ANNA)
    async with prepared_warehouse(shared_settings) as warehouse:
        stored = Erased(warehouse)
        await warehouse.insert("trajectories", [stored_of(ANN), stored_of("another")], token=None)
        await warehouse.insert("trajectories", [stored_of(ANNA), stored_of("yet another")], token=None)

        async def remove(one: Erasure, kept_s: int) -> None:
            """Remove its rows; the engine keeps the files that have them for so long."""
            await warehouse.command(f"ALTER TABLE trajectories MODIFY SETTING old_parts_lifetime = {kept_s}")
            assert await stored.list_ids(one) == 1
            assert await stored.remove_rows([one.erasure_id]) == {one.erasure_id: {"trajectories": 1}}

        async def is_gone() -> bool:
            """An engine that gets nothing to do looks ever more seldom at what it may remove."""
            await warehouse.insert("trajectories", [stored_of("another")], token=None)
            return not await stored.has_remains(ann)

        await remove(ann, 600)
        assert await stored.has_remains(ann)
        await warehouse.command("ALTER TABLE trajectories MODIFY SETTING old_parts_lifetime = 1")
        await eventually(is_gone, 400)
        await remove(anna, 600)
        assert await stored.has_remains(anna)
        assert not await stored.has_remains(ann)
        ids = [row["trajectory_id"] for row in await warehouse.rows("SELECT trajectory_id FROM trajectories FINAL")]
        assert sorted(ids) == ["another", "yet another"]
