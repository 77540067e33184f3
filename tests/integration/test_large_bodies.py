"""Bodies too large for the broker, from agents' clients, calls and telemetry, on the real servers: stored whole."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import zstandard

from ratchet import AsyncClient
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.gateway.app import build
from ratchet.gateway.settings import Constants, Settings, UpstreamSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.bodies import text_of
from tests.support.fake_engine import FakeProvider, providing
from tests.support.gateway_alone import InThisProcess
from tests.support.gateway_scene import ROLE
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse, running_app
from tests.support.telemetry import traced

MIB = 1 << 20
KEY_VARIABLE, KEY = "LARGE_BODIES_PROVIDER_KEY", "provider-key"
SECRET = "mia@example.com"
BYTES = "application/octet-stream"
SIZES = [
    pytest.param(3 * MIB // 2, id="1.5 MB"),
    pytest.param(12 * MIB, id="12 MB", marks=pytest.mark.slow),
    pytest.param(50 * MIB, id="50 MB", marks=[pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]),
]


@pytest.fixture(autouse=True)
def provider_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@dataclass
class Loop:
    """A gateway and a collector on the real servers."""

    url: str
    shared: SharedSettings
    warehouse: Warehouse
    objects: Objects

    def client(self) -> AsyncClient:
        settings = ClientSettings(shared=self.shared, gateway_url=self.url)
        return AsyncClient("agent", role=ROLE, settings=settings)

    def bodies(self) -> list[str]:
        return self.objects.list(f"bodies/{ROLE}/")

    async def has(self, table: str, text: str) -> None:
        """Return once the table has a body with the text."""

        async def there() -> bool:
            (row,) = await self.warehouse.rows(f"SELECT max(length(body)) AS n FROM {table}")
            return row["n"] >= len(text)

        await eventually(there, 300)
        rows = await self.warehouse.rows(f"SELECT body FROM {table} FINAL")
        assert any(text in row["body"] for row in rows)


@asynccontextmanager
async def looping(shared: SharedSettings, **options: Any) -> AsyncIterator[Loop]:
    objects = prepared_objects(shared)
    async with (
        prepared_warehouse(shared) as warehouse,
        connected(shared),
        providing(FakeProvider(key=KEY)) as provider,
        running_app(build_collector(CollectorSettings(shared=shared, linger_s=0.01))),
    ):
        upstream = UpstreamSettings(name="p", base_url=provider, api_key_env=KEY_VARIABLE, models={"*": "big-model"})
        settings = Settings(shared=shared, port=0, upstreams=[upstream], roles=[ROLE], grace_s=0.0, **options)
        async with running_app(build(settings, InThisProcess(), Constants())) as app:
            port: int = app.components[-1].port  # type: ignore[attr-defined]
            yield Loop(f"http://127.0.0.1:{port}", shared, warehouse, objects)


@pytest.mark.parametrize("size", SIZES)
async def test_large_observation_of_a_client_is_stored_whole_and_redacted(
    shared_settings: SharedSettings, size: int
) -> None:
    text = text_of(size)
    async with looping(shared_settings, body_limit=64 * MIB) as loop:
        async with loop.client() as client:
            with client.trajectory(task_id="t", instructions="Help.", model="m") as run:
                run.turn(observation=f"{SECRET} {text}", action="done")
                run.outcome("success")
            assert await client.flush(300)
            assert (client.stats.invalid, client.stats.overflowed) == (0, 0)
        await loop.has("trajectories", text)
        (kept,) = loop.bodies()
    blob = loop.objects.get(kept)
    assert kept.endswith(hashlib.sha256(blob).hexdigest())
    plain = zstandard.decompress(blob).decode()
    assert text in plain
    assert SECRET not in plain


@pytest.mark.parametrize("size", SIZES)
async def test_large_call_through_the_gateway_is_stored_whole(shared_settings: SharedSettings, size: int) -> None:
    text = text_of(size)
    async with looping(shared_settings, body_limit=64 * MIB, recording_bytes=256 * MIB) as loop, http_client() as http:
        asked = {"model": ROLE, "messages": [{"role": "user", "content": text}]}
        answer = await http.post(f"{loop.url}/v1/chat/completions", json=asked)
        assert answer.status_code == 200, answer.text
        await loop.has("turns", text)
        assert len(loop.bodies()) == 1


@pytest.mark.parametrize("size", SIZES[:2])
async def test_large_span_is_stored_whole(shared_settings: SharedSettings, size: int) -> None:
    text = text_of(size)
    options = {"service_roles": {"shop": ROLE}, "body_limit": 64 * MIB}
    async with looping(shared_settings, **options) as loop, http_client() as http:
        headers = {"content-type": "application/x-protobuf"}
        answer = await http.post(f"{loop.url}/v1/traces", content=traced(text).protobuf, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"")
        await loop.has("spans", text)
        assert loop.bodies()


async def test_a_body_is_taken_for_its_digest_and_the_roles_of_its_key_alone(shared_settings: SharedSettings) -> None:
    blob, digest = b"a body", hashlib.sha256(b"a body").hexdigest()
    async with (
        looping(shared_settings) as loop,
        http_client(base_url=loop.url, headers={"content-type": BYTES}) as http,
    ):
        taken = await http.put(f"/v1/bodies/{digest}", params={"role": ROLE}, content=blob)
        assert (taken.status_code, taken.json()) == (200, {"sha256": digest, "bytes": 6})
        assert loop.bodies() == [f"s3://{shared_settings.s3_bucket}/bodies/{ROLE}/{digest}"]
        other = await http.put(f"/v1/bodies/{digest}", content=b"another body")
        assert (other.status_code, other.json()["error"]["param"]) == (400, "sha256")
        for role in ("../../policies", "Support", ""):
            odd = await http.put(f"/v1/bodies/{digest}", params={"role": role}, content=blob)
            assert odd.status_code == (200 if role == "" else 400)
        assert (await http.put(f"/v1/bodies/{digest[:-1]}", content=blob)).status_code == 400
        assert (await http.get(f"/v1/bodies/{digest}")).status_code == 405
        assert (await http.put(f"/v1/bodies/{digest}", content=bytes(33 * MIB))).status_code == 413


async def test_an_object_store_that_is_away_is_named_and_costs_no_message(shared_settings: SharedSettings) -> None:
    away = shared_settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    digest = hashlib.sha256(b"a body").hexdigest()
    async with (
        looping(shared_settings) as loop,
        running_app(build(Settings(shared=away, port=0, grace_s=0.0), InThisProcess(), Constants())) as app,
        http_client(headers={"content-type": BYTES}) as http,
    ):
        url = f"http://127.0.0.1:{app.components[-1].port}"  # type: ignore[attr-defined]
        refused = await http.put(f"{url}/v1/bodies/{digest}", content=b"a body")
        assert refused.status_code == 503
        assert "object store" in refused.json()["error"]["message"]
        settings = ClientSettings(shared=shared_settings, gateway_url=url)
        async with AsyncClient("agent", role=ROLE, settings=settings) as client:
            with client.trajectory(task_id="t", model="m") as run:
                run.turn(observation=(text := text_of(3 * MIB // 2)), action="done")
            assert await client.flush(60)  # the broker takes 1.5 MB itself
        await loop.has("trajectories", text)
        assert loop.bodies() == []
