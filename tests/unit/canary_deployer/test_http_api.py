"""The control API: answers, one-line errors, and that acts reach the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from ratchet.canary_deployer.deployments import Deployments
from ratchet.canary_deployer.http_api import Api
from ratchet.messages import ModelRollout
from tests.support.canary_world import ROLE, CanaryWorld


class Desk:
    """An operator's client, and the world behind it."""

    def __init__(self, world: CanaryWorld) -> None:
        self.world = world
        self.deployments = Deployments(world.office(), world.work())
        self.deployments.registered(ROLE)
        world.driver = self.deployments.driver(ROLE)
        api = Api(self.deployments, world.policies, world.rules, world.clock)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://deployer")

    async def post(self, path: str, body: object, status: int = 200) -> dict:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, path: str, status: int = 200) -> dict:
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    one = Desk(await CanaryWorld().with_policies(1, 2, 3))
    yield one
    await one.client.aclose()


ACT = {"actor": "ann", "reason": "because"}


async def test_rollouts_and_policies_are_shown(desk: Desk):
    assert await desk.get("/v1/rollouts") == {"rollouts": []}
    await desk.world.until("running")
    shown = await desk.get(f"/v1/rollouts/{ROLE}")
    assert (shown["state"], shown["weight"], shown["candidate"]["version"]) == ("running", 0.1, 2)
    assert shown["waiting_for"]
    assert shown["fault"] is None
    assert len((await desk.get("/v1/rollouts"))["rollouts"]) == 1
    role = await desk.get(f"/v1/policies/{ROLE}")
    assert [policy["stage"] for policy in role["policies"]] == ["stable", "canary", "registered"]
    assert role["route"]["canary"]["policy"]["version"] == 2
    assert [one["role"] for one in (await desk.get("/v1/policies"))["roles"]] == [ROLE]


async def test_acts_change_the_rollout_and_are_audited(desk: Desk):
    await desk.world.until("running")
    assert (await desk.post(f"/v1/rollouts/{ROLE}/pause", ACT))["state"] == "paused"
    assert (await desk.post(f"/v1/rollouts/{ROLE}/resume", ACT))["state"] == "running"
    assert (await desk.post(f"/v1/rollouts/{ROLE}/abort", ACT))["state"] == "aborted"
    audited = [(d.verdict, d.actor, d.reason) for d in desk.world.bus.published(ModelRollout)]
    assert audited[1:] == [(verdict, "ann", "because") for verdict in ("pause", "resume", "abort")]


async def test_a_version_can_be_started_out_of_order_and_with_override(desk: Desk):
    started = await desk.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3, "override": True})
    assert (started["state"], started["candidate"]["version"]) == ("gating", 3)
    assert started["approval"] == "emergency_override"
    await desk.world.until("running")
    assert desk.world.bus.published(ModelRollout)[-1].evidence["approval"] == "emergency_override"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/rollouts/nobody/pause", ACT, 404, "no such role: nobody"),
        (f"/v1/rollouts/{ROLE}/pause", ACT, 404, f"there was no rollout of {ROLE} yet"),
        (f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 9}, 404, f"no such policy: {ROLE}@9"),
        (f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 1}, 409, "is already the stable policy"),
        (f"/v1/rollouts/{ROLE}/start", ACT, 400, "bad request: Object missing required field `version`"),
        (f"/v1/rollouts/{ROLE}/pause", {"actor": "ann"}, 400, "missing required field `reason`"),
        (f"/v1/rollouts/{ROLE}/pause", {"actor": " ", "reason": "x"}, 400, "actor and reason must say something"),
        (f"/v1/rollouts/{ROLE}/pause", {**ACT, "force": True}, 400, "unknown field `force`"),
        (f"/v1/rollouts/{ROLE}/explode", ACT, 404, "Not Found"),
    ],
)
async def test_errors_are_one_clear_line(desk: Desk, path: str, body: object, status: int, message: str):
    error = (await desk.post(path, body, status))["error"]["message"]
    assert message in error
    assert "\n" not in error


async def test_acts_in_the_wrong_state_are_conflicts(desk: Desk):
    await desk.world.until("running")
    error = await desk.post(f"/v1/rollouts/{ROLE}/resume", ACT, 409)
    assert error["error"]["message"] == (
        "cannot resume a rollout that is running; possible: abort, advance, hold, pause, promote, roll_back"
    )
    await desk.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3}, 409)


async def test_unknown_roles_are_not_found(desk: Desk):
    assert (await desk.get("/v1/rollouts/nobody", 404))["error"]["message"] == "no such role: nobody"
    assert (await desk.get("/v1/policies/nobody", 404))["error"]["message"] == "no such role: nobody"


async def test_a_broker_that_is_away_is_a_503(desk: Desk):
    await desk.world.until("running")
    desk.world.bus.unavailable_at(desk.world.bus.faults.writes + 1)
    await desk.post(f"/v1/rollouts/{ROLE}/pause", ACT, 503)
    assert (await desk.get(f"/v1/rollouts/{ROLE}"))["state"] == "running"
