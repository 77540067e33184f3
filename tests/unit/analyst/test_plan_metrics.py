"""Metrics of plans: what counts as a success."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import REGISTRY

from ratchet.analyst import metrics
from ratchet.core.contract.learning import ArmEffect
from tests.support.adaptation import NOW, plan_of

HELPED = ArmEffect(difference=-0.3, low=-0.4, high=-0.2, stable=100, canary=100, at=NOW)


def test_only_plans_that_helped_count_as_successes() -> None:
    handed_over = replace(plan_of(kind="note"), state="validated")
    metrics.count([], [handed_over])
    assert REGISTRY.get_sample_value("ratchet_analyst_plan_success_ratio", {"role": "shop"}) is None
    helped = replace(plan_of(), state="validated", effect=HELPED)
    harmed = replace(helped, effect=replace(HELPED, difference=0.3, low=0.2, high=0.4))
    taken_back = replace(plan_of(), state="rolled_back")
    metrics.count([], [handed_over, helped, harmed, taken_back])
    assert REGISTRY.get_sample_value("ratchet_analyst_plan_success_ratio", {"role": "shop"}) == 1 / 3
    shown = {"role": "shop", "measure": "failure"}
    assert REGISTRY.get_sample_value("ratchet_analyst_plan_improvement", shown) == 0.0
