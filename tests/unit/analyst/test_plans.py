"""The loop of plans and their HTTP API: drafted once, approved by people or by rule, each step once in the trail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from prometheus_client import REGISTRY

from ratchet.analyst import metrics
from ratchet.analyst.domain.plan import stepped
from ratchet.analyst.drafting import Drafting
from ratchet.analyst.effects import Effects, EpisodesOf
from ratchet.analyst.executing import Executing
from ratchet.analyst.http_api import PatternRoutes, http_app
from ratchet.analyst.http_clients import Deployer
from ratchet.analyst.http_plans import PlanRoutes
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.kv_plans import PlanStore
from ratchet.analyst.mining.base import Episodes
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.plans import Plans
from ratchet.analyst.waiting import NO_GATEWAY, Waiting
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.bus.testing.broker import Killed
from ratchet.core.contract import LearningEvent
from ratchet.core.contract.audit import AuditEntry
from ratchet.core.contract.http.rollouts import RolePoliciesOut
from ratchet.core.contract.learning import PLANS, AdaptationPlan, Pattern, Trigger
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import CALLER, IDENTIFY
from ratchet.core.service.audit import AuditLog
from ratchet.core.stores.history import History
from tests.support.adaptation import NOW, Programs, pattern_of, plan_of
from tests.support.fake_bus import fake_broker

OPERATOR = Caller("key_o", "ann", frozenset({"operate:shop"}))
VIEWER = Caller("key_v", "val", frozenset({"view:shop"}))
OTHER = Caller("key_s", "sam", frozenset({"operate:other"}))
BY_LANGUAGE = (Trigger(attribute="language", value="de"),)


class NoRows:
    """A warehouse without trajectories."""

    async def rows(self, sql: str, parameters: object = None) -> list[dict[str, Any]]:
        return []


async def no_episodes(
    role: str, since: datetime, until: datetime, keep: Sequence[Trigger], ids: Sequence[str] | None = None
) -> Episodes:
    empty = np.zeros(0)
    return Episodes((), np.zeros(0, dtype=np.uint64), empty, {"failure": empty}, {}, {})


async def leads() -> None:
    """It does."""


class World:
    """A broker, deployer and coordinator; analysts come and go."""

    def __init__(self) -> None:
        self.broker: FakeBroker = fake_broker(lambda: NOW)
        self.bus = FakeBus(self.broker)
        self.programs = Programs()
        self.store, self.patterns, self.trail = PlanStore(self.bus), PatternStore(self.bus), Trail(self.bus)
        self.has_gateway = True

    async def uses_gateway(self, role: str) -> bool:
        return self.has_gateway

    async def is_known(self, role: str) -> bool:
        return role == "shop"

    def waiting(self) -> Waiting:
        return Waiting(self.store, self.programs.deployer(), self.programs.coordinator(), self.uses_gateway)

    def analyst(
        self, *self_approved: str, episodes: EpisodesOf = no_episodes, executes_by: Deployer | None = None
    ) -> Plans:
        """One that leads. `executes_by`: the deployer that carries plans out."""
        warehouse: Any = NoRows()
        deployer, coordinator = self.programs.deployer(), self.programs.coordinator()
        drafting = Drafting(deployer, coordinator, History(warehouse), episodes)
        executing = Executing(executes_by or deployer, coordinator, Effects(warehouse, no_episodes), leads)
        audit = AuditLog(self.bus, "analyst")
        roles = frozenset(self_approved)
        waiting = self.waiting()
        return Plans(self.store, self.patterns, self.trail, drafting, executing, waiting, audit, roles, lambda: NOW)

    async def open(self, pattern: Pattern) -> None:
        await self.patterns.put(pattern, None)

    async def plans(self) -> list[AdaptationPlan]:
        return [entry.value for entry in await self.store.every()]

    async def states(self) -> list[str]:
        """Of all plans, sorted."""
        return sorted(plan.state for plan in await self.plans())

    async def steps(self) -> list[str]:
        """What the trail has of plans."""
        return [event.what for event in await self.trail.read("shop", lambda event: event.plan_id is not None)]

    async def _plans_of(self, role: str, pattern_id: str) -> list[AdaptationPlan]:
        return await self.plans()

    @asynccontextmanager
    async def served(self, caller: Caller = ANYONE) -> AsyncIterator[httpx.AsyncClient]:
        runs: Any = None
        looks = PatternRoutes(self.patterns, self.trail, runs, self._plans_of, self.is_known, lambda: NOW)
        plans = PlanRoutes(self.store, self.patterns, self.trail, self.waiting(), self.is_known, lambda: NOW)
        api = http_app([looks, plans])

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def identify() -> Caller:
                return caller

            await api({**scope, CALLER: caller, IDENTIFY: identify}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://there") as client:
            yield client

    async def stored(self, key: str, value: object) -> None:
        """Something else stands in the bucket of plans."""
        await Bucket(self.bus, PLANS, msgspec.Raw).put(key, msgspec.Raw(msgspec.json.encode(value)))

    async def decided(self, caller: Caller, verb: str, body: dict[str, Any]) -> httpx.Response:
        plan = (await self.plans())[0]
        async with self.served(caller) as client:
            return await client.post(f"/v1/plans/shop/{plan.plan_id}/{verb}", json=body)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.open(pattern_of())
    return world


async def test_an_open_pattern_gets_one_draft_which_waits(world: World) -> None:
    await world.analyst().look()
    await world.analyst("other").look()
    [plan] = await world.plans()
    assert (plan.state, plan.change.kind, plan.pattern_id) == ("draft", "bundle", pattern_of().pattern_id)
    assert await world.steps() == ["plan_draft"]
    assert world.programs.asked == []


async def test_a_look_shows_the_patterns_and_plans_that_it_reads(world: World) -> None:
    analyst = world.analyst()
    for _ in range(2):  # the first one makes the draft
        await analyst.look()
    names = {"patterns": "open", "plans": "draft"}

    def shown() -> list[float | None]:
        return [
            REGISTRY.get_sample_value(f"ratchet_analyst_{name}", {"role": "shop", "state": state})
            for name, state in names.items()
        ]

    assert shown() == [1, 1]
    metrics.stop_showing()
    assert shown() == [None, None]


async def test_a_low_risk_plan_runs_by_itself_where_a_role_is_named() -> None:
    world = World()
    await world.open(pattern_of(triggers=BY_LANGUAGE))
    for _ in range(2):
        await world.analyst("shop").look()
    [plan] = await world.plans()
    assert (plan.state, plan.approvals[0].by, plan.policy) == ("executing", "policy", "shop@2-abababab")
    assert await world.steps() == ["plan_draft", "plan_approved", "plan_executing"]
    [entry] = world.bus.published(AuditEntry)
    assert (entry.act, entry.actor, entry.outcome) == ("approve_plan", "policy", "asked")


async def test_a_riskier_plan_waits_for_a_person_even_there(world: World) -> None:
    for _ in range(2):
        await world.analyst("shop").look()
    assert [(plan.state, plan.risk) for plan in await world.plans()] == [("draft", "medium")]


async def test_an_approved_plan_is_carried_out(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    answer = await world.decided(OPERATOR, "approve", {})
    assert answer.status_code == 200
    assert answer.json()["plan"]["approvals"][0]["by"] == "ann (key_o)"
    await analyst.look()
    assert [plan.policy for plan in await world.plans()] == ["shop@2-abababab"]


async def test_an_approved_plan_of_a_dismissed_pattern_is_void(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    assert (await world.decided(OPERATOR, "approve", {})).status_code == 200
    entry = await world.patterns.get("shop", pattern_of().pattern_id)
    assert entry is not None
    await world.patterns.put(msgspec.structs.replace(entry.value, state="dismissed"), entry.revision)
    await analyst.look()
    assert (await world.states(), world.programs.asked) == (["rejected"], [])


@pytest.mark.parametrize("caller", [VIEWER, OTHER])
@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_who_may_not_steer_rollouts_decides_nothing(world: World, caller: Caller, verb: str) -> None:
    await world.analyst().look()
    assert (await world.decided(caller, verb, {"reason": "no"})).status_code == 403
    assert [plan.state for plan in await world.plans()] == ["draft"]


async def test_a_plan_is_rejected_with_a_reason_and_not_drafted_again(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    assert (await world.decided(OPERATOR, "reject", {})).status_code == 400
    assert (await world.decided(OPERATOR, "reject", {"reason": "we  know"})).status_code == 200
    await analyst.look()
    assert [(plan.state, plan.history[-1].reason) for plan in await world.plans()] == [("rejected", "we know")]


@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_a_reason_is_redacted_and_on_one_line_where_it_is_kept(world: World, verb: str) -> None:
    analyst = world.analyst()
    await analyst.look()
    hostile = "\x1b[2J\u202e<script>x</script> alice@example.com\nno \x00"
    assert (await world.decided(OPERATOR, verb, {"reason": hostile})).status_code == 200
    [plan] = await world.plans()
    [*_, step] = await world.trail.read("shop", lambda event: event.plan_id is not None)
    for kept in (plan.history[-1].reason or "", step.summary):
        assert kept.isprintable()
        assert kept.endswith("no")
        assert "<" not in kept
        assert "alice" not in kept


@pytest.mark.parametrize("reason", [" ", "\x1b\u202e"])
async def test_a_reason_of_nothing_that_can_be_seen_rejects_nothing(world: World, reason: str) -> None:
    await world.analyst().look()
    assert (await world.decided(OPERATOR, "reject", {"reason": reason})).status_code == 400


@pytest.mark.parametrize(("attribute", "promised"), [("tool_error", 0.0), ("term", -0.4)])
async def test_a_plan_of_what_arms_cannot_compare_promises_nothing(attribute: str, promised: float) -> None:
    world = World()
    await world.open(pattern_of(triggers=(Trigger(attribute=attribute, value="refund"),)))
    await world.analyst().look()
    [plan] = await world.plans()
    assert (plan.change.kind, plan.expected.value) == ("bundle", promised)


async def test_a_dismissal_keeps_no_raw_reason(world: World) -> None:
    async with world.served(OPERATOR) as client:
        path = f"/v1/patterns/shop/{pattern_of().pattern_id}/dismiss"
        assert (await client.post(path, json={"reason": "\x1b\u202e"})).status_code == 400
        answer = await client.post(path, json={"reason": "\x1b]0;pwn\x07 of alice@example.com\nno"})
    [step] = await world.trail.read("shop")
    for kept in (answer.json()["pattern"]["reason"], step.summary):
        assert kept.isprintable()
        assert kept.endswith("no")
        assert "alice" not in kept


async def test_a_trail_of_a_pattern_has_its_plans_steps_and_no_others(world: World) -> None:
    await world.open(pattern_of(pattern_id="2" * 32))
    for _ in range(2):
        await world.analyst().look()
    async with world.served(VIEWER) as client:
        answer = await client.get("/v1/learning/shop/events", params={"pattern_id": "2" * 32})
    assert [(each["what"], each["pattern_id"]) for each in answer.json()["events"]] == [("plan_draft", "2" * 32)]


async def test_a_decision_is_made_once(world: World) -> None:
    await world.analyst().look()
    assert (await world.decided(OPERATOR, "approve", {})).status_code == 200
    again = await world.decided(OPERATOR, "approve", {})
    assert again.status_code == 409
    assert "is approved, and cannot become approved" in again.json()["error"]["message"]


async def test_a_draft_of_a_dismissed_pattern_is_void(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    entry = await world.patterns.get("shop", pattern_of().pattern_id)
    assert entry is not None
    await world.patterns.put(pattern_of(state="dismissed"), entry.revision)
    await analyst.look()
    assert [plan.state for plan in await world.plans()] == ["rejected"]


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_kill_at_any_write_carries_a_plan_out_once(after_effect: bool) -> None:
    kills = 0
    for number in range(1, 12):
        world = World()
        await world.open(pattern_of(triggers=BY_LANGUAGE))
        world.broker.faults.at = world.broker.faults.writes + number
        world.broker.faults.after_effect = after_effect
        with suppress(Killed):
            for _ in range(3):
                await world.analyst("shop").look()
        kills += world.broker.faults.writes >= world.broker.faults.at
        for _ in range(3):
            await world.analyst("shop").look()
        [plan] = await world.plans()
        assert (plan.state, plan.policy) == ("executing", "shop@2-abababab"), number
        assert len(world.programs.versions) == 2, number
        assert sorted(await world.steps()) == ["plan_approved", "plan_draft", "plan_executing"], number
    assert kills >= 8


async def test_one_plan_that_cannot_go_on_holds_up_no_other(world: World) -> None:
    await world.open(pattern_of(pattern_id="2" * 32, action="note"))
    world.programs.lost = True
    analyst = world.analyst("shop")
    for _ in range(3):
        await analyst.look()
    assert sorted(plan.state for plan in await world.plans()) == ["draft", "validated"]


async def test_two_plans_of_a_role_are_carried_out_one_after_the_other() -> None:
    world = World()
    for number in "12":
        await world.open(pattern_of(pattern_id=number * 32, triggers=BY_LANGUAGE))
    analyst = world.analyst("shop")
    for _ in range(4):
        await analyst.look()
    assert await world.states() == ["approved", "executing"]
    assert [path for path, _ in world.programs.asked] == ["/v1/policies/shop/bundles"]
    await world.open(pattern_of(pattern_id="3" * 32, action="note"))
    for _ in range(2):
        await analyst.look()
    assert await world.states() == ["approved", "executing", "validated"]
    world.programs.canary("refused", reason="too slow", finished_at=NOW.isoformat())
    for _ in range(2):
        await analyst.look()
    assert await world.states() == ["executing", "rejected", "validated"]


async def test_a_plan_that_was_not_registered_yet_may_be_rejected(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    await world.decided(OPERATOR, "approve", {})
    world.programs.lost = True
    await analyst.look()
    assert [(plan.state, plan.policy) for plan in await world.plans()] == [("executing", None)]
    assert (await world.decided(OPERATOR, "reject", {"reason": "it hangs"})).status_code == 200
    await analyst.look()
    assert [plan.state for plan in await world.plans()] == ["rejected"]


async def test_a_plan_with_a_canary_is_not_rejected(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    await world.decided(OPERATOR, "approve", {})
    await analyst.look()
    assert (await world.decided(OPERATOR, "reject", {"reason": "no"})).status_code == 409


@pytest.mark.parametrize("odd", ["garbage", "naive"])
async def test_a_plan_that_cannot_be_read_stops_no_other(world: World, odd: str) -> None:
    await world.analyst().look()
    [plan] = await world.plans()
    stored = msgspec.to_builtins(plan)
    stored["history"][0]["at"] = "2026-11-29T19:00:00"
    await world.stored(f"shop.{plan.plan_id}", stored if odd == "naive" else odd)
    await world.open(pattern_of(pattern_id="2" * 32, action="note"))
    analyst = world.analyst("shop")
    for _ in range(3):
        await analyst.look()
    assert [(each.change.kind, each.state) for each in await world.plans()] == [("note", "validated")]
    async with world.served(VIEWER) as client:
        assert len((await client.get("/v1/plans")).json()["plans"]) == 1


async def test_a_plan_under_the_key_of_another_role_is_none_of_it(world: World) -> None:
    await world.analyst().look()
    [plan] = await world.plans()
    await world.stored(f"other.{plan.plan_id}", msgspec.to_builtins(plan))
    async with world.served(OTHER) as client:
        assert (await client.get("/v1/plans")).json()["plans"] == []
        assert (await client.get(f"/v1/plans/other/{plan.plan_id}")).status_code == 503


async def test_plans_of_a_lost_bucket_are_not_drafted_again(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    await world.decided(OPERATOR, "reject", {"reason": "no"})
    await analyst.look()
    bucket = Bucket(world.bus, PLANS, msgspec.Raw)
    for key in await bucket.keys():
        await bucket.delete(key)
    for again in (analyst, world.analyst()):
        await again.look()
        assert await world.plans() == []
    assert await world.steps() == ["plan_draft", "plan_rejected"]


async def test_a_plan_that_no_gateway_can_try_waits_for_a_person() -> None:
    world = World()
    world.has_gateway = False
    await world.open(pattern_of(triggers=BY_LANGUAGE))
    for _ in range(2):
        await world.analyst("shop").look()
    [plan] = await world.plans()
    assert (plan.state, plan.risk, plan.history[0].reason) == ("draft", "low", NO_GATEWAY)
    answer = await world.decided(OPERATOR, "approve", {})
    assert (answer.status_code, answer.json()["waits_for"]) == (200, NO_GATEWAY)


async def test_a_plan_tells_what_it_waits_for() -> None:
    world = World()
    await world.open(pattern_of(triggers=BY_LANGUAGE))
    world.programs.canary("running")

    async def waits_for() -> str | None:
        await world.analyst("shop").look()
        [plan] = await world.plans()
        async with world.served() as client:
            return (await client.get(f"/v1/plans/shop/{plan.plan_id}")).json()["waits_for"]

    assert await waits_for() is None
    assert await waits_for() == "the rollout of shop@1-abababab is under way: running"
    world.programs.canary("promoted")
    assert await waits_for() == "shop@2-abababab waits for its rollout"
    world.programs.canary("running", weight=0.1, waiting_for=["30 canary outcomes more"])
    running = "its rollout is running, with 0.1 of new trajectories: 0 canary and 0 stable trajectories"
    assert await waits_for() == f"{running}; 30 canary outcomes more"
    world.programs.forbidden = True
    world.programs.answers = httpx.Response(503, json={"error": {"message": "it is away"}})
    assert "503" in str(await waits_for())


@pytest.mark.parametrize("path", ["/v1/plans?role=shopp", "/v1/learning/shopp/report"])
async def test_of_a_role_without_trajectories_nothing_is_listed(path: str) -> None:
    async with World().served() as client:
        assert (await client.get(path)).status_code == 404


class OddDeployer(Deployer):
    """Answers what our code does not expect."""

    async def policies(self, role: str) -> RolePoliciesOut:
        raise TypeError("can't compare offset-naive and offset-aware datetimes")


async def test_a_fault_of_one_plan_stops_no_other(world: World) -> None:
    await world.open(pattern_of(pattern_id="2" * 32, action="note"))
    analyst = world.analyst("shop", executes_by=OddDeployer(world.programs.deployer().client))
    for _ in range(2):
        await analyst.look()
    await world.decided(OPERATOR, "approve", {})
    await world.open(pattern_of(pattern_id="3" * 32, action="note"))
    await analyst.look()
    assert len(await world.plans()) == 3


async def test_a_decision_whose_step_a_kill_kept_from_the_trail_is_published(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    world.broker.faults.at = world.broker.faults.writes + 2
    with suppress(Killed):
        await world.decided(OPERATOR, "reject", {"reason": "no"})
    assert [plan.state for plan in await world.plans()] == ["rejected"]
    assert await world.steps() == ["plan_draft"]
    await analyst.look()
    assert await world.steps() == ["plan_draft", "plan_rejected"]


async def test_canaries_are_looked_at_before_a_draft_and_one_is_made_at_a_time(world: World) -> None:
    analyst = world.analyst()
    await analyst.look()
    await world.decided(OPERATOR, "approve", {})
    for number in "23":
        await world.open(pattern_of(pattern_id=number * 32))
    made: list[str] = []
    draft, step = analyst.drafting.material, Executing.step

    async def drafted(pattern: Pattern, kind: str) -> Any:
        made.append("draft")
        return await draft(pattern, kind)

    async def stepped(self: Executing, plan: AdaptationPlan, now: datetime) -> AdaptationPlan:
        made.append("step")
        return await step(self, plan, now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Drafting, "material", staticmethod(drafted))
        patched.setattr(Executing, "step", stepped)
        await analyst.look()
    assert made.count("draft") == 1
    assert made[-1] == "draft"
    assert "step" in made


async def test_a_draft_that_fails_is_not_begun_at_every_look(world: World) -> None:
    tries: list[str] = []

    async def away(role: str, *_: object, **__: object) -> Episodes:
        tries.append(role)
        raise Unavailable("ClickHouse is away")

    analyst = world.analyst(episodes=away)
    for _ in range(3):
        await analyst.look()
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("state", "days", "left"),
    [("closed", 399, (1, 1)), ("closed", 401, (0, 0)), ("dismissed", 401, (1, 0)), ("open", 401, (1, 1))],
)
async def test_what_is_over_is_forgotten_after_400_days(state: str, days: int, left: tuple[int, int]) -> None:
    world, ended = World(), NOW - timedelta(days=days)
    await world.open(pattern_of(state=state, closed_at=None if state == "open" else ended, seen_at=ended))
    await world.store.create(stepped(plan_of(), "rejected", ended, "ann", "no"))
    await world.analyst().look()
    assert (len(await world.patterns.every()), len(await world.plans())) == left


async def test_a_report_is_published_once_a_week(world: World) -> None:
    for _ in range(2):
        await world.analyst().look()

    def is_report(event: LearningEvent) -> bool:
        return event.what == "weekly_report"

    assert len(await world.trail.read("shop", is_report)) == 1
    async with world.served(VIEWER) as client:
        report = (await client.get("/v1/learning/shop/report")).json()
    assert report["markdown"].startswith("# What shop learned")


async def test_plans_are_listed_by_role_and_state(world: World) -> None:
    await world.analyst().look()
    async with world.served(VIEWER) as client:
        drafts = (await client.get("/v1/plans", params={"role": "shop", "state": "draft"})).json()["plans"]
        assert len(drafts) == 1
        assert (await client.get("/v1/plans", params={"state": "validated"})).json()["plans"] == []
        assert (await client.get(f"/v1/plans/shop/{drafts[0]['plan_id']}")).json()["pattern"]["count"] == 80
        assert (await client.get("/v1/plans/shop/nothing")).status_code == 404
    async with world.served(OTHER) as client:
        assert (await client.get("/v1/plans")).json()["plans"] == []
