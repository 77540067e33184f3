"""Telemetry by OTLP with real parts: a gateway takes it in, a broker keeps it, a collector makes trajectories of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from nats.js.api import StreamConfig
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ratchet.bus.clock import utc_now
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, Spans, Trajectory, Turn, decode
from ratchet.core.contract.spans import run_id
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.dialects.telemetry.otlp import JSON, PROTOBUF
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.consuming import messages_of
from tests.support.gateway_scene import Scene, scene
from tests.support.running import http_client, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import Broker, RunningServer
from tests.support.telemetry import sent, spelled, traced

QUICK = Tuning(ack_wait_s=2.0, audit_interval_s=0.1, traces_interval_s=0.05, idle_interval_s=0.1)


@dataclass
class Clock:
    """How far the collector's clock is ahead of the gateway's."""

    ahead: timedelta = timedelta()


@asynccontextmanager
async def collecting(shared: SharedSettings, clock: Clock) -> AsyncIterator[Warehouse]:
    prepared_objects(shared)
    settings = CollectorSettings(shared=shared, linger_s=0.01)
    async with (
        prepared_warehouse(shared) as warehouse,
        running_app(build_collector(settings, now=lambda: utc_now() + clock.ahead, tuning=QUICK)),
    ):
        yield warehouse


async def post(here: Scene, signal: str, body: bytes, **headers: str) -> httpx.Response:
    async with http_client() as http:
        named = {"content-type": PROTOBUF} | {name.replace("_", "-"): value for name, value in headers.items()}
        return await http.post(f"{here.url}/v1/{signal}", content=body, headers=named)


async def stored(warehouse: Warehouse, table: str) -> list[dict[str, Any]]:
    return await warehouse.rows(f"SELECT * FROM {table} FINAL ORDER BY sequence")


async def count(warehouse: Warehouse, table: str, number: int) -> list[dict[str, Any]]:
    """The rows of a table, once there are as many."""

    async def probe() -> list[dict[str, Any]]:
        rows = await stored(warehouse, table)
        return rows if len(rows) >= number else []

    return await eventually(probe)


async def test_spans_of_an_sdk_become_a_trajectory_a_minute_after_their_root(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    clock = Clock()
    async with (
        scene(nats, tmp_path, service_roles={"shop": "support"}) as here,
        collecting(shared_settings, clock) as warehouse,
        collecting(shared_settings, clock),
    ):
        for signal, body in sent("pydantic_ai_logfire"):
            answer = await post(here, signal, gzip.compress(body), content_encoding="gzip")
            assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
        await count(warehouse, "spans", 1)
        assert await stored(warehouse, "trajectories") == []
        clock.ahead = timedelta(seconds=61)
        rows = await count(warehouse, "trajectories", 3)
        made = [decode(row["body"].encode(), Trajectory) for row in rows]
        (main,) = [each for each in made if each.parent_trajectory_id is None]
        assert (main.role, main.agent_id, main.metadata.source) == ("support", "clerk", "telemetry")
        assert {each.parent_trajectory_id for each in made} == {None, main.trajectory_id}
        turns = [decode(row["body"].encode(), Turn) for row in await count(warehouse, "turns", 4)]
        assert {turn.trainable.reason for turn in turns} == {"no_token_ids"}
        assert {turn.trajectory_id for turn in turns} == {main.trajectory_id}
        assert await stored(warehouse, "starts") == []


async def test_late_spans_make_one_revision(shared_settings: SharedSettings, nats: Broker, tmp_path: Path) -> None:
    clock = Clock()
    first, late, too_late = traced("a", calls=1), traced("a", calls=3, since=1), traced("a", calls=4, since=3)
    async with scene(nats, tmp_path) as here, collecting(shared_settings, clock) as warehouse:
        await post(here, "traces", first.protobuf)
        await count(warehouse, "spans", 1)
        clock.ahead = timedelta(minutes=2)
        await count(warehouse, "trajectories", 1)
        await post(here, "traces", late.protobuf)
        await count(warehouse, "spans", 2)
        clock.ahead = timedelta(minutes=80)

        async def entries() -> int:
            (row,) = await stored(warehouse, "trajectories")
            return int(row["turn_count"])

        await eventually(lambda: _is(entries, 3))
        await post(here, "traces", too_late.protobuf)
        await count(warehouse, "spans", 3)
        clock.ahead = timedelta(days=2)
        await post(here, "traces", traced("b", calls=1).protobuf)
        await count(warehouse, "spans", 4)
        clock.ahead = timedelta(days=4)
        await count(warehouse, "trajectories", 2)
        (row,) = [row for row in await stored(warehouse, "trajectories") if row["trajectory_id"] == run_id(first.id)]
        assert row["turn_count"] == 3


async def _is(value: Any, expected: object) -> bool:
    return await value() == expected


async def test_evaluations_before_and_after_the_end_become_feedback(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    clock = Clock()
    trace = traced("a", calls=1)
    async with scene(nats, tmp_path) as here, collecting(shared_settings, clock) as warehouse:
        await post(here, "traces", trace.protobuf)
        await post(here, "logs", trace.evaluation("relevance", value=0.25, label="fail"), content_type=JSON)
        await count(warehouse, "spans", 2)
        clock.ahead = timedelta(minutes=2)
        await count(warehouse, "feedback", 1)
        await post(here, "logs", trace.evaluation("tone", value=0.75), content_type=JSON)
        rows = await count(warehouse, "feedback", 2)
        made = {each.rater: each for each in (decode(row["body"].encode(), Feedback) for row in rows)}
        assert (made["relevance"].kind, made["relevance"].value) == ("thumbs", False)
        assert (made["tone"].kind, made["tone"].value) == ("metric", 0.75)
        assert {each.trajectory_id for each in made.values()} == {run_id(trace.id)}


async def test_full_stream_is_503_and_nothing_is_lost(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        jetstream: Any = here.bus.nc.jetstream()
        config: StreamConfig = (await jetstream.stream_info("RL_SPANS")).config
        config.max_msgs = 1
        await jetstream.update_stream(config)
        assert (await post(here, "traces", traced("a").protobuf)).status_code == 200
        refused = await post(here, "traces", spelled(traced("b")), content_type=JSON)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["code"] == 14
        assert "maximum messages exceeded" in refused.json()["message"]
        config.max_msgs = -1
        await jetstream.update_stream(config)
        assert (await post(here, "traces", spelled(traced("b")), content_type=JSON)).status_code == 200
        assert [batch.trace_id for batch in await here.published(Spans, 2)] == [traced("a").id, traced("b").id]


@pytest.mark.own_broker
async def test_broker_that_dies_loses_nothing_that_was_answered_with_200(nats: RunningServer, tmp_path: Path) -> None:
    second = traced("b").protobuf
    async with scene(nats, tmp_path) as here:
        assert (await post(here, "traces", traced("a").protobuf)).status_code == 200
        nats.kill()
        refused = await post(here, "traces", second)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        nats.start()

        async def taken() -> bool:
            return (await post(here, "traces", second)).status_code == 200

        await eventually(taken)
        await taken()
        assert [batch.trace_id for batch in await messages_of(here.bus, Spans)] == [traced("a").id, traced("b").id]


async def test_what_is_refused_has_its_reason_in_words(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        broken = traced("a").changed(span_id="00")
        answer = await post(here, "traces", broken.protobuf)
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, partial.rejected_spans) == (200, 2)
        assert "span id" in partial.error_message
        silent = await post(here, "traces", spelled(traced("a", content=False)), content_type=JSON)
        words = silent.json()["partialSuccess"]
        assert "rejectedSpans" not in words
        assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in words["errorMessage"]
        for body, kind, status in (
            (b"\xff\xff", PROTOBUF, 400),
            (b"{", JSON, 400),
            (b"x", "text/plain", 415),
            (bytes(17 << 20), PROTOBUF, 413),
        ):
            assert (await post(here, "traces", body, content_type=kind)).status_code == status


async def test_key_that_may_not_report_a_role_is_refused_by_span(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, api_keys=["a-key-of-the-agents"]) as here:
        unknown = await post(here, "traces", traced("a").protobuf, authorization="Bearer wrong-key-0123456789")
        assert (unknown.status_code, unknown.headers["content-type"]) == (401, PROTOBUF)
        assert unknown.content[:2] == bytes((8, 16))  # UNAUTHENTICATED
        known = await post(here, "traces", traced("a").protobuf, authorization="Bearer a-key-of-the-agents")
        assert known.status_code == 200
        (batch,) = await here.published(Spans, 1)
        assert batch.key_id is not None
        assert json.loads((await post(here, "traces", b"{}", content_type=JSON)).content)["code"] == 16
