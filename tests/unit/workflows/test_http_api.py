"""The HTTP API: who may do what, what is refused in words, and what its events say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
import uuid_utils

from ratchet.core.contract.state import KeyLimits
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import CALLER, IDENTIFY
from ratchet.workflows.domain.workflow import Inputs
from ratchet.workflows.http_api import LARGEST_INPUTS, WorkerRoutes, WorkflowRoutes, http_app
from tests.support.workflow_world import ScriptedGateway, WorkflowWorld, asked_of, hangs, llm

AGENT = Caller("key_a", "agent", frozenset({"infer:planner"}))
VIEWER = Caller("key_v", "viewer", frozenset({"view"}))
OTHER = Caller("key_s", "other", frozenset({"infer:other", "view:other"}))
OPERATOR = Caller("key_o", "operator", frozenset({"operate"}))


@asynccontextmanager
async def served(world: WorkflowWorld, caller: Caller = ANYONE) -> AsyncIterator[httpx.AsyncClient]:
    """The API, as it is for one caller."""
    routes = WorkflowRoutes(world.process(), world.store, "user-key", world.bus.now)
    api = http_app(routes, WorkerRoutes(world.workers))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def identify() -> Caller:
            return caller

        await api({**scope, CALLER: caller, IDENTIFY: identify}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://there") as client:
        yield client


async def test_a_workflow_is_taken_shown_and_listed() -> None:
    world = WorkflowWorld()
    await world.workers.put(llm())
    async with served(world) as client:
        answer = await client.post("/v1/workflows", json={"instruction": "Write.", "user": "mia"})
        workflow_id = answer.json()["workflow_id"]
        assert (answer.status_code, answer.json()["state"]) == (202, "planning")
        workflow = await world.published(workflow_id)
        assert workflow.user_ref is not None
        assert (await world.store.inputs(workflow_id)).user is None
        shown = (await client.get(f"/v1/workflows/{workflow_id}")).json()
        assert (shown["state"], shown["sub_tasks"][0]["output"][:6]) == ("succeeded", "writer")
        (listed,) = (await client.get("/v1/workflows")).json()["workflows"]
        assert (listed["workflow_id"], listed["sub_tasks"], listed["result"]) == (workflow_id, [], None)
        again = await client.post("/v1/workflows", json={"instruction": "Write.", "workflow_id": workflow_id})
        assert (again.status_code, again.json()["state"]) == (200, "succeeded")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"instruction": ""}, "instruction"),
    ({"instruction": "  "}, "empty"),
    ({"instruction": "x" * 20_001}, "instruction"),
    ({"instruction": "x", "budget_usd": 0}, "budget_usd"),
    ({"instruction": "x", "deadline_s": 0}, "deadline_s"),
    ({"instruction": "x", "inputs": {"a": "x" * LARGEST_INPUTS}}, "inputs have"),
    ({"instruction": "x", "inputs": {"<a>": "x"}}, "names no input"),
    ({"instruction": "x", "policy": "other@1"}, "`planner@3`"),
    ({"instruction": "x", "policy": "planner"}, "`planner@3`"),
    ({"instruction": "x", "policy": "☃@1"}, "`planner@3`"),
    ({"instruction": "x", "workflow_id": "mine"}, "version 7"),
    ({"instruction": "x", "workflow_id": "7b0e7a52-0f0e-4a63-9c1c-0c9f6f0f4b1d"}, "version 7"),
    ({"instruction": "x", "session": "café"}, "session"),
    ({"instruction": "x", "colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("body", "why"), WRONG, ids=[why for _, why in WRONG])
async def test_a_wrong_order_is_refused_in_words(body: dict[str, Any], why: str) -> None:
    async with served(WorkflowWorld()) as client:
        answer = await client.post("/v1/workflows", json=body)
        assert answer.status_code == 400
        assert why in answer.json()["error"]["message"]


async def test_keys_see_the_workflows_of_their_roles_alone() -> None:
    world = WorkflowWorld()
    await world.workers.put(llm())
    async with served(world, AGENT) as client:
        begun = (await client.post("/v1/workflows", json={"instruction": "Write."})).json()["workflow_id"]
        await world.published(begun)
        assert (await client.get(f"/v1/workflows/{begun}")).status_code == 200
        assert (await client.post("/v1/workflows", json={"instruction": "x", "role": "other"})).status_code == 403
        assert (await client.post("/v1/workers", content=msgspec.json.encode(llm()))).status_code == 403
    async with served(world, OTHER) as client:
        assert (await client.get(f"/v1/workflows/{begun}")).status_code == 404
        assert (await client.post(f"/v1/workflows/{begun}/cancel")).status_code == 404
        assert (await client.get(f"/v1/workflows/{begun}/events")).status_code == 404
        assert (await client.get("/v1/workflows")).json()["workflows"] == []
        taken = {"instruction": "x", "role": "other", "workflow_id": begun}
        assert (await client.post("/v1/workflows", json=taken)).status_code == 400
    async with served(world, VIEWER) as client:
        assert len((await client.get("/v1/workflows")).json()["workflows"]) == 1
        assert (await client.post("/v1/workflows", json={"instruction": "x"})).status_code == 403
        assert (await client.post(f"/v1/workflows/{begun}/cancel")).status_code == 403


async def test_an_id_with_another_order_is_refused() -> None:
    world = WorkflowWorld()
    await world.workers.put(llm())
    async with served(world) as client:
        order = {"instruction": "Write.", "inputs": {"a": "1"}, "workflow_id": str(uuid_utils.uuid7())}
        assert (await client.post("/v1/workflows", json=order)).status_code == 202
        assert (await client.post("/v1/workflows", json={**order, "budget_usd": 2.0})).status_code == 200
        for other in ({"instruction": "Read."}, {"inputs": {"a": "2"}}):
            assert (await client.post("/v1/workflows", json={**order, **other})).status_code == 409
        await world.published(order["workflow_id"])


async def test_a_budget_above_what_the_key_may_spend_is_refused() -> None:
    limited = replace(AGENT, limits=KeyLimits(usd_per_day=0.5))
    async with served(WorkflowWorld(), limited) as client:
        answer = await client.post("/v1/workflows", json={"instruction": "x", "budget_usd": 0.6})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "budget_usd")


async def test_a_list_has_the_newest_of_the_roles_that_may_be_seen() -> None:
    world = WorkflowWorld()
    for role in ("planner", "other", "other"):
        await world.store.create(world.workflow(role=role), Inputs(texts={}))
    (newest,) = await world.store.newest(1, lambda role: role == "planner")
    assert newest.role == "planner"


async def test_a_cancelled_workflow_is_answered_as_cancelled() -> None:
    world = WorkflowWorld(gateway=ScriptedGateway(hangs))
    await world.workers.put(llm())
    async with served(world) as client:
        begun = (await client.post("/v1/workflows", json={"instruction": "Write."})).json()["workflow_id"]
        await asked_of(world.gateway, 1)
        answer = (await client.post(f"/v1/workflows/{begun}/cancel")).json()
        assert (answer["state"], answer["error"]) == ("cancelled", "it was cancelled")
        again = (await client.post(f"/v1/workflows/{begun}/cancel")).json()
        assert (again["state"], again["ended_at"]) == ("cancelled", answer["ended_at"])


async def test_workers_are_added_replaced_and_removed() -> None:
    world = WorkflowWorld()
    async with served(world, OPERATOR) as client:
        for worker in (llm("b"), llm("a"), llm("b", cost=0.5)):
            assert (await client.post("/v1/workers", content=msgspec.json.encode(worker))).status_code == 200
        listed = (await client.get("/v1/workers")).json()["workers"]
        assert [(each["worker"]["name"], each["worker"]["cost_per_token"]) for each in listed] == [
            ("a", 1e-6),
            ("b", 0.5),
        ]
        assert (await client.post("/v1/workers/a/remove")).json()["worker"]["name"] == "a"
        assert (await client.get("/v1/workers/a")).status_code == 404


WRONG_WORKERS: list[tuple[dict[str, Any], str]] = [
    ({"name": "A b"}, "name"),
    ({"model": None}, "either"),
    ({"url": "http://there"}, "either"),
    ({"model": None, "url": "file:///etc/passwd"}, "http://"),
    ({"model": None, "url": "http://[abc"}, "with a host"),
    ({"model": None, "url": "http://a:xy/"}, "with a host"),
    ({"capabilities": ["cooking"]}, "there is no type"),
    ({"capabilities": []}, "capabilities"),
    ({"model_type": "oracle"}, "there is no model_type"),
]


@pytest.mark.parametrize(("members", "why"), WRONG_WORKERS, ids=[str(members) for members, _ in WRONG_WORKERS])
async def test_a_wrong_worker_is_refused_in_words(members: dict[str, Any], why: str) -> None:
    given = {"name": "w", "model_type": "llm", "capabilities": ["generation"], "model": "m", "cost_per_token": 1e-6}
    given |= members
    async with served(WorkflowWorld()) as client:
        answer = await client.post(
            "/v1/workers", json={key: value for key, value in given.items() if value is not None}
        )
        assert answer.status_code == 400
        assert why in answer.json()["error"]["message"]


async def test_events_show_a_workflow_until_it_is_over() -> None:
    world = WorkflowWorld()
    await world.workers.put(llm())
    async with served(world) as client:
        begun = (await client.post("/v1/workflows", json={"instruction": "Write."})).json()["workflow_id"]
        events = (await client.get(f"/v1/workflows/{begun}/events")).text.strip().split("\n\n")
    assert all(event.startswith("event: workflow\ndata: ") for event in events)
    last = msgspec.json.decode(events[-1].partition("data: ")[2])
    assert (last["workflow_id"], last["state"]) == (begun, "succeeded")


async def test_what_is_not_there_is_not_found() -> None:
    async with served(WorkflowWorld()) as client:
        for name in (str(uuid_utils.uuid7()), "x", "active.x", "%3E"):
            assert (await client.get(f"/v1/workflows/{name}")).status_code == 404
