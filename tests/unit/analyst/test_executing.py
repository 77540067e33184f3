"""Carrying plans out: through deployer and coordinator only, once, and to an end in words."""

from __future__ import annotations

from dataclasses import replace as replace_fields
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from ratchet.analyst.domain.proposal import Material
from ratchet.analyst.drafting import Drafting
from ratchet.analyst.effects import Effects
from ratchet.analyst.executing import Executing
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, Instructions
from ratchet.core.contract.http.jobs import PlanOut, ShapeOut
from ratchet.core.contract.learning import AdaptationPlan, ArmEffect, Trigger
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.errors import Unavailable
from ratchet.core.service.leadership import NotLeading
from tests.support.adaptation import NOW, Programs, approved_plan, pattern_of, plan_of, version_of

HELPED = ArmEffect(difference=-0.3, low=-0.4, high=-0.2, stable=100, canary=100, at=NOW)
HARMED = replace(HELPED, difference=0.3, low=0.2, high=0.4)
LATER = NOW + timedelta(hours=2)
SHAPE = ShapeOut(**{**dict.fromkeys(ShapeOut.__struct_fields__, 0), "has_imitated": False})  # type: ignore[arg-type]
LEARNED = PlanOut(role="shop", algorithm="dpo", why="pairs", filter=None, rejected={}, shape=SHAPE)


class Measured(Effects):
    """Effects that a test decides on."""

    def __init__(self, effect: ArmEffect | str) -> None:
        self.__dict__["effect"] = effect

    async def measure(
        self, plan: AdaptationPlan, rollout_id: str, since: datetime, now: datetime, settling: timedelta
    ) -> ArmEffect | str:
        return self.__dict__["effect"]


async def leads() -> None:
    """It does."""


def executing(programs: Programs, effect: ArmEffect | str = "no trajectories match") -> Executing:
    return Executing(programs.deployer(), programs.coordinator(), Measured(effect), leads)


async def to_rest(executing: Executing, plan: AdaptationPlan, now: datetime = NOW) -> AdaptationPlan:
    """All steps that can be taken now."""
    while (after := await executing.step(plan, now)) != plan:
        plan = after
    return plan


async def test_an_approved_bundle_is_registered_with_the_plan_as_its_reason() -> None:
    programs = Programs()
    plan = await to_rest(executing(programs), approved_plan())
    assert (plan.state, plan.policy) == ("executing", programs.versions[-1].name)
    [(path, body)] = programs.asked
    assert path == "/v1/policies/shop/bundles"
    assert body["reason"].startswith(f"plan {plan.plan_id}: ")


async def test_a_draft_is_not_carried_out() -> None:
    programs = Programs()
    assert await executing(programs).step(plan_of(), NOW) == plan_of()
    assert programs.asked == []


async def test_a_plan_is_void_once_another_policy_serves() -> None:
    programs = Programs(versions=[version_of(1, "archived"), version_of(2, "stable")])
    plan = await to_rest(executing(programs), approved_plan())
    assert plan.state == "rejected"
    assert "it was made from shop@1-abababab, and the stable policy is shop@2-abababab by now" in str(plan.verdict)
    assert programs.asked == []


async def test_a_plan_whose_base_changed_while_it_waited_is_void() -> None:
    programs = Programs()
    plan = await executing(programs).step(approved_plan(), NOW)
    assert plan.state == "executing"
    programs.versions = [version_of(1, "archived"), version_of(2, "stable")]
    programs.bundles[2] = Bundle(defaults=None, instructions=Instructions(text="Another.", mode="append"))
    plan = await to_rest(executing(programs), plan)
    assert plan.state == "rejected"
    assert "the stable policy is shop@2-abababab by now" in str(plan.verdict)
    assert programs.asked == []


async def test_an_analyst_that_leads_no_longer_asks_for_nothing() -> None:
    async def leads_no_longer() -> None:
        raise NotLeading("another analyst took over")

    programs = Programs()
    frozen = replace_fields(executing(programs, HARMED), confirm=leads_no_longer)
    training = plan_of(kind="training", material=Material(training=LEARNED))
    for draft in (plan_of(), training):
        plan = await frozen.step(approved_plan(draft), NOW)
        with pytest.raises(NotLeading):
            await frozen.step(plan, NOW)
    assert programs.asked == []
    plan = await to_rest(executing(programs), approved_plan())
    programs.canary("running")
    plan = await frozen.step(plan, NOW)
    with pytest.raises(NotLeading):
        await frozen.step(plan, NOW)
    assert [path for path, _ in programs.asked] == ["/v1/policies/shop/bundles"]


async def test_a_plan_waits_as_approved_while_the_key_may_not_carry_it_out() -> None:
    programs = Programs(forbidden=True)
    with pytest.raises(Unavailable, match="operate"):
        await executing(programs).step(approved_plan(), NOW)


async def test_a_bundle_waits_for_the_end_of_the_rollout_under_way() -> None:
    programs = Programs()
    programs.canary("running")
    plan = approved_plan()
    assert await executing(programs).step(plan, NOW) == plan
    programs.canary("rolled_back")
    assert (await executing(programs).step(plan, NOW)).state == "executing"


async def test_version_0_is_what_calls_were_before_the_role_had_any() -> None:
    programs = Programs(versions=[version_of(0, "stable")], bundles={})
    plan = await to_rest(executing(programs), approved_plan(plan_of(material=Material())))
    assert (plan.state, plan.change.base) == ("executing", None)


@pytest.mark.parametrize("stage", ["registered", "refused", "rolled_back"])
async def test_a_bundle_whose_answer_was_lost_makes_no_second_version(stage: str) -> None:
    programs = Programs(lost=True)
    plan = await executing(programs).step(approved_plan(), NOW)
    with pytest.raises(Unavailable):
        await executing(programs).step(plan, NOW)
    programs.versions[-1] = replace(programs.versions[-1], stage=stage, reason="a gate wrote over it")
    programs.lost = False
    after = await executing(programs).step(plan, NOW)
    assert after.policy == programs.versions[-1].name
    assert len(programs.versions) == 2


async def test_a_bundle_that_was_promoted_while_its_answer_was_lost_is_the_plans() -> None:
    programs = Programs(lost=True)
    plan = await executing(programs).step(approved_plan(), NOW)
    with pytest.raises(Unavailable):
        await executing(programs).step(plan, NOW)
    programs.lost = False
    programs.versions = [version_of(1, "archived"), replace(programs.versions[-1], stage="stable")]
    assert (await executing(programs).step(plan, NOW)).policy == programs.versions[-1].name


async def test_what_was_there_before_the_plan_is_not_taken_for_its_own() -> None:
    plan = approved_plan()
    assert plan.change.bundle is not None
    old = version_of(2, "rolled_back")
    programs = Programs(versions=[version_of(1, "stable"), old], bundles={**Programs().bundles, 2: plan.change.bundle})
    after = await to_rest(executing(programs), plan)
    assert after.policy == "shop@3-abababab"


async def test_what_the_deployer_refuses_is_rejected_in_its_words() -> None:
    plan = await to_rest(executing(Programs(refuses="the bundle holds a secret")), approved_plan())
    assert (plan.state, plan.verdict) == ("rejected", "Not tried: the bundle holds a secret")


async def followed(state: str, effect: ArmEffect | str, **members: Any) -> tuple[AdaptationPlan, Programs]:
    """A plan whose canary is in this state two hours later."""
    programs = Programs()
    carried = executing(programs, effect)
    plan = await to_rest(carried, approved_plan())
    programs.canary(state, **members)
    return await to_rest(carried, plan, LATER), programs


async def test_a_promoted_plan_is_validated_with_its_effect() -> None:
    plan, _ = await followed("promoted", HELPED, finished_at=NOW.isoformat())
    assert (plan.state, plan.effect) == ("validated", HELPED)
    assert str(plan.verdict).startswith("Promoted. It helped, as promised: failure -0.3 [-0.4, -0.2]")


async def test_a_plan_without_an_effect_states_so() -> None:
    plan, _ = await followed("promoted", "3 stable and 2 canary trajectories match", finished_at=NOW.isoformat())
    assert plan.verdict == ("Promoted. Whether it helped is not known: 3 stable and 2 canary trajectories match.")


async def test_the_last_outcomes_of_a_promoted_canary_are_waited_for() -> None:
    plan, _ = await followed("promoted", HELPED, finished_at=(LATER - timedelta(seconds=59)).isoformat())
    assert plan.state == "executing"


async def test_a_plan_that_was_taken_back_is_marked() -> None:
    plan, _ = await followed("rolled_back", HARMED, reason="worse by failure", finished_at=NOW.isoformat())
    assert (plan.state, plan.history[-1].reason) == ("rolled_back", "worse by failure")
    assert str(plan.verdict).startswith("Taken back: worse by failure. It harmed")


@pytest.mark.parametrize("state", ["rolled_back", "refused"])
async def test_a_reason_of_the_deployer_is_redacted_and_on_one_line(state: str) -> None:
    raw = "\x1b[2J\u202e alice@example.com\nworse"
    plan, _ = await followed(state, HARMED, reason=raw, finished_at=NOW.isoformat())
    for kept in (plan.history[-1].reason or "", plan.verdict or ""):
        assert kept.isprintable()
        assert "worse" in kept
        assert "alice" not in kept


@pytest.mark.parametrize("state", ["refused", "aborted", "superseded"])
async def test_a_candidate_without_a_trial_ends_the_plan_rejected(state: str) -> None:
    plan, _ = await followed(state, HELPED, reason="too slow", finished_at=NOW.isoformat())
    assert (plan.state, plan.effect) == ("rejected", None)
    assert "too slow" in str(plan.verdict)


async def test_a_canary_that_harms_what_the_plan_is_about_is_taken_back() -> None:
    plan, programs = await followed("running", HARMED)
    assert plan.state == "rolled_back"
    path, body = programs.asked[-1]
    assert (path, body["rollout_id"]) == ("/v1/rollouts/shop/rollback", plan.rollout_id)
    assert body["reason"].startswith(f"plan {plan.plan_id}: It harmed")


async def test_a_large_canary_is_measured_once_an_hour() -> None:
    programs = Programs()
    carried = executing(programs, replace(HELPED, stable=4_000, canary=1_000))
    plan = await to_rest(carried, approved_plan())
    programs.canary("running")
    plan = await to_rest(carried, plan, LATER)
    carried.effects.__dict__["effect"] = HARMED
    for minutes, state in ((59, "executing"), (60, "rolled_back")):
        later = await to_rest(carried, plan, LATER + timedelta(minutes=minutes))
        if minutes == 60:
            later = await to_rest(carried, later, LATER + timedelta(hours=3))
        assert later.state == state


async def test_the_last_outcomes_of_a_canary_taken_back_are_waited_for() -> None:
    plan, _ = await followed("rolled_back", HARMED, finished_at=(LATER - timedelta(seconds=59)).isoformat())
    assert plan.state == "executing"


async def test_a_canary_that_helps_is_left_to_its_tests() -> None:
    plan, programs = await followed("running", HELPED)
    assert (plan.state, plan.effect, len(programs.asked)) == ("executing", HELPED, 1)


async def test_a_policy_whose_rollout_was_followed_is_judged_by_its_stage() -> None:
    programs = Programs()
    carried = executing(programs, HELPED)
    plan = await to_rest(carried, approved_plan())
    programs.versions[-1] = replace(programs.versions[-1], stage="stable")
    programs.versions.append(version_of(3))
    programs.canary("running")
    after = await to_rest(carried, plan, LATER)
    assert after.state == "validated"
    assert "its rollout is not known any more" in str(after.verdict)


async def test_a_training_is_asked_for_once_and_followed_to_its_policy() -> None:
    programs = Programs(lost=True)
    pattern = pattern_of(triggers=(Trigger(attribute="domain", value="orders"),))
    plan = approved_plan(plan_of(pattern, "training", Material(training=LEARNED)))
    plan = await executing(programs).step(plan, NOW)
    with pytest.raises(Unavailable):
        await executing(programs).step(plan, NOW)
    programs.lost = False
    plan = await to_rest(executing(programs), plan)
    assert len(programs.jobs) == 1
    assert {body["idempotency_key"] for _, body in programs.asked} == {f"plan-{plan.plan_id}"}
    assert plan.job_id is not None
    programs.jobs[plan.job_id] |= {"state": "completed", "finished_at": NOW.isoformat()}
    programs.versions.append(version_of(2, training_job_id=plan.job_id))
    assert (await to_rest(executing(programs), plan)).policy == "shop@2-abababab"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"state": "failed", "error": {"code": "DATA", "message": "no rows"}}, "the training failed: no rows"),
        ({"state": "completed", "finished_at": (NOW - timedelta(days=2)).isoformat()}, "no policy came of the job"),
    ],
)
async def test_a_training_without_a_policy_ends_the_plan(members: dict[str, Any], words: str) -> None:
    programs = Programs()
    plan = await to_rest(
        executing(programs), approved_plan(plan_of(kind="training", material=Material(training=LEARNED)))
    )
    assert plan.job_id is not None
    programs.jobs[plan.job_id] |= members
    ended = await to_rest(executing(programs), plan)
    assert ended.state == "rejected"
    assert words in str(ended.verdict)


async def test_a_training_that_cannot_begin_ends_the_plan() -> None:
    programs = Programs(refuses="the role shop has no policy to continue from", refused_by=409)
    training = approved_plan(plan_of(kind="training", material=Material(training=LEARNED)))
    plan = await to_rest(executing(programs), training)
    assert (plan.state, plan.job_id) == ("rejected", None)
    assert "no policy to continue from" in str(plan.verdict)


WEIGHTS = BundleModel(name="shop@1-abababab", digest="ab" * 32)


@pytest.mark.parametrize(
    ("version", "bundle", "is_drafted"),
    [
        (version_of(0, "stable", kind="bundle"), NO_BUNDLE, False),
        (version_of(1, "stable"), Bundle(), False),
        (version_of(1, "stable"), Bundle(model=WEIGHTS), True),
        (version_of(1, "stable", kind="adapter"), NO_BUNDLE, True),
    ],
)
async def test_a_training_is_drafted_where_weights_serve(
    version: PolicyVersion, bundle: Bundle, is_drafted: bool
) -> None:
    programs = Programs(versions=[version], bundles={1: bundle}, proposal=LEARNED)
    unused: Any = None
    drafting = Drafting(programs.deployer(), programs.coordinator(), unused, unused)
    material = await drafting.material(pattern_of(), "training")
    assert (material.training is not None) == is_drafted


async def test_another_bundle_under_the_key_of_a_plan_ends_it() -> None:
    programs, approved = Programs(), approved_plan()
    programs.versions.append(version_of(2, idempotency_key=f"plan-{approved.plan_id}"))
    programs.bundles[2] = Bundle(instructions=Instructions(text="Another.", mode="append"))
    plan = await to_rest(executing(programs), approved)
    assert (plan.state, plan.policy) == ("rejected", None)


async def test_the_last_training_of_an_algorithm_has_hyperparameters() -> None:
    programs = Programs()
    assert await programs.coordinator().hyperparameters("shop", "dpo") == Hyperparameters()
    material = Material(training=LEARNED, hyperparameters=Hyperparameters(learning_rate=2e-3))
    await to_rest(executing(programs), approved_plan(plan_of(kind="training", material=material)))
    assert await programs.coordinator().hyperparameters("shop", "dpo") == material.hyperparameters


async def test_a_note_is_handed_to_people_without_an_effect() -> None:
    programs = Programs()
    plan = await to_rest(executing(programs), approved_plan(plan_of(kind="note")))
    assert (plan.state, plan.effect, programs.asked) == ("validated", None, [])
    assert "cannot be measured" in str(plan.verdict)


@pytest.mark.parametrize("status", [302, 400, 404, 409, 422])
async def test_an_answer_of_something_else_at_the_address_ends_no_plan(status: int) -> None:
    programs = Programs(answers=httpx.Response(status, html="<h1>nginx</h1>"))
    for plan in (approved_plan(), replace(approved_plan(), state="executing", policy=version_of(1).name)):
        with pytest.raises(Unavailable, match=f"the deployer answered {status}"):
            await executing(programs).step(plan, NOW)
