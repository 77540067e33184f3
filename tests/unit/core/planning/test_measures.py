"""Planners compared: by what was logged, and beside simple rules in the simulator."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask
from ratchet.core.planning.base import Version0
from ratchet.core.planning.baselines import RULES, compared
from ratchet.core.planning.measures import is_valid, measured
from ratchet.core.planning.simulator import Teacher
from tests.support.executions import PLAN, execution, run_of


def test_each_policy_has_its_own_figures() -> None:
    failed = execution(1, runs=(run_of(status="failed", cost_usd=0.05),) * 3, status="failed")
    first, second = measured([execution(0), failed, execution(2, version=2)])
    assert (first.policy, first.executions, first.success_rate) == ("planner@1", 2, 0.5)
    assert first.cost_usd == pytest.approx(0.09)
    assert first.cost_per_success_usd == pytest.approx(0.18)
    assert (second.policy, second.executions) == ("planner@2", 1)


def test_plans_of_the_language_model_are_a_row_of_their_own() -> None:
    by_llm = execution(1, plan=replace(PLAN, made_by="llm"))
    assert [row.policy for row in measured([execution(0), by_llm])] == ["planner@1", "planner@1, llm"]


def test_a_plan_that_waits_for_itself_is_not_valid() -> None:
    endless = Plan(sub_tasks=(SubTask(task_type="code", instruction="x", depends_on=(0,)),), made_by="model")
    assert is_valid(execution(0))
    assert not is_valid(execution(0, plan=endless))
    assert not is_valid(execution(0, plan=None))


def test_a_planner_stands_beside_every_rule_with_the_same_plans() -> None:
    rows = compared(Teacher(), 60, 3)
    assert [row.policy for row in rows] == ["planner", *RULES, "true plans, random"]
    assert {row.executions for row in rows} == {60}
    cost = {row.policy: row.cost_usd for row in rows}
    assert cost["cheapest"] < cost["random"] < cost["best single worker"]
    assert rows == compared(Teacher(), 60, 3)


def test_version_0_costs_less_and_succeeds_less_than_true_plans() -> None:
    version0, *_, model = compared(Version0(TASK_TYPES), 60, 3)
    assert version0.cost_usd < model.cost_usd
    assert version0.success_rate < model.success_rate
