"""What the engine counts when policies come and go, and that adapters share their base."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import httpx
from prometheus_client import REGISTRY

from ratchet.core.errors import Rejected
from ratchet.core.service.asgi import JsonApi
from ratchet.core.service.problems import HttpError
from ratchet.core.stores.policies import Policy
from ratchet.local.engine_local.handlers import Engine
from ratchet.local.engine_local.registry import Registry
from ratchet.local.engine_local.resolving import Resolver
from ratchet.local.engine_local.settings import BODY_LIMIT
from ratchet.local.engine_local.torch_policies import Served

COUNTED = (
    ("ratchet_engine_loads_total", {"outcome": "loaded"}),
    ("ratchet_engine_loads_total", {"outcome": "refused"}),
    ("ratchet_engine_load_seconds_count", {}),
    ("ratchet_engine_evictions_total", {"reason": "room"}),
    ("ratchet_engine_evictions_total", {"reason": "unloaded"}),
)


def counts() -> list[float]:
    return [REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in COUNTED]


def now() -> datetime:
    return datetime(2026, 1, 5, tzinfo=UTC)


async def resolver_answers(resolver: Resolver, name: str) -> None:
    with suppress(HttpError):
        await resolver.resolve(name)


async def test_every_load_and_every_eviction_is_counted(served: Served) -> None:
    async def find(name: str) -> Policy:
        return Policy(f"s3://b/policies/{name}.json", "0" * 64, nothing)

    async def load(uri: str) -> Served:
        if "broken" in uri:
            raise Rejected("no such policy")
        return served

    nothing = cast("Any", None)
    registry: Registry[Served] = Registry(2, lambda _: None)
    resolver = Resolver(registry, find, load, now)
    engine = Engine(nothing, registry, resolver, nothing, now)
    transport = httpx.ASGITransport(cast("Any", JsonApi(engine.route, BODY_LIMIT)))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine/v1") as http:
        before = counts()
        for role in ("one", "two", "one", "three", "broken"):
            await resolver_answers(resolver, f"{role}@1-00000000")
        await http.post("/unload_lora_adapter", json={"lora_name": "three@1-00000000"})
    added = [now - then for now, then in zip(counts(), before, strict=True)]
    assert added == [3, 1, 3, 1, 1]
    assert REGISTRY.get_sample_value("ratchet_engine_resident_policies") == 1 == len(registry)
