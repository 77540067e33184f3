"""The control API: answers, one-line errors, and that acts reach the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.rollout import PendingEvent, Rollout
from ratchet.canary_deployer.http_api import Api
from ratchet.canary_deployer.role_removal import RoleRemoval
from ratchet.core.contract import ModelRollout, encode
from ratchet.core.contract.state import POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, PolicyVersion
from ratchet.core.rules.access import Caller
from tests.support.blobs import MemoryBlobs
from tests.support.callers import called_by
from tests.support.canary_world import ROLE, CanaryWorld, bundle_registry, policy, starts_in


class Operator:
    """An operator's client, and the world behind it."""

    def __init__(self, world: CanaryWorld) -> None:
        self.world = world
        rollouts = Bucket(world.bus, ROLLOUTS, Rollout)
        self.controllers = Controllers(lambda _: world.new_controller(), world.policies, rollouts, world.lead)
        self.controllers.on_registered(ROLE)
        self.log: list[ModelRollout] | None = None
        """The decisions as a test left them; None: as they were published."""
        self.started: dict[str, int] = {}
        """How many trajectories have started in each role."""
        started, woken = starts_in(self.started), self.controllers.on_registered
        bundles = bundle_registry(world.bus, world.policies, MemoryBlobs(), woken, world.lead, started)
        records = [Bucket(world.bus, name, msgspec.Raw) for name in (ROLLOUTS, ROLLOUT_CHUNKS)]
        removal = RoleRemoval(
            policies=world.policies,
            controllers=self.controllers,
            records=records,
            started_roles=started,
            lead=world.lead,
        )
        api = Api(self.controllers, world.policies, bundles, removal, self.decisions_of, world.rules)
        self.api, self.app = api, api.app()
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(called_by(self.app)), base_url="http://deployer")

    async def decisions_of(self, role: str) -> list[ModelRollout]:
        taken = self.world.bus.published(ModelRollout) if self.log is None else self.log
        return [decision for decision in taken if decision.role == role]

    async def post(self, path: str, body: object, status: int = 200) -> dict:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def register(self, version: int) -> None:
        """One more candidate."""
        bucket = Bucket(self.world.bus, POLICIES, PolicyVersion)
        await bucket.put(f"{ROLE}.{version}", policy(version))

    async def get(self, path: str, status: int = 200) -> dict:
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest_asyncio.fixture
async def operator() -> AsyncIterator[Operator]:
    one = Operator(await CanaryWorld().with_policies(1, 2))
    one.world.controller = await one.controllers.controller(ROLE)
    yield one
    await one.client.aclose()


ACT = {"actor": "ann", "reason": "because"}
BUNDLE = {**ACT, "bundle": {"instructions": {"text": "Be polite."}}}


async def test_rollouts_and_policies_are_shown(operator: Operator) -> None:
    assert await operator.get("/v1/rollouts") == {"rollouts": []}
    await operator.world.until("running")
    shown = await operator.get(f"/v1/rollouts/{ROLE}")
    assert (shown["state"], shown["weight"], shown["candidate"]["version"]) == ("running", 0.1, 2)
    assert shown["waiting_for"]
    assert shown["fault"] is None
    assert len((await operator.get("/v1/rollouts"))["rollouts"]) == 1
    role = await operator.get(f"/v1/policies/{ROLE}")
    assert [policy["stage"] for policy in role["policies"]] == ["stable", "canary"]
    assert role["route"]["canary"]["policy"]["version"] == 2
    assert [one["role"] for one in (await operator.get("/v1/policies"))["roles"]] == [ROLE]


async def test_lists_are_of_the_roles_of_the_key(operator: Operator) -> None:
    await operator.world.until("running")
    for held, roles in ((f"operate:{ROLE}", [ROLE]), ("operate:tenant-*", [])):
        caller = Caller("key_0000000000", "test", frozenset({held}))
        transport = httpx.ASGITransport(called_by(operator.app, caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://deployer") as http:
            assert [one["role"] for one in (await http.get("/v1/rollouts")).json()["rollouts"]] == roles
            assert [one["role"] for one in (await http.get("/v1/policies")).json()["roles"]] == roles


async def test_candidates_that_wait_are_named_newest_first(operator: Operator) -> None:
    assert (await operator.world.until("gating")).active
    assert (await operator.get(f"/v1/rollouts/{ROLE}"))["queue"] == []
    await operator.world.until("running")
    for version in (3, 4):
        await operator.register(version)
    assert (await operator.get(f"/v1/rollouts/{ROLE}"))["queue"] == [policy(4).name, policy(3).name]


async def test_a_record_that_cannot_be_read_is_no_fault_of_the_request(operator: Operator) -> None:
    await Bucket(operator.world.bus, ROLLOUTS, msgspec.Raw).put(ROLE, msgspec.Raw(b"{"))
    answer = await operator.post(f"/v1/rollouts/{ROLE}/pause", ACT, 503)
    assert answer["error"]["message"].startswith(f"{ROLLOUTS}/{ROLE} cannot be read")


async def test_record_or_route_that_cannot_be_read_hides_no_other_role(operator: Operator) -> None:
    await operator.world.until("running")
    for bucket in (ROLLOUTS, POLICIES):
        await Bucket(operator.world.bus, bucket, msgspec.Raw).put("planner", msgspec.Raw(b"{"))
    assert [one["role"] for one in (await operator.get("/v1/rollouts"))["rollouts"]] == [ROLE]
    assert [one["role"] for one in (await operator.get("/v1/policies"))["roles"]] == [ROLE]


async def test_role_that_a_new_leader_has_not_read_yet_is_asked_for_again(operator: Operator) -> None:
    await Bucket(operator.world.bus, POLICIES, PolicyVersion).put("planner.1", policy(1, role="planner"))
    answer = await operator.post("/v1/rollouts/planner/rollback", ACT, 503)
    assert answer["error"]["message"].endswith("try again in a few seconds")


@pytest.mark.parametrize("name", ["leader.canary_deployer", "*", "%3E", "%00", "a%0d%0ab", "%20", "%ff", "x" * 65])
async def test_a_path_without_a_valid_role_reads_no_bucket(operator: Operator, name: str) -> None:
    await Bucket(operator.world.bus, ROLLOUTS, msgspec.Raw).put("leader.canary_deployer", msgspec.Raw(b"{}"))
    for path in (f"/v1/rollouts/{name}", f"/v1/rollouts/{name}/audit", f"/v1/policies/{name}"):
        assert "no such role" in (await operator.get(path, 404))["error"]["message"]
    await operator.post(f"/v1/rollouts/{name}/pause", ACT, 404)


async def test_acts_change_the_rollout_and_are_audited(operator: Operator) -> None:
    await operator.world.until("running")
    assert (await operator.post(f"/v1/rollouts/{ROLE}/pause", ACT))["state"] == "paused"
    assert (await operator.post(f"/v1/rollouts/{ROLE}/resume", ACT))["state"] == "running"
    assert (await operator.post(f"/v1/rollouts/{ROLE}/rollback", ACT))["state"] == "rolled_back"
    audited = [(d.verdict, d.actor, d.reason) for d in operator.world.bus.published(ModelRollout)]
    assert audited[1:] == [(verdict, "ann", "because") for verdict in ("pause", "resume", "roll_back")]


async def test_an_operator_starts_a_version_out_of_order_and_with_override(operator: Operator) -> None:
    await operator.register(3)
    await operator.register(4)
    started = await operator.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3, "override": True})
    assert (started["state"], started["candidate"]["version"]) == ("gating", 3)
    assert started["approval"] == "emergency_override"
    await operator.world.until("running")
    assert operator.world.bus.published(ModelRollout)[-1].evidence["approval"] == "emergency_override"


REFUSED = pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/rollouts/absent/pause", ACT, 404, "no such role: absent"),
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
async def test_an_error_is_one_line(operator: Operator, path: str, body: object, status: int, message: str) -> None:
    error = (await operator.post(path, body, status))["error"]["message"]
    assert message in error
    assert "\n" not in error


async def test_acts_in_the_wrong_state_are_conflicts(operator: Operator) -> None:
    await operator.world.until("running")
    error = await operator.post(f"/v1/rollouts/{ROLE}/resume", ACT, 409)
    assert error["error"]["message"] == (
        "cannot resume a rollout that is running: possible: pause, promote, rollback, revert"
    )
    await operator.register(3)
    await operator.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 3}, 409)


@REFUSED
async def test_a_dry_run_is_refused_as_the_act_itself_is(
    operator: Operator, path: str, body: dict[str, object], status: int, message: str
) -> None:
    assert message in (await operator.post(path, {**body, "dry_run": True}, status))["error"]["message"]


async def test_a_dry_run_answers_what_an_act_would_lead_to_and_changes_nothing(operator: Operator) -> None:
    await operator.world.until("running")
    before = (operator.world.bus.faults.writes, await operator.world.rollout(), await operator.world.route())
    for act, state in (("pause", "paused"), ("rollback", "rolled_back")):
        assert (await operator.post(f"/v1/rollouts/{ROLE}/{act}", {**ACT, "dry_run": True}))["state"] == state
    promotion = {**ACT, "override": True, "dry_run": True}
    assert (await operator.post(f"/v1/rollouts/{ROLE}/promote", promotion))["state"] == "promoted"
    for refused in ("promote", "resume", "approve", "revert"):
        await operator.post(f"/v1/rollouts/{ROLE}/{refused}", {**ACT, "dry_run": True}, 409)
    await operator.post(f"/v1/rollouts/{ROLE}/start", {**ACT, "version": 2, "dry_run": True}, 409)
    assert (operator.world.bus.faults.writes, await operator.world.rollout(), await operator.world.route()) == before
    assert (await operator.get(f"/v1/rollouts/{ROLE}"))["state"] == "running"


async def test_a_dry_run_of_a_start_opens_and_approves_nothing(operator: Operator) -> None:
    start = {**ACT, "version": 2, "dry_run": True}
    assert (await operator.post(f"/v1/rollouts/{ROLE}/start", start))["state"] == "gating"
    assert await operator.get("/v1/rollouts") == {"rollouts": []}
    operator.world.gates["heldout_tasks"].outcome = "needs_approval"
    waiting = await operator.world.until("awaiting_approval")
    assert (await operator.post(f"/v1/rollouts/{ROLE}/start", start))["state"] == "running"
    assert (await operator.post(f"/v1/rollouts/{ROLE}/approve", {**ACT, "dry_run": True}))["state"] == "running"
    assert await operator.world.rollout() == waiting


async def test_unknown_roles_are_not_found(operator: Operator) -> None:
    assert (await operator.get("/v1/rollouts/absent", 404))["error"]["message"] == "no such role: absent"
    assert (await operator.get("/v1/policies/absent", 404))["error"]["message"] == "no such role: absent"


async def test_a_broker_that_is_away_is_a_503(operator: Operator) -> None:
    await operator.world.until("running")
    operator.world.bus.unavailable_at(operator.world.bus.faults.writes + 1)
    await operator.post(f"/v1/rollouts/{ROLE}/pause", ACT, 503)
    assert (await operator.get(f"/v1/rollouts/{ROLE}"))["state"] == "running"


async def test_an_untouched_log_is_whole(operator: Operator) -> None:
    await operator.world.until("running")
    await operator.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
    audit = await operator.get(f"/v1/rollouts/{ROLE}/audit")
    assert (audit["decisions"], audit["whole"], audit["complete"], audit["first_break"]) == (2, True, True, None)


async def test_a_changed_decision_is_named(operator: Operator) -> None:
    await operator.world.until("running")
    await operator.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
    start, rollback = await operator.decisions_of(ROLE)
    operator.log = [start, msgspec.structs.replace(rollback, actor="mallory")]
    audit = await operator.get(f"/v1/rollouts/{ROLE}/audit")
    assert (audit["whole"], audit["problem"]) == (False, "it is not what was decided")
    assert (audit["first_break"]["event_id"], audit["first_break"]["actor"]) == (rollback.event_id, "mallory")


async def test_a_log_without_its_end_is_noticed(operator: Operator) -> None:
    await operator.world.until("running")
    await operator.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
    operator.log = (await operator.decisions_of(ROLE))[:1]
    audit = await operator.get(f"/v1/rollouts/{ROLE}/audit")
    assert (audit["whole"], audit["problem"]) == (False, "the newest decisions are missing from the log")
    operator.log = []
    assert not (await operator.get(f"/v1/rollouts/{ROLE}/audit"))["whole"]


async def test_a_decision_in_the_outbox_is_not_missing_from_the_log(operator: Operator) -> None:
    await operator.world.until("running")
    await operator.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
    start, rollback = await operator.decisions_of(ROLE)
    bucket = Bucket(operator.world.bus, ROLLOUTS, Rollout)
    entry = await bucket.get(ROLE)
    assert entry is not None
    pending = PendingEvent(ModelRollout.TOPIC, encode(rollback).decode())
    await bucket.put(ROLE, msgspec.structs.replace(entry.value, outbox=(pending,)))
    restarted = Operator(operator.world)
    restarted.log = [start]
    async with restarted.client:
        audit = await restarted.get(f"/v1/rollouts/{ROLE}/audit")
    assert (audit["whole"], audit["decisions"]) == (True, 1)


async def test_the_audit_of_an_unknown_role_is_not_found(operator: Operator) -> None:
    assert "no such role" in (await operator.get("/v1/rollouts/absent/audit", 404))["error"]["message"]


async def test_the_strategy_is_chosen_with_the_start(operator: Operator) -> None:
    operator.world.gates["heldout_tasks"].outcome = "failed"
    await operator.world.until("refused")
    start = {**ACT, "version": 2, "override": True, "strategy": "blue_green"}
    await operator.post(f"/v1/rollouts/{ROLE}/start", start)
    assert (await operator.world.until("soaking")).strategy == "blue_green"
    bad = await operator.post(f"/v1/rollouts/{ROLE}/start", {**start, "strategy": "hope"}, 400)
    assert "strategy" in bad["error"]["message"]


async def test_differences_have_intervals_by_share_of_traffic_and_e_values_trail(operator: Operator) -> None:
    await operator.get(f"/v1/rollouts/{ROLE}/trail", 404)
    await operator.world.until("running")
    for _ in range(6):
        operator.world.clock.advance(5)
        await operator.world.play(40, 0.8, 0.6)
    shown = await operator.get(f"/v1/rollouts/{ROLE}")
    failure = shown["differences"]["failure"]
    assert failure["low"] < failure["difference"] < failure["high"]
    weights = [one["weight"] for one in failure["by_share"]]
    assert weights == sorted({0.1, shown["weight"]})
    assert sum(one["stable"] + one["canary"] for one in failure["by_share"]) == 240
    trail = await operator.get(f"/v1/rollouts/{ROLE}/trail")
    assert trail["rollout_id"] == shown["rollout_id"]
    assert len(trail["samples"]) > shown["decisions"]
    assert trail["samples"][-1]["e_values"] == shown["e_values"]
    assert [one["at"] for one in trail["samples"]] == sorted({one["at"] for one in trail["samples"]})
    # The trail is in the record, so it outlasts this deployer.
    stored = (await operator.world.rollout()).statistics.trail
    assert len(stored.at) in (len(trail["samples"]), len(trail["samples"]) - 1)


@pytest_asyncio.fixture
async def mistyped() -> AsyncIterator[Operator]:
    """A role without a policy."""
    one = Operator(CanaryWorld())
    yield one
    await one.client.aclose()


async def test_a_bundle_for_a_role_that_agents_do_not_call_warns(mistyped: Operator) -> None:
    mistyped.started["supports"] = 3
    path = f"/v1/policies/{ROLE}/bundles"
    made = await mistyped.post(path, {**BUNDLE, "dry_run": True})
    no_policy = f"{ROLE} has no policy, and no agent has called it within a week"
    assert made["warning"] == f"{no_policy}; did you mean supports?"
    mistyped.started[ROLE] = 1
    assert (await mistyped.post(path, BUNDLE))["warning"] is None


async def test_a_role_without_traffic_is_removed_once_its_rollout_has_ended(mistyped: Operator) -> None:
    path = f"/v1/policies/{ROLE}"
    await mistyped.post(f"{path}/bundles", BUNDLE)
    mistyped.world.controller = await mistyped.controllers.controller(ROLE)
    await mistyped.world.until("running")
    refused = await mistyped.post(f"{path}/remove", ACT, 409)
    assert refused["error"]["message"].endswith(f"is running: end it with `ratchet rollout rollback {ROLE}`")
    await mistyped.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
    gone = await mistyped.post(f"{path}/remove", {**ACT, "dry_run": True})
    assert [policy["version"] for policy in gone["policies"]] == [0, 1]
    assert await mistyped.post(f"{path}/remove", ACT) == gone
    for absent in (path, f"/v1/rollouts/{ROLE}"):
        await mistyped.get(absent, 404)
    for bucket in (POLICIES, ROLLOUTS, ROLLOUT_CHUNKS):
        assert await Bucket(mistyped.world.bus, bucket, msgspec.Raw).keys() == []


async def test_the_audit_of_a_role_that_came_back_is_whole(mistyped: Operator) -> None:
    for _ in range(2):
        await mistyped.post(f"/v1/policies/{ROLE}/bundles", BUNDLE)
        mistyped.world.controller = await mistyped.controllers.controller(ROLE)
        await mistyped.world.until("running")
        await mistyped.post(f"/v1/rollouts/{ROLE}/rollback", ACT)
        audit = await mistyped.get(f"/v1/rollouts/{ROLE}/audit")
        await mistyped.post(f"/v1/policies/{ROLE}/remove", ACT)
    assert (audit["whole"], audit["decisions"]) == (True, 4)


async def test_a_role_that_something_depends_on_stays(operator: Operator) -> None:
    path = f"/v1/policies/{ROLE}/remove"
    assert (await operator.post(path, ACT, 409))["error"]["message"] == f"{ROLE} stays: {policy(1).name} serves it"
    operator.started[ROLE] = 7
    calls = f"{ROLE} stays: agents have called it: 7 trajectories have started within a week"
    assert (await operator.post(path, ACT, 409))["error"]["message"] == calls
    await operator.post("/v1/policies/absent/remove", ACT, 404)
