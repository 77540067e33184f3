"""Keys on the real broker: gateways, coordinator and deployer follow them without a restart, also while it is away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback
from ratchet.core.contract.state import KEYS, POLICIES, Key, PolicyStage, PolicyVersion
from ratchet.core.service.settings import SharedSettings
from tests.support.callers import made
from tests.support.coordinator import coordinating, played, stored
from tests.support.gateway_scene import ROLE, Scene, ask, scene, version
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse
from tests.support.servers import Broker, RunningServer

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def status_of(url: str, secret: str | None, path: str = "/v1/models", **headers: str) -> int:
    own = {"authorization": f"Bearer {secret}"} if secret else {}
    async with http_client(base_url=url) as http:
        return (await http.get(path, headers={**own, **headers})).status_code


async def until_it_counts(url: str, secret: str | None, status: int) -> None:
    async def answered() -> bool:
        return await status_of(url, secret) == status

    await eventually(answered)


async def test_a_key_counts_in_every_gateway_until_it_is_revoked_or_expires(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path / "a") as here, scene(nats, tmp_path / "b") as other:
        gateways = (here.url, other.url)
        assert [await status_of(url, "anything") for url in gateways] == [200, 200]
        key, secret = await made(here.bus, f"infer:{ROLE}")
        for url in gateways:
            await until_it_counts(url, "anything", 401)
            await until_it_counts(url, secret, 200)
            assert [await status_of(url, None, **{name: secret}) for name in ("x-api-key", "api-key")] == [200, 200]
            assert await status_of(url, None, authorization=secret) == 401
            assert await status_of(url, None, authorization=f"bEARER {secret}") == 200
        revoked = msgspec.structs.replace(key, revoked_at=datetime.now(UTC))
        await Bucket(here.bus, KEYS, Key).put(key.key_id, revoked)
        for url in gateways:
            await until_it_counts(url, secret, 401)
        _, short = await made(here.bus, f"infer:{ROLE}", expires_at=datetime.now(UTC) + timedelta(seconds=8))
        await until_it_counts(here.url, short, 200)
        await eventually(lambda: _is(here.url, short, 401))


async def _is(url: str, secret: str, status: int) -> bool:
    return await status_of(url, secret) == status


@pytest.mark.own_broker
async def test_known_keys_count_without_a_broker_and_new_ones_after_it(nats: RunningServer, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        _, secret = await made(here.bus, f"infer:{ROLE}")
        await until_it_counts(here.url, secret, 200)
        await asyncio.to_thread(nats.kill)
        assert [await status_of(here.url, one) for one in (secret, "other", None)] == [200, 401, 401]
        assert (await ask(here.client(api_key=secret), HI)).http_response.status_code == 200
        await asyncio.to_thread(nats.start)

        async def later() -> str | None:
            try:
                return (await made(here.bus, f"infer:{ROLE}"))[1]
            except Exception:  # noqa: BLE001 - the connection heals
                return None

        fresh = await eventually(later)
        await eventually(lambda: _is(here.url, str(fresh), 200))


@pytest.mark.parametrize(
    "hostile", [b"Bearer \xff\xfe", b"Bearer " + b"k" * 60_000, b"Bearer k\xc3\xb6y", b"Bearer a b"]
)
async def test_a_hostile_header_is_401_and_the_gateway_goes_on(nats: Broker, tmp_path: Path, hostile: bytes) -> None:
    async with scene(nats, tmp_path, api_keys=["good-0123456789ab"]) as here, http_client(base_url=here.url) as http:
        answer = await http.get("/v1/models", headers={"authorization": hostile})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert await status_of(here.url, "good-0123456789ab") == 200


async def test_key_reaches_its_roles_and_a_refused_version_only_operators(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        agent_key, agent = await made(here.bus, f"infer:{ROLE}", f"feedback:{ROLE}")
        annotator_key, annotator = await made(here.bus, "annotate")
        _, other = await made(here.bus, "infer:sales", "feedback:sales")
        _, operator = await made(here.bus, "infer:*", "operate")
        await eventually(lambda: _is(here.url, operator, 200))
        asking = {name: here.client(api_key=secret) for name, secret in (("agent", agent), ("other", other))}
        trajectory = (await ask(asking["agent"], HI)).headers["x-ratchet-trajectory"]
        with pytest.raises(openai.PermissionDeniedError, match=f"infer:{ROLE}"):
            await ask(asking["other"], HI)
        assert [one.id async for one in asking["other"].models.list()] == []
        refused = msgspec.structs.replace(version(2), stage=PolicyStage.REFUSED)
        await Bucket(here.bus, POLICIES, PolicyVersion).put(f"{ROLE}.2", refused)
        here.engine.resident.add(version(2).name)

        async def is_known() -> bool:
            try:
                await ask(asking["agent"], HI, model=f"{ROLE}@2")
            except openai.PermissionDeniedError as error:
                return "operate" in str(error)
            return False

        await eventually(is_known)
        pinned = await ask(here.client(api_key=operator), HI, model=f"{ROLE}@2")
        assert pinned.headers["x-ratchet-policy"] == refused.name
        body = {"trajectory_id": trajectory, "role": ROLE, "kind": "thumbs", "value": True}
        assert await posted(here, "/v1/feedback", other, body) == 403
        assert await posted(here, f"/v1/trajectories/{trajectory}/end", other, {"role": ROLE}) == 403
        assert await posted(here, "/v1/feedback", agent, body) == 202
        for claim in ({"rater": "alice"}, {"source": "annotation_console"}):
            assert await posted(here, "/v1/feedback", agent, {**body, **claim}) == 403
        claimed = {**body, "rater": "alice", "source": "annotation_console"}
        assert await posted(here, "/v1/feedback", annotator, claimed) == 202
        for wrong in ({"kind": "update"}, {"key_id": "key_of_another"}):
            assert await posted(here, "/v1/feedback", annotator, {**body, **wrong}) == 400
        first, second = await here.published(Feedback, 2)
        assert (first.rater, first.source, first.key_id) == (None, "gateway", agent_key.key_id)
        assert (second.rater, second.source, second.key_id) == ("alice", "annotation_console", annotator_key.key_id)
        assert await posted(here, f"/v1/trajectories/{trajectory}/end", agent, {}) == 202


async def posted(here: Scene, path: str, secret: str, body: Mapping[str, Any]) -> int:
    async with http_client(base_url=here.url) as http:
        return (await http.post(path, json=body, headers={"authorization": f"Bearer {secret}"})).status_code


async def test_the_coordinator_creates_lists_and_revokes_and_records_who_asked(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        stored(shared_settings, bus, [*played("first", 0.2, seconds=1), *played("second", 0.8, seconds=2)]),
        coordinating(shared_settings, bus) as workshop,
        scene(nats, tmp_path, coordinator_url=str(workshop.api.base_url)) as here,
    ):
        api = workshop.api
        early = await api.post("/v1/keys", json={"name": "agents", "scopes": ["infer:*"]})
        assert (early.status_code, "admin" in early.text) == (409, True)
        admin = await created(api, None, "root", ["admin"])
        train = await created(api, admin, "ci", ["train"])
        view = await created(api, admin, "dashboard", ["view"])
        for secret in (train, view):
            await eventually(lambda secret=secret: _is(str(api.base_url), secret, 200))
            await eventually(lambda secret=secret: _refuses(here.url, secret))
        body = {"algorithm": "rloo", "role": ROLE, "base_model": "org/model", "requester": "alice"}
        assert await posted_to(api, "/v1/jobs?dry_run=true", view, body) == 403
        async with http_client(base_url=here.url, headers={"x-api-key": train}) as gateway:
            asked = await gateway.post("/v1/jobs", json=body)
            assert asked.status_code == 201, asked.text
            job = asked.json()
            assert re.fullmatch(r"ci \(key_\w+\) on behalf of alice", job["request"]["requester"])
            cancelled = (await gateway.post(f"/v1/jobs/{job['training_job_id']}/cancel")).json()
            assert re.fullmatch(r"ci \(key_\w+\)", cancelled["cancelled_by"])
        listed = (await api.get("/v1/keys", headers={"authorization": f"Bearer {admin}"})).json()["keys"]
        assert [one["name"] for one in listed] == ["dashboard", "ci", "root"]
        assert all("hash" not in one for one in listed)
        assert admin not in str(listed)
        root = listed[-1]["key_id"]
        assert await posted_to(api, f"/v1/keys/{root}/revoke", admin, {}) == 409
        assert await posted_to(api, f"/v1/keys/{listed[1]['key_id']}/revoke", train, {}) == 403
        assert await posted_to(api, f"/v1/keys/{listed[1]['key_id']}/revoke", admin, {}) == 200
        await eventually(lambda: _is(str(api.base_url), train, 401))


async def created(api: httpx.AsyncClient, by: str | None, name: str, scopes: list[str]) -> str:
    headers = {"authorization": f"Bearer {by}"} if by else {}

    async def answer() -> str | None:
        made = await api.post("/v1/keys", json={"name": name, "scopes": scopes}, headers=headers)
        return made.json()["key"] if made.status_code == 201 else None

    return str(await eventually(answer))


async def posted_to(api: httpx.AsyncClient, path: str, secret: str, body: Mapping[str, Any]) -> int:
    return (await api.post(path, json=body, headers={"authorization": f"Bearer {secret}"})).status_code


async def _refuses(url: str, secret: str) -> bool:
    """Whether the gateway knows the key: it has no scope to list models."""
    return await status_of(url, secret) == 403
