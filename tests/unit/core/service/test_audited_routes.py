"""The routes of the control APIs and the audit log: which are acts, which are reads, and what an entry says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest_asyncio
from pydantic import BaseModel

from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.cli.interfaces import DESCRIBED_BY, control_api
from ratchet.core.contract.audit import AuditEntry
from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.contract.http.rollouts import StartIn
from ratchet.core.errors import WrongState
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.audit import AuditLog
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.control_api import ControlApi, Operation
from tests.support.callers import called_by

ANN = Caller("key_k3j9d8s7f6", "ann", frozenset({KeyScope.ADMIN}))
START = {"version": 3, "actor": "bob", "reason": "because"}


def operations() -> Iterator[Operation]:
    for service in DESCRIBED_BY:
        yield from control_api(service).operations


def test_every_post_is_an_act_and_refused_where_the_log_is_away() -> None:
    names = {row.handler.__name__ for row in operations() if row.verb == "POST"}
    assert names - {row.handler.__name__ for row in operations() if row.reads or row.urgent} >= {
        *("create_key", "ask_for_training", "build_snapshot", "promote", "approve", "start", "remove_role", "judge"),
        *("run_workflow", "put_worker", "remove_worker", "dismiss_pattern", "analyze"),
    }
    assert {row.handler.__name__ for row in operations() if row.urgent} == {
        *("pause", "rollback", "revert", "revoke_key", "cancel_workflow"),
    }


def test_routes_that_hand_out_content_are_recorded_reads() -> None:
    assert {row.handler.__name__ for row in operations() if row.reads} == {
        *("list_trajectories", "get_trajectory", "get_message", "get_tokens", "get_applied"),
        *("list_rows", "list_failures", "get_queue", "get_pair", "list_keys"),
        *("preview_data", "get_replay_prompts", "get_recorded_requests", "get_workflow", "list_executions"),
        *("get_episode", "get_pattern", "list_plans", "get_plan"),
    }


class Asked(BaseModel):
    role: str | None = None


class Things:
    """An API with an audit log, and what was done."""

    def __init__(self) -> None:
        self.bus = FakeBus(FakeBroker(load_contracts()))
        self.api = ControlApi("Things", "All there is.", errors={503: "Away."})
        self.audit = self.api.audit = AuditLog(self.bus, "canary_deployer")
        self.done: list[str] = []
        role = "/v1/things/{role}/{thing}"
        self.api.route("GET", role, self.get_thing, scope=KeyScope.VIEW, reads=True)
        self.api.route("GET", "/v1/things", self.list_things, scope=KeyScope.VIEW, reads=True)
        self.api.route("POST", f"{role}/start", self.start, scope=KeyScope.OPERATE)
        self.api.route("POST", f"{role}/stop", self.stop, scope=KeyScope.OPERATE, urgent=True)
        transport = httpx.ASGITransport(called_by(self.api, ANN))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://things")

    async def get_thing(self, role: str, thing: str) -> FeedbackTaken:
        """Read one."""
        return FeedbackTaken(feedback_id=role, trajectory_id=thing)

    async def list_things(self, asked: Asked) -> FeedbackTaken:
        """Read many."""
        return FeedbackTaken(feedback_id=str(asked.role), trajectory_id="many")

    async def start(self, role: str, thing: str, body: StartIn) -> FeedbackTaken:
        """Start one."""
        if thing == "broken":
            raise WrongState("it does not start")
        self.done.append(f"start {thing}")
        return FeedbackTaken(feedback_id=role, trajectory_id=thing)

    async def stop(self, role: str, thing: str, body: StartIn) -> FeedbackTaken:
        """Stop one."""
        self.done.append(f"stop {thing}")
        return FeedbackTaken(feedback_id=role, trajectory_id=thing)

    async def post(self, path: str, body: object = START) -> int:
        return (await self.client.post(f"/v1/things/support/{path}", json=body)).status_code

    def entries(self) -> list[AuditEntry]:
        return self.bus.published(AuditEntry)


@pytest_asyncio.fixture
async def things() -> AsyncIterator[Things]:
    made = Things()
    yield made
    await made.client.aclose()


async def test_entry_of_an_act_names_actor_and_objects(things: Things) -> None:
    assert await things.post("one/start") == 200
    (entry,) = things.entries()
    assert (entry.act, entry.outcome, entry.role, entry.objects) == ("start", "asked", "support", ["one", "3"])
    assert (entry.actor, entry.key_id) == ("ann (key_k3j9d8s7f6) on behalf of bob", "key_k3j9d8s7f6")


async def test_entry_names_the_role_of_a_query_that_is_read_as_a_whole(things: Things) -> None:
    for query in ("?role=support", ""):
        assert (await things.client.get(f"/v1/things{query}")).status_code == 200
    await things.audit.flush()
    assert [entry.role for entry in things.entries()] == ["support", None]


async def test_act_that_is_refused_afterwards_is_noted_as_failed(things: Things) -> None:
    assert await things.post("broken/start") == 409
    assert [(entry.outcome, entry.status) for entry in things.entries()] == [("asked", None), ("failed", 409)]


async def test_act_without_its_entry_is_not_done_but_an_urgent_one_is(things: Things) -> None:
    things.bus.broker.refusing = True
    answer = await things.client.post("/v1/things/support/one/start", json=START)
    assert answer.status_code == 503
    assert "the audit log cannot be written" in answer.json()["error"]["message"]
    assert await things.post("one/stop") == 200
    assert things.done == ["stop one"]
    assert "1 reads or urgent acts are not recorded" in (await things.audit.check() or "")


async def test_dry_run_and_a_request_that_cannot_be_read_are_no_acts(things: Things) -> None:
    assert await things.post("one/start", {**START, "dry_run": True}) == 200
    assert await things.post("one/start", {"version": "three"}) == 400
    assert things.entries() == []


async def test_read_is_recorded_and_goes_on_where_the_log_is_away(things: Things) -> None:
    things.bus.broker.go_away()
    assert (await things.client.get("/v1/things/support/one")).status_code == 200
    await things.audit.flush()
    things.bus.broker.come_back()
    assert (await things.client.get("/v1/things/support/two")).status_code == 200
    await things.audit.flush()
    read, unrecorded = things.entries()
    assert (read.act, read.role, read.objects) == ("get_thing", "support", ["two"])
    assert (unrecorded.outcome, unrecorded.count) == ("unrecorded", 1)
