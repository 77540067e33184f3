"""The control API: answers, one-line errors, and that acts reach the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio

from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.rollout import PendingEvent, Rollout
from ratchet.canary_deployer.http_api import Api
from ratchet.contract import ModelRollout, encode
from ratchet.contract.state import POLICIES, ROLLOUTS, PolicyVersion
from tests.support.canary_world import ROLE, CanaryWorld, policy


class Desk:
    """An operator's client, and the world behind it."""

    def __init__(self, world: CanaryWorld) -> None:
        self.world = world
        factory = world.factory()
        self.controllers = Controllers(factory, world.policies, factory.rollouts, world.lead)
        self.controllers.on_registered(ROLE)
        self.log: list[ModelRollout] | None = None
        """The decisions as somebody left them; None: as they were taken."""
        api = Api(self.controllers, world.policies, self, world.rules)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://deployer")

    async def decisions_of(self, role: str) -> list[ModelRollout]:
        taken = self.world.bus.published(ModelRollout) if self.log is None else self.log
        return [decision for decision in taken if decision.role == role]

    async def post(self, path: str, body: object, status: int = 200) -> dict:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def register(self, version: int) -> None:
        """One more candidate."""
        bucket = self.world.bus.bucket(POLICIES, PolicyVersion)
        await bucket.put(f"{ROLE}.{version}", policy(version))

    async def get(self, path: str, status: int = 200) -> dict:
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    one = Desk(await CanaryWorld().with_policies(1, 2))
    one.world.controller = await one.controllers.controller(ROLE)
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
    assert [policy["stage"] for policy in role["policies"]] == ["stable", "canary"]
    assert role["route"]["canary"]["policy"]["version"] == 2
    assert [one["role"] for one in (await desk.get("/v1/policies"))["roles"]] == [ROLE]


async def test_a_record_that_cannot_be_read_is_no_fault_of_the_request(desk: Desk):
    await desk.world.bus.bucket(ROLLOUTS, msgspec.Raw).put(ROLE, msgspec.Raw(b"{"))
    told = await desk.post(f"/v1/rollouts/{ROLE}/pause", ACT, 503)
    assert told["error"]["message"].startswith(f"{ROLLOUTS}/{ROLE} cannot be read")


async def test_a_role_that_a_new_leader_has_not_read_yet_is_asked_for_again_and_not_unknown(desk: Desk):
    await desk.world.bus.bucket(POLICIES, PolicyVersion).put("planner.1", policy(1, role="planner"))
    told = await desk.post("/v1/rollouts/planner/rollback", ACT, 503)
    assert told["error"]["message"].endswith("try again in a few seconds")


@pytest.mark.parametrize("name", ["leader.canary_deployer", "*", "%3E", "%00", "a%0d%0ab", "%20", "%ff", "x" * 65])
async def test_what_is_no_name_of_a_role_is_not_looked_up(desk: Desk, name: str):
    await desk.world.bus.bucket(ROLLOUTS, msgspec.Raw).put("leader.canary_deployer", msgspec.Raw(b"{}"))
    for path in (f"/v1/rollouts/{name}", f"/v1/rollouts/{name}/audit", f"/v1/policies/{name}"):
        assert "no such role" in (await desk.get(path, 404))["error"]["message"]
    await desk.post(f"/v1/rollouts/{name}/pause", ACT, 404)


async def test_acts_change_the_rollout_and_are_audited(desk: Desk):
    await desk.world.until("running")
    assert (await desk.post(f"/v1/rollouts/{ROLE}/pause", ACT))["state"] == "paused"
    assert (await desk.post(f"/v1/rollouts/{ROLE}/resume", ACT))["state"] == "running"
    assert (await desk.post(f"/v1/rollouts/{ROLE}/rollback", ACT))["state"] == "rolled_back"
    audited = [(d.verdict, d.actor, d.reason) for d in desk.world.bus.published(ModelRollout)]
    assert audited[1:] == [(verdict, "ann", "because") for verdict in ("pause", "resume", "roll_back")]


async def test_a_version_can_be_started_out_of_order_and_with_override(desk: Desk):
    await desk.register(3)
    await desk.register(4)
    started = await desk.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3, "override": True})
    assert (started["state"], started["candidate"]["version"]) == ("gating", 3)
    assert started["approval"] == "emergency_override"
    await desk.world.until("running")
    assert desk.world.bus.published(ModelRollout)[-1].evidence["approval"] == "emergency_override"


REFUSED = pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/rollouts/nobody/pause", ACT, 404, "no such role: nobody"),
        (f"/v1/rollouts/{ROLE}/pause", ACT, 404, f"there was no rollout of {ROLE} yet"),
        (f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 9}, 404, f"no such policy: {ROLE}@9"),
        (f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 1}, 409, "is already the stable policy"),
        (f"/v1/rollouts/{ROLE}/start", ACT, 400, "bad request: Object missing required field `version`"),
        (f"/v1/rollouts/{ROLE}/pause", {**ACT, "reason": "x" * 10_001}, 400, "Expected `str` of length <= 10000"),
        (f"/v1/rollouts/{ROLE}/pause", {"actor": "ann"}, 400, "missing required field `reason`"),
        (f"/v1/rollouts/{ROLE}/pause", {"actor": " ", "reason": "x"}, 400, "actor and reason must say something"),
        (f"/v1/rollouts/{ROLE}/pause", {**ACT, "force": True}, 400, "unknown field `force`"),
        (f"/v1/rollouts/{ROLE}/explode", ACT, 404, "Not Found"),
    ],
)


@REFUSED
async def test_errors_are_one_clear_line(desk: Desk, path: str, body: object, status: int, message: str):
    error = (await desk.post(path, body, status))["error"]["message"]
    assert message in error
    assert "\n" not in error


async def test_acts_in_the_wrong_state_are_conflicts(desk: Desk):
    await desk.world.until("running")
    error = await desk.post(f"/v1/rollouts/{ROLE}/resume", ACT, 409)
    assert error["error"]["message"] == (
        "cannot resume a rollout that is running: possible: pause, promote, rollback, revert"
    )
    await desk.register(3)
    await desk.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3}, 409)


@REFUSED
async def test_a_dry_run_is_refused_as_the_act_itself_is(
    desk: Desk, path: str, body: dict[str, object], status: int, message: str
):
    assert message in (await desk.post(path, {**body, "dry_run": True}, status))["error"]["message"]


async def test_a_dry_run_answers_what_an_act_would_lead_to_and_changes_nothing(desk: Desk):
    await desk.world.until("running")
    before = (desk.world.bus.faults.writes, await desk.world.rollout(), await desk.world.route())
    for act, state in (("pause", "paused"), ("rollback", "rolled_back"), ("abort", "rolled_back")):
        assert (await desk.post(f"/v1/rollouts/{ROLE}/{act}", {**ACT, "dry_run": True}))["state"] == state
    promotion = {**ACT, "override": True, "dry_run": True}
    assert (await desk.post(f"/v1/rollouts/{ROLE}/promote", promotion))["state"] == "promoted"
    for refused in ("promote", "resume", "approve", "revert"):
        await desk.post(f"/v1/rollouts/{ROLE}/{refused}", {**ACT, "dry_run": True}, 409)
    await desk.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 2, "dry_run": True}, 409)
    assert (desk.world.bus.faults.writes, await desk.world.rollout(), await desk.world.route()) == before
    assert (await desk.get(f"/v1/rollouts/{ROLE}"))["state"] == "running"


async def test_a_dry_run_of_a_start_opens_and_approves_nothing(desk: Desk):
    start = {**ACT, "version": 2, "dry_run": True}
    assert (await desk.post(f"/v1/rollouts/{ROLE}/start", start))["state"] == "gating"
    assert await desk.get("/v1/rollouts") == {"rollouts": []}
    desk.world.gates["heldout_tasks"].outcome = "needs_approval"
    waiting = await desk.world.until("awaiting_approval")
    assert (await desk.post(f"/v1/rollouts/{ROLE}/start", start))["state"] == "running"
    assert (await desk.post(f"/v1/rollouts/{ROLE}/approve", {**ACT, "dry_run": True}))["state"] == "running"
    assert await desk.world.rollout() == waiting


async def test_unknown_roles_are_not_found(desk: Desk):
    assert (await desk.get("/v1/rollouts/nobody", 404))["error"]["message"] == "no such role: nobody"
    assert (await desk.get("/v1/policies/nobody", 404))["error"]["message"] == "no such role: nobody"


async def test_a_broker_that_is_away_is_a_503(desk: Desk):
    await desk.world.until("running")
    desk.world.bus.unavailable_at(desk.world.bus.faults.writes + 1)
    await desk.post(f"/v1/rollouts/{ROLE}/pause", ACT, 503)
    assert (await desk.get(f"/v1/rollouts/{ROLE}"))["state"] == "running"


async def test_an_untouched_log_is_whole(desk: Desk):
    await desk.world.until("running")
    await desk.post(f"/v1/rollouts/{ROLE}/abort", ACT)
    found = await desk.get(f"/v1/rollouts/{ROLE}/audit")
    assert (found["decisions"], found["whole"], found["complete"], found["first_break"]) == (2, True, True, None)


async def test_a_changed_decision_is_named(desk: Desk):
    await desk.world.until("running")
    await desk.post(f"/v1/rollouts/{ROLE}/abort", ACT)
    start, abort = await desk.decisions_of(ROLE)
    desk.log = [start, msgspec.structs.replace(abort, actor="nobody")]
    found = await desk.get(f"/v1/rollouts/{ROLE}/audit")
    assert (found["whole"], found["problem"]) == (False, "it is not what was decided")
    assert (found["first_break"]["event_id"], found["first_break"]["actor"]) == (abort.event_id, "nobody")


async def test_a_removed_end_is_noticed(desk: Desk):
    await desk.world.until("running")
    await desk.post(f"/v1/rollouts/{ROLE}/abort", ACT)
    desk.log = (await desk.decisions_of(ROLE))[:1]
    found = await desk.get(f"/v1/rollouts/{ROLE}/audit")
    assert (found["whole"], found["problem"]) == (False, "the newest decisions are missing from the log")
    desk.log = []
    assert not (await desk.get(f"/v1/rollouts/{ROLE}/audit"))["whole"]


async def test_a_decision_that_is_taken_and_not_announced_yet_is_not_missing(desk: Desk):
    await desk.world.until("running")
    await desk.post(f"/v1/rollouts/{ROLE}/abort", ACT)
    start, abort = await desk.decisions_of(ROLE)
    bucket = desk.world.bus.bucket(ROLLOUTS, Rollout)
    entry = await bucket.get(ROLE)
    assert entry is not None
    pending = PendingEvent(ModelRollout.TOPIC, encode(abort).decode())
    await bucket.put(ROLE, msgspec.structs.replace(entry.value, outbox=(pending,)))
    restarted = Desk(desk.world)
    restarted.log = [start]
    async with restarted.client:
        found = await restarted.get(f"/v1/rollouts/{ROLE}/audit")
    assert (found["whole"], found["decisions"]) == (True, 1)


async def test_the_audit_of_an_unknown_role_is_not_found(desk: Desk):
    assert "no such role" in (await desk.get("/v1/rollouts/nobody/audit", 404))["error"]["message"]


async def test_the_strategy_is_chosen_with_the_start(desk: Desk):
    desk.world.gates["heldout_tasks"].outcome = "failed"
    await desk.world.until("refused")
    start = {**ACT, "version": 2, "override": True, "strategy": "blue_green"}
    await desk.post(f"/v1/rollouts/{ROLE}/start", start)
    assert (await desk.world.until("soaking")).strategy == "blue_green"
    bad = await desk.post(f"/v1/rollouts/{ROLE}/start", {**start, "strategy": "hope"}, 400)
    assert "strategy" in bad["error"]["message"]
