"""The console on real servers: keys, what it passes on, the loop, live news, and outages of everything around it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.console.loop import PART_S
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.state import JOBS, KEYS, Job, JobState, Key
from ratchet.core.contract.training import Artifacts
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.access import hash_of, new_key
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from tests.support.consoles import News, consoling, listening
from tests.support.coordinator import ROLE, coordinating
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse
from tests.support.servers import RunningServer
from tests.support.training import request

pytestmark = pytest.mark.timeout(240)
JOB = named_id("test", "card")
LONGEST_S = 60.0
"""An answer about a store that is away comes within seconds; a busy machine takes longer."""
SCOPES = ("admin", "operate", "train", "annotate", "view", "infer:support", "feedback:support")


async def made(bus: Bus, *scopes: str) -> tuple[str, dict[str, str]]:
    """The id of a new key, and the headers that carry it."""
    key_id, secret = new_key()
    key = Key(
        key_id=key_id,
        name="ada",
        hash=hash_of(secret.encode()),
        scopes=scopes,
        created_at=datetime.now(UTC),
        created_by="test",
    )
    await Bucket(bus, KEYS, Key).put(key_id, key)
    return key_id, {"authorization": f"Bearer {secret}"}


def alert(number: int) -> Alert:
    """A new one each time, of the same key for the same number."""
    return Alert(
        alert_id=str(uuid.uuid4()),
        key=f"key-{number}",
        severity="warning",
        summary="a test",
        source="test",
        at=datetime.now(UTC),
    )


async def test_key_opens_what_its_scope_allows_and_names_who_acts(
    shared_settings: SharedSettings,
) -> None:
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        coordinating(shared_settings, bus) as there,
        consoling(shared_settings, coordinator_url=str(there.api.base_url)) as http,
    ):
        keys = {scope: await made(bus, scope) for scope in SCOPES}

        async def closed() -> bool:
            here = await http.get("/v1/session", headers=keys["feedback:support"][1])
            owner = await there.api.get("/v1/jobs", headers=keys["feedback:support"][1])
            return (here.status_code, owner.status_code) == (200, 403)

        await eventually(closed)
        assert (await http.get("/v1/session")).status_code == 401
        assert (await http.get("/v1/loop", headers={"authorization": "Bearer rtk_wrong"})).status_code == 401
        assert (await http.get("/coordinator/v1/jobs")).status_code == 401
        assert (await http.get("/health")).status_code == 200
        views = {scope: (await http.get("/v1/loop", headers=keys[scope][1])).status_code for scope in SCOPES}
        assert views == {**dict.fromkeys(SCOPES[:5], 200), **dict.fromkeys(SCOPES[5:], 403)}
        session = (await http.get("/v1/session", headers=keys["train"][1])).json()
        assert session == {
            "key_id": keys["train"][0],
            "name": "ada",
            "view": True,
            "annotate": False,
            "train": True,
            "operate": False,
            "infer": False,
            "scopes": ["train"],
        }
        requested = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE}
        asked = {
            scope: await http.post("/coordinator/v1/jobs?dry_run=true", headers=keys[scope][1], json=requested)
            for scope in ("view", "operate")
        }
        assert {scope: one.status_code for scope, one in asked.items()} == {"view": 403, "operate": 403}
        assert "`train`" in asked["view"].json()["error"]["message"]
        refused = await http.post("/coordinator/v1/jobs", headers=keys["train"][1], json=requested)
        assert refused.status_code != 403
        listed = await http.get("/coordinator/v1/jobs?limit=1", headers=keys["view"][1])
        assert (listed.status_code, listed.json()["total"]) == (200, 0)


@pytest.mark.own_broker
async def test_loop_shows_what_was_stored_and_outage_of_one_part_leaves_others(
    shared_settings: SharedSettings, nats: RunningServer
) -> None:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings) as warehouse, connected(shared_settings) as bus:
        await stored_calls(warehouse)
        async with (
            coordinating(shared_settings, bus) as there,
            consoling(
                shared_settings,
                coordinator_url=str(there.api.base_url),
                health_urls={"gateway": str(there.api.base_url)},
            ) as http,
        ):

            async def whole() -> Any:
                loop = (await http.get("/v1/loop")).json()
                return loop if [*loop["unread"]] == ["deployer"] else None

            loop = await eventually(whole)
            assert sum(minute["calls"] for minute in loop["minutes"]) == 3
            assert sum(minute["failed_calls"] for minute in loop["minutes"]) == 1
            assert len(loop["minutes"]) == 60
            assert loop["open_trajectories"] == 2
            assert {stream["name"] for stream in loop["streams"]} >= {"RL_TURNS", "RL_DEADLETTERS"}
            assert loop["jobs"]["queued"] == 0
            states = {service["name"]: service["state"] for service in loop["services"]}
            assert (states["gateway"], states["canary_deployer"]) == ("not ready", "unknown")
            await asyncio.to_thread(nats.kill)

            async def without_broker() -> Any:
                began = asyncio.get_running_loop().time()
                loop = (await http.get("/v1/loop")).json()
                assert asyncio.get_running_loop().time() - began < 10 * PART_S
                return loop if {"nats", "alerts"} <= {*loop["unread"]} else None

            loop = await eventually(without_broker)
            assert sum(minute["calls"] for minute in loop["minutes"]) == 3
            await asyncio.to_thread(nats.start)
            await eventually(whole)
        async with consoling(shared_settings) as http:
            answer = await http.post("/coordinator/v1/jobs/some/cancel")
            assert answer.status_code == 503
            assert "the coordinator does not answer" in answer.json()["error"]["message"]


@pytest.mark.own_broker
async def test_store_that_is_away_is_named_until_it_is_back(
    shared_settings: SharedSettings, nats: RunningServer, clickhouse: RunningServer, s3: RunningServer
) -> None:
    objects = prepared_objects(shared_settings)
    card = objects.put(b"# a card", "cards", ".md")
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        consoling(shared_settings) as http,
    ):
        await Bucket(bus, JOBS, Job).put(JOB, finished_job(card.uri))
        paths = ("/v1/trajectories", f"/v1/jobs/{JOB}/card", "/v1/loop")

        async def statuses() -> list[int]:
            began = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(http.get(path) for path in paths))
            assert asyncio.get_running_loop().time() - began < LONGEST_S
            return [answer.status_code for answer in answers]

        async def are(*expected: int) -> None:
            async def reached() -> bool:
                return await statuses() == [*expected]

            await eventually(reached)

        await are(200, 200, 200)
        for server, expected in ((clickhouse, (503, 200, 200)), (s3, (200, 503, 200)), (nats, (200, 503, 200))):
            await asyncio.to_thread(server.kill)
            try:
                await are(*expected)
            finally:
                await asyncio.to_thread(server.start)
            await are(200, 200, 200)


def finished_job(card: str) -> Job:
    """One that made a policy."""
    now = datetime.now(UTC)
    return Job(
        training_job_id=JOB,
        role="support",
        algorithm="sft",
        state=JobState.COMPLETED,
        priority="normal",
        created_at=now,
        updated_at=now,
        request=request(training_job_id=JOB),
        artifacts=Artifacts(model_card=card),
    )


@pytest.mark.own_broker
async def test_all_pages_hear_what_changes_also_after_the_broker_was_killed(
    shared_settings: SharedSettings, nats: RunningServer
) -> None:
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        consoling(shared_settings) as first,
        consoling(shared_settings.model_copy(update={"data_dir": shared_settings.data_dir / "two"})) as second,
        listening(first) as one,
        listening(second) as two,
    ):
        await heard(bus, (one, two), 1)
        await asyncio.to_thread(nats.kill)
        await asyncio.to_thread(nats.start)
        await heard(bus, (one, two), 2)


@pytest.mark.own_broker
async def test_alert_needs_a_person_until_it_is_cleared(shared_settings: SharedSettings, nats: RunningServer) -> None:
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        await bus.publish(alert(1))
        async with consoling(shared_settings) as http:
            await eventually(lambda: seen(http, {"key-1"}))
            await asyncio.to_thread(nats.kill)
            await asyncio.to_thread(nats.start)
            await bus.publish(alert(2))
            await eventually(lambda: seen(http, {"key-1", "key-2"}))
            await bus.publish(msgspec.structs.replace(alert(1), cleared=True))
            assert await eventually(lambda: seen(http, {"key-2"}))


async def seen(http: httpx.AsyncClient, keys: set[str]) -> bool:
    """Whether the loop shows exactly the alerts of these keys."""
    items = (await http.get("/v1/loop")).json()["attention"]
    return {item["subject"] for item in items if item["kind"] == "alert"} == keys


async def test_streams_end_with_the_console(shared_settings: SharedSettings) -> None:
    news = News()
    async with prepared_warehouse(shared_settings), connected(shared_settings), http_client(trust_env=False) as page:
        async with consoling(shared_settings) as http:
            request = page.build_request("GET", http.base_url.join("/v1/events"))
            answer = await page.send(request, stream=True)
            reading = asyncio.create_task(news.read(answer))

            async def shown() -> bool:
                return bool(news.loops)

            await eventually(shown)
        await asyncio.wait_for(reading, 30)
    assert news.over


async def heard(bus: Bus, pages: tuple[News, ...], number: int) -> None:
    """Publish an alert again and again, until every page has had the hint, and the loop, which is read meanwhile: a
    reader begins at its own present."""

    async def all_have_it() -> bool:
        with suppress(BusUnavailable):
            await bus.publish(alert(number))
        return all(page.loops and any(hint["subject"] == f"key-{number}" for hint in page.hints) for page in pages)

    assert await eventually(all_have_it)


async def stored_calls(warehouse: Warehouse) -> None:
    """Two trajectories that go on, one that ended and an old one: three calls just now, one of them failed."""
    now = datetime.now(UTC)
    recent, old = now - timedelta(minutes=2), now - timedelta(hours=3)
    rows = [("a", recent, False), ("b", recent, True), ("c", recent, False), ("d", old, False)]
    calls = [
        {
            "event_id": name,
            "role": ROLE,
            "at": at,
            "policy_version": 1,
            "arm": "stable",
            "api": "chat",
            "key_id": "",
            "model": "m",
            "failed": failed,
            "cancelled": False,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "completion_tokens": 1,
            "reasoning_tokens": 0,
            "ingested_at": at,
        }
        for name, at, failed in rows
    ]
    turns = [
        {
            "event_id": name,
            "sequence": place,
            "turn_id": name,
            "trajectory_id": f"of-{name}",
            "role": ROLE,
            "turn_index": 0,
            "attempt": 1,
            "policy_version": 1,
            "policy_digest": "d",
            "arm": "stable",
            "weight": 0.0,
            "trainable": False,
            "at": at,
            "body": "{}",
            "ingested_at": at,
        }
        for place, (name, at, _) in enumerate(rows)
    ]
    ended = {
        "event_id": "end-c",
        "sequence": 1,
        "trajectory_id": "of-c",
        "role": ROLE,
        "session_id": "s",
        "agent_id": "a",
        "task_id": "t",
        "model": "m",
        "source": "gateway",
        "turn_count": 1,
        "started_at": recent,
        "ended_at": recent,
        "body": "{}",
        "ingested_at": recent,
        "recorded_as": "of-c",
    }
    for table, values in (("calls", calls), ("turns", turns), ("trajectories", [ended])):
        await warehouse.insert(table, values, token=None)
