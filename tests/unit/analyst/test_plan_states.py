"""The life of a plan: what may follow what, when another is drafted, and what it came to in words."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from msgspec.structs import replace

from ratchet.analyst.domain.plan import (
    ANALYST,
    ENDS,
    SUPERSEDED,
    approved,
    has_helped,
    has_worked,
    next_kind,
    plan_id_of,
    stepped,
    verdict_of,
)
from ratchet.core.contract.learning import PLAN_STATES, AdaptationPlan, ArmEffect, Effect
from ratchet.core.errors import WrongState
from tests.support.adaptation import NOW, approved_plan, pattern_of, plan_of


def ended(state: str, reason: str | None = None, by: str = ANALYST) -> AdaptationPlan:
    plan = approved_plan()
    if state != "rejected":
        plan = stepped(plan, "executing", NOW, ANALYST)
    return stepped(plan, state, NOW, by, reason)


def effect(difference: float, low: float, high: float) -> ArmEffect:
    return ArmEffect(difference=difference, low=low, high=high, stable=100, canary=90, at=NOW)


@pytest.mark.parametrize(("state", "follower"), [*product(PLAN_STATES, PLAN_STATES)])
def test_a_plan_takes_only_the_steps_of_its_table(state: str, follower: str) -> None:
    plan = replace(plan_of(), state=state)
    if follower in PLAN_STATES[state]:
        after = stepped(plan, follower, NOW, "ann", "why")
        assert (after.state, after.history[-1].state, after.history[-1].reason) == (follower, follower, "why")
    else:
        with pytest.raises(WrongState, match=f"cannot become {follower}"):
            stepped(plan, follower, NOW, "ann")


def test_an_approval_names_who_gave_it() -> None:
    plan = approved(plan_of(), NOW, "ann (key_a)")
    assert [approval.by for approval in plan.approvals] == ["ann (key_a)"]


def test_two_analysts_draft_the_same_plan_once() -> None:
    assert plan_of().plan_id == plan_of().plan_id == plan_id_of(pattern_of(), 0)
    again = replace(pattern_of(), opened_at=pattern_of().opened_at + timedelta(days=401))
    assert len({plan_id_of(pattern_of(), 0), plan_id_of(pattern_of(), 1), plan_id_of(again, 0)}) == 3


def test_an_open_pattern_leads_to_what_it_recommends() -> None:
    assert next_kind(pattern_of(), []) == "bundle"


@pytest.mark.parametrize("state", ["closed", "dismissed"])
def test_a_pattern_that_is_over_leads_to_no_plan(state: str) -> None:
    assert next_kind(pattern_of(state=state), []) is None


@pytest.mark.parametrize("state", sorted(PLAN_STATES.keys() - ENDS))
def test_no_second_plan_is_drafted_while_one_is_under_way(state: str) -> None:
    assert next_kind(pattern_of(seen_at=NOW + timedelta(days=1)), [replace(plan_of(), state=state)]) is None


def test_a_change_that_did_not_end_the_pattern_is_followed_by_another() -> None:
    later = pattern_of(seen_at=NOW + timedelta(hours=1))
    assert next_kind(later, [ended("validated")]) == "training"
    assert next_kind(later, [ended("rolled_back")]) == "training"
    assert next_kind(pattern_of(), [ended("validated")]) is None, "it was not seen since"


def test_what_a_person_rejected_is_not_drafted_again() -> None:
    later = pattern_of(seen_at=NOW + timedelta(days=9))
    assert next_kind(later, [ended("rejected", "no", "ann")]) is None


def test_a_void_plan_is_drafted_anew_at_once_and_a_refused_one_a_day_later() -> None:
    later, next_day = (pattern_of(seen_at=NOW + timedelta(hours=hours)) for hours in (1, 24))
    assert next_kind(later, [ended("rejected", f"{SUPERSEDED}another serves")]) == "bundle"
    assert next_kind(later, [ended("rejected", "gate warmup: the gateway answered 502")]) is None
    assert next_kind(next_day, [ended("rejected", "gate warmup: the gateway answered 502")]) == "bundle"


def test_four_changes_of_a_pattern_are_enough() -> None:
    next_day = pattern_of(seen_at=NOW + timedelta(days=1))
    assert next_kind(next_day, [ended("rejected", "the deployer refuses it")] * 3) == "bundle"
    assert next_kind(next_day, [ended("rejected", "the deployer refuses it")] * 4) is None


def test_void_plans_use_up_no_tries() -> None:
    later = pattern_of(seen_at=NOW + timedelta(hours=1))
    assert next_kind(later, [ended("rejected", f"{SUPERSEDED}another serves")] * 9) == "bundle"


@pytest.mark.parametrize(
    ("seen", "helped", "words"),
    [
        (effect(-0.35, -0.5, -0.2), True, "It helped, as promised"),
        (effect(-0.1, -0.15, -0.05), True, "It helped, less than promised"),
        (effect(0.2, 0.1, 0.3), False, "It harmed"),
        (effect(0.0, -0.1, 0.1), None, "It did not help as promised"),
        (effect(-0.1, -0.6, 0.4), None, "is not known"),
    ],
)
def test_a_verdict_states_whether_it_helped(seen: ArmEffect, helped: bool | None, words: str) -> None:
    plan = replace(ended("validated"), effect=seen)
    assert (has_helped(plan), has_worked(plan)) == (helped, helped)
    assert words in verdict_of(seen, plan.expected)


def test_more_reward_is_better() -> None:
    plan = replace(plan_of(), expected=Effect(measure="reward", value=0.2, low=0.1, high=0.3))
    assert has_helped(replace(plan, effect=effect(0.2, 0.1, 0.3))) is True
    assert has_helped(replace(plan, effect=effect(-0.2, -0.3, -0.1))) is False


def test_what_was_taken_back_did_not_work() -> None:
    assert has_worked(ended("rolled_back")) is False
    assert has_worked(ended("rejected")) is None
