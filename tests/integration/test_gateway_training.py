"""Several agents of one session and a workflow step that trains, all through one base url."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.coordinator import coordinating, played, stored
from tests.support.gateway_scene import ROLE, Scene, ask, put_routes, scene, version
from tests.support.running import connected, http_client, prepared_objects, prepared_warehouse
from tests.support.servers import Broker

SHAPE = {"message", "type", "param", "code"}
HI: list[Any] = [{"role": "user", "content": "where is it?"}]


async def test_two_roles_and_a_training_share_one_session_and_base_url(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    facts = [*played("first", 0.2, seconds=1), *played("second", 0.8, seconds=2)]
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        stored(shared_settings, bus, facts),
        coordinating(shared_settings, bus) as workshop,
        scene(nats, tmp_path, coordinator_url=str(workshop.api.base_url)) as here,
    ):
        await put_routes(bus, planner=3)
        names = {ROLE: version(1).name, "planner": version(3, "planner").name}
        here.engine.resident |= set(names.values())
        await served(here, *names)
        client = here.client(default_headers={"x-ratchet-session": "workflow-1"})
        answers = await asyncio.gather(*(ask(client, HI, model=role) for role in names))
        assert [answer.headers["x-ratchet-policy"] for answer in answers] == list(names.values())
        turns = await here.published(Turn, 2 + sum(isinstance(fact, Turn) for fact in facts))
        assert {turn.role for turn in turns if turn.session_id == "workflow-1"} == set(names)
        async with http_client(base_url=f"{here.url}/v1") as http:
            await trained(http, ROLE)


async def trained(http: httpx.AsyncClient, role: str) -> None:
    """Start a training, follow it and cancel it, as a workflow step would."""
    body = {"algorithm": "rloo", "role": role, "base_model": "org/model"}
    tried = await http.post("/jobs?dry_run=true", json=body)
    assert tried.status_code == 200, tried.text
    assert (await http.get("/jobs")).json()["jobs"] == []
    asked = await http.post("/jobs", json=body)
    assert asked.status_code == 201, asked.text
    job = asked.json()["training_job_id"]

    async def dispatched() -> bool:
        return (await http.get(f"/jobs/{job}")).json()["state"] == "dispatched"

    await eventually(dispatched)
    assert [one["training_job_id"] for one in (await http.get(f"/jobs?role={role}")).json()["jobs"]] == [job]
    assert (await http.get("/jobs?role=nobody")).json()["jobs"] == []
    assert (await http.get("/status")).json()["jobs"]["dispatched"] == 1
    for part in ("training", "dpo"):
        assert (await http.get(f"/status/{part}")).status_code == 200
    assert (await http.post(f"/jobs/{job}/cancel")).json()["training_job_id"] == job
    missing, wrong = await http.get("/jobs/unheard-of"), await http.post("/jobs", json={"algorithm": 7})
    assert (missing.status_code, wrong.status_code) == (404, 422)
    assert set(missing.json()["error"]) == set(wrong.json()["error"]) == SHAPE
    assert "algorithm" in wrong.json()["error"]["message"]


async def test_a_coordinator_that_is_away_is_a_clear_error(nats: Broker, tmp_path: Path) -> None:
    (unused_port,) = free_ports(1)
    async with (
        scene(nats, tmp_path, coordinator_url=f"http://127.0.0.1:{unused_port}") as here,
        http_client() as http,
    ):
        away = await http.get(f"{here.url}/v1/status")
        assert (away.status_code, away.json()["error"]["code"]) == (502, "coordinator_unavailable")


async def served(here: Scene, *roles: str) -> None:
    """Wait until the gateway knows the roles."""

    async def known() -> bool:
        return set(roles) <= {model.id async for model in here.client().models.list()}

    await eventually(known)
