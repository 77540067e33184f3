"""Bundles over upstreams, on the real broker: a bad prompt is taken back, a good one promoted, without any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute

from ratchet.canary_deployer.app import build
from ratchet.core.contract import ModelRollout
from ratchet.core.contract.state import BUNDLES
from ratchet.core.service.http import HttpServer
from tests.support.canary_stage import Stage, stage
from tests.support.canary_traffic import Traffic
from tests.support.canary_world import ROLE
from tests.support.consuming import messages_of
from tests.support.running import http_client, running, running_app
from tests.support.servers import Broker, RunningServer
from tests.support.stored_values import check_buckets, check_objects

pytestmark = pytest.mark.slow


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
