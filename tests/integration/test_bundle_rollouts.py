"""Bundles over upstreams, on the real broker: a bad prompt is taken back, a good one promoted, without any engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.core.contract import ModelRollout, Start
from ratchet.core.contract.state import BUNDLES, ROLLOUTS
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build as build_gateway
from ratchet.gateway.settings import Settings as GatewaySettings, UpstreamSettings
from tests.support.canary_stage import Stage, stage
from tests.support.canary_traffic import Traffic
from tests.support.canary_world import ROLE
from tests.support.consuming import messages_of
from tests.support.fake_engine import FakeProvider, providing
from tests.support.gateway_alone import InThisProcess
from tests.support.running import http_client, running, running_app
from tests.support.servers import Broker, RunningServer
from tests.support.stored_values import check_buckets, check_objects

pytestmark = pytest.mark.slow

KEY_VARIABLE = "RATCHET_TEST_PROVIDER_KEY"


class Upstream:
    """The gateway and the provider behind it: knows one model, and answers every policy that asks it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.app = Starlette(routes=[HttpRoute("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body["model"])
        message = {"role": "assistant", "content": "yes"}
        return JSONResponse({"choices": [{"message": message}]}, headers={"x-ratchet-policy": body["model"]})


async def create(test: Stage, text: str) -> dict[str, Any]:
    body = {"bundle": {"instructions": {"text": text}}, "actor": "ann", "reason": "try it"}
    url = f"http://127.0.0.1:{test.settings.port}/v1/policies/{ROLE}/bundles"
    async with http_client() as client:
        answer = await client.post(url, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@asynccontextmanager
async def gateway_before(provider: str, settings: SharedSettings) -> AsyncIterator[str]:
    """A gateway in front of a provider that answers for all roles; no role has a policy."""
    upstream = UpstreamSettings(name="provider", base_url=provider, api_key_env=KEY_VARIABLE, models={"*": "big-model"})
    asked = GatewaySettings(shared=settings, port=0, upstreams=[upstream], roles=[ROLE], grace_s=0.0)
    async with running_app(build_gateway(asked, recorders=InThisProcess())) as app:
        yield f"http://127.0.0.1:{app.components[-1].port}"  # type: ignore[attr-defined]


@asynccontextmanager
async def remembering(costs: list[float]) -> AsyncIterator[str]:
    """A coordinator that remembers what trajectories of version 0 cost."""

    async def costs_of(request: Request) -> Response:
        if request.path_params["version"] != 0:
            return JSONResponse({"error": {"message": "no such policy"}}, 404)
        week = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-08T00:00:00Z"}
        return JSONResponse({"role": ROLE, "version": 0, "costs_usd": costs, **week})

    route = HttpRoute("/v1/models/{role}/{version:int}/costs", costs_of)
    server = HttpServer(Starlette(routes=[route]), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}"


async def test_the_first_bundles_rollout_knows_the_traffic_before_it(
    nats: Broker, s3: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    async with (
        providing(FakeProvider(key="provider-key")) as provider,
        gateway_before(provider, shared) as gateway,
        remembering([0.5] * 120) as coordinator,
        stage(nats, s3, tmp_path, gateway_url=gateway, coordinator_url=coordinator) as test,
        running_app(build(test.settings)),
        openai.AsyncOpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as agent,
    ):
        for number in range(12):
            asked: Any = [{"role": "user", "content": f"order {number}"}]
            await agent.chat.completions.create(model=ROLE, messages=asked, user=f"customer-{number % 3}")

        async def announced() -> bool:
            return len(await messages_of(test.bus, Start)) == 12

        await eventually(announced)
        await create(test, "Help.")
        await eventually(lambda: Bucket(test.bus, ROLLOUTS, Rollout).get(ROLE))
        rollout = await test.rollout()
    assert rollout.forecast is not None
    assert (rollout.subjects_before.starts, rollout.subjects_before.subjects) == (12, 3)
    assert (rollout.cost.cap_usd, rollout.stable.version) == (2.0, 0)


@pytest.mark.timeout(180)
async def test_a_bad_bundle_is_taken_back_and_a_good_one_promoted(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    upstream = Upstream()
    server = HttpServer(upstream.app, "127.0.0.1", 0)
    async with running(server):
        url = f"http://127.0.0.1:{server.port}"
        async with (
            stage(nats, s3, tmp_path, gateway_url=url, engine_url="http://127.0.0.1:9") as test,
            running_app(build(test.settings)),
        ):
            await create(test, "Say nothing.")
            await test.stage_is(1, "canary")
            traffic = Traffic(test.bus, {0: 0.6, 1: 0.05, 2: 0.95})
            assert (await test.play_until_decided(traffic, 1)).stage == "rolled_back"
            route = await test.route()
            assert route.stable is not None
            assert (route.stable.version, route.canary) == (0, None)

            made = await create(test, "Help.")
            await test.stage_is(2, "canary")
            assert (await test.play_until_decided(traffic, 2)).stage == "stable"
            route = await test.route()
            assert route.stable is not None
            assert route.previous is not None
            assert (route.stable.version, route.stable.bundle, route.previous.version) == (2, True, 0)
            assert (await test.stage_is(0, "archived")).uri == ""
            assert {made["policy"]["name"]} < set(upstream.asked)
            decisions = await messages_of(test.bus, ModelRollout)
            assert {(d.from_version, d.to_version) for d in decisions} == {(0, 1), (0, 2)}
            assert await check_buckets(test.bus, BUNDLES) == {"bundle.v1"}
            assert "policy.manifest.v1" in check_objects(test.objects, "policies")
