"""Clients that build their paths, pack their bodies or live in browsers in ways of their own."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import httpx
import msgspec
import pytest

from ratchet.core.contract import Turn
from tests.support.gateway_scene import ROLE, scene
from tests.support.running import http_client
from tests.support.servers import Broker

BODY = msgspec.json.encode({"model": ROLE, "messages": [{"role": "user", "content": "where is it?"}]})
JSON = {"content-type": "application/json"}
SITE = "https://app.example"
NOT_ALLOWED = (
    ("DELETE", "/chat/completions", "POST"),
    ("GET", "/v1/responses", "POST"),
    ("DELETE", "/v1/models/support", "GET"),
    ("PATCH", "/v1/responses/resp_1", "DELETE, GET"),
    ("GET", "/v1/trajectories/x/end", "POST"),
)
"""Method, path, and the methods that the path has."""


async def test_every_way_to_write_the_path_is_the_same_path(nats: Broker, tmp_path: Path) -> None:
    paths = [
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21",
        "/openai/v1/chat/completions",
        "/t/0199f3a0-0000-7000-8000-000000000001/chat/completions/",
    ]
    async with scene(nats, tmp_path) as here, http_client() as http:
        for path in paths:
            assert (await http.post(here.url + path, content=BODY, headers=JSON)).status_code == 200
        assert len(await here.published(Turn, len(paths))) == len(paths)
        listed = await http.head(f"{here.url}/v1/models/")
        assert (listed.status_code, listed.content) == (200, b"")
        assert (await http.post(f"{here.url}/v1/audio/speech", content=BODY, headers=JSON)).status_code == 404
        for method, path, allowed in NOT_ALLOWED:
            refused = await http.request(method, f"{here.url}{path}")
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        refused = await http.post(f"{here.url}/v1/conversations", content=b"{}", headers=JSON)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "conversations_not_kept")
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert (await http.get(f"{here.url}/v1/responses", headers=upgrade)).status_code == 426


async def test_azures_deployment_is_the_model_where_the_body_names_none(nats: Broker, tmp_path: Path) -> None:
    unnamed = msgspec.json.encode({"messages": [{"role": "user", "content": "where is it?"}]})
    null = msgspec.json.encode({"model": None, "messages": [{"role": "user", "content": "where is it?"}]})
    async with scene(nats, tmp_path, roles=["planner"]) as here, http_client() as http:

        async def post(path: str, body: bytes) -> httpx.Response:
            return await http.post(f"{here.url}{path}?api-version=2024-10-21", content=body, headers=JSON)

        for body in (unnamed, null):
            for prefix in ("", "/t/0199f3a0-0000-7000-8000-000000000001"):
                path = f"{prefix}/openai/deployments/{ROLE}/chat/completions"
                assert (await post(path, body)).status_code == 200
        nobody = await post("/openai/deployments/planner/chat/completions", unnamed)
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "model_not_found")
        broken = await post(f"/openai/deployments/{ROLE}/chat/completions", b"{")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_body_is_unpacked(nats: Broker, tmp_path: Path, encoding: str, pack: object) -> None:
    assert callable(pack)
    headers = {**JSON, "content-encoding": encoding}
    async with scene(nats, tmp_path, body_limit=100_000) as here, http_client() as http:

        async def post(content: bytes, **more: str) -> httpx.Response:
            return await http.post(f"{here.url}/v1/chat/completions", content=content, headers={**headers, **more})

        assert (await post(pack(BODY))).json()["choices"][0]["message"]["content"] == here.engine.answer
        bomb = await post(pack(b" " * 50_000_000))
        assert (bomb.status_code, bomb.json()["error"]["code"]) == (413, "body_too_large")
        for broken in (BODY, pack(BODY)[:-4]):
            assert (await post(broken)).status_code == 400
        unknown = await post(BODY, **{"content-encoding": "br"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_only_pages_of_the_sites_that_the_operator_names_may_call(nats: Broker, tmp_path: Path) -> None:
    asks = {"origin": SITE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with scene(nats, tmp_path, cors_origins=[SITE]) as here, http_client() as http:
        url = f"{here.url}/v1/chat/completions"
        allowed = await http.options(url, headers=asks)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, SITE)
        answer = await http.post(url, content=BODY, headers={**JSON, "origin": SITE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, SITE)
        assert answer.headers["access-control-expose-headers"] == "*"  # browsers' SDKs read limits and request ids
        assert "access-control-allow-credentials" not in answer.headers  # with which `*` would mean nothing
        other = "https://evil.example"
        assert (await http.options(url, headers={**asks, "origin": other})).status_code == 400
        refused = await http.post(url, content=BODY, headers={**JSON, "origin": other})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "other_origin")
    async with scene(nats, tmp_path / "closed") as here, http_client() as http:
        url = f"{here.url}/v1/chat/completions"
        assert (await http.options(url, headers=asks)).status_code == 405
        assert (await http.post(url, content=BODY, headers={**JSON, "origin": SITE})).status_code == 403
