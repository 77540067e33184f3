"""The effect of a plan: the difference between arms among what matches, at all looks; else why it is not known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.sparse import csc_array

from ratchet.analyst.effects import arm_effect, entry_of, why_unmeasurable
from ratchet.analyst.mining.base import Episodes, Floats, Members
from ratchet.core.contract.learning import AdaptationPlan, ArmEffect, Effect, Trigger
from tests.support.adaptation import NOW, REFUNDS, plan_of

Drawn = dict[str, tuple[str, float]]


def world(
    size: int, failures: tuple[float, float, float], seed: int = 1, known: tuple[float, float] = (1.0, 1.0)
) -> tuple[Episodes, Drawn]:
    """`failures`: of stable and canary among refunds, and of all others. `known`: share of known values by arm."""
    rng = np.random.default_rng(seed)
    ids = tuple(f"t{n}" for n in range(size))
    weight = np.where(np.arange(size) < size // 2, 0.1, 0.5)
    is_canary, refund = rng.random(size) < weight, rng.random(size) < 0.5
    share = np.where(refund, np.where(is_canary, failures[1], failures[0]), failures[2])
    failure = (rng.random(size) < share).astype(np.float64)
    seen = rng.random(size) < np.where(is_canary, known[1], known[0])
    reward = np.where(seen, 1 - failure + rng.normal(0, 0.1, size), np.nan)
    drawn = {each: ("canary" if is_canary[n] else "stable", float(weight[n])) for n, each in enumerate(ids)}
    return episodes(ids, refund, {"failure": np.where(seen, failure, np.nan), "reward": reward}), drawn


def episodes(ids: tuple[str, ...], refund: np.ndarray, measures: Mapping[str, Floats]) -> Episodes:
    members = {"term": Members(csc_array(refund[:, None]), ("refund",))}
    return Episodes(ids, np.arange(len(ids), dtype=np.uint64), np.zeros(len(ids)), measures, {}, members)


def ended_of(whole: Episodes, ended: np.ndarray) -> Episodes:
    """Those that ended."""
    ids = tuple(np.array(whole.ids)[ended])
    refund = whole.matching([REFUNDS])[ended]
    return episodes(ids, refund, {name: values[ended] for name, values in whole.measures.items()})


def effect_of(plan: AdaptationPlan, episodes: Episodes, drawn: Drawn) -> ArmEffect:
    effect = arm_effect(plan, episodes, drawn, NOW)
    assert isinstance(effect, ArmEffect), effect
    return effect


def test_the_effect_is_of_those_that_match_alone() -> None:
    effect = effect_of(plan_of(), *world(6_000, (0.6, 0.1, 0.5)))
    assert effect.low < -0.5 < effect.high < -0.3
    assert effect.stable + effect.canary < 3_200


def test_a_harm_that_only_others_have_is_no_effect() -> None:
    effect = effect_of(plan_of(), *world(6_000, (0.3, 0.3, 0.9)))
    assert effect.low < 0 < effect.high


def test_the_effect_of_unbounded_values_is_in_their_unit() -> None:
    plan = replace(plan_of(), expected=Effect(measure="reward", value=0.4, low=0.3, high=0.5))
    effect = effect_of(plan, *world(6_000, (0.6, 0.1, 0.5)))
    assert 0.3 < effect.low < 0.5 < effect.high


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["failure", "reward"])
def test_looks_at_no_effect_show_one_in_5_of_100_rollouts_at_most(measure: str) -> None:
    plan = replace(plan_of(), expected=Effect(measure=measure, value=0.3, low=0.2, high=0.4))
    wrong = 0
    for seed in range(200):
        whole, drawn = world(1_200, (0.3, 0.3, 0.3), seed)
        for until in range(150, 1_201, 75):
            refund = whole.matching([REFUNDS])[:until]
            part = episodes(whole.ids[:until], refund, {name: v[:until] for name, v in whole.measures.items()})
            seen = arm_effect(plan, part, drawn, NOW)
            if isinstance(seen, ArmEffect) and not seen.low <= 0 <= seen.high:
                wrong += 1
                break
    assert wrong <= 10


def test_a_few_that_match_show_nothing() -> None:
    assert "each arm needs 30" in str(arm_effect(plan_of(), *world(60, (0.6, 0.1, 0.5)), NOW))


def test_an_outcome_that_never_came_counts_as_a_failure() -> None:
    effect = effect_of(plan_of(), *world(6_000, (0.1, 0.1, 0.1), known=(1.0, 0.5)))
    assert effect.low > 0.2


def test_values_that_one_arm_loses_more_often_show_nothing() -> None:
    plan = replace(plan_of(), expected=Effect(measure="reward", value=0.4, low=0.3, high=0.5))
    assert "known unequally often" in str(arm_effect(plan, *world(6_000, (0.1, 0.1, 0.1), known=(1.0, 0.5)), NOW))


@pytest.mark.parametrize("seed", range(5))
def test_a_canary_whose_failing_runs_hang_is_not_shown_to_help(seed: int) -> None:
    whole, drawn = world(4_000, (0.3, 0.6, 0.3), seed)
    rng, failed = np.random.default_rng(seed), whole.measures["failure"] == 1
    hangs = np.array([drawn[each][0] == "canary" for each in whole.ids]) & failed & (rng.random(4_000) < 0.9)
    seen = arm_effect(plan_of(), ended_of(whole, ~hangs), drawn, NOW)
    assert "end unequally often" in str(seen)
    of_the_role = replace(plan_of(), triggers=())
    assert effect_of(of_the_role, ended_of(whole, ~hangs), drawn).low > 0


def test_arms_that_reach_the_triggers_unequally_show_nothing() -> None:
    whole, drawn = world(6_000, (0.3, 0.3, 0.3))
    arms = np.array([drawn[each][0] == "canary" for each in whole.ids])
    relabelled = whole.matching([REFUNDS]) & ~(arms & (np.arange(6_000) % 2 == 0))
    seen = arm_effect(plan_of(), episodes(whole.ids, relabelled, whole.measures), drawn, NOW)
    assert "reach the triggers unequally" in str(seen)


def test_a_few_points_of_missing_values_are_unequal_too() -> None:
    plan = replace(plan_of(), expected=Effect(measure="reward", value=0.4, low=0.3, high=0.5))
    assert "known unequally often" in str(arm_effect(plan, *world(9_000, (0.1, 0.1, 0.1), known=(1.0, 0.95)), NOW))
    assert isinstance(arm_effect(plan, *world(9_000, (0.1, 0.1, 0.1), known=(0.95, 0.95)), NOW), ArmEffect)


def test_trajectories_of_no_draw_are_left_out() -> None:
    whole, drawn = world(6_000, (0.6, 0.1, 0.5))
    few = {each: drawn[each] for each in [*drawn][:20]}
    assert "trajectories match the triggers" in str(arm_effect(plan_of(), whole, few, NOW))


@pytest.mark.parametrize("attribute", ["tool_error", "behavior", "version", "document", "domain"])
def test_what_the_arm_may_have_touched_measures_no_effect(attribute: str) -> None:
    plan = replace(plan_of(), triggers=(Trigger(attribute=attribute, value="x"),))
    assert f"{attribute} is known only after the arm was drawn" in str(why_unmeasurable(plan))


def typed_world(size: int, seed: int, otherwise: float = 0.0, after: float = 0.3, *, swap: bool = False) -> list[bool]:
    """Whether a plan for a type of tasks, half of all, is shown to help, by 60 rollouts: of it 30 % fail at stable and
    `after` at the canary. The canary names the type of a share of its failing tasks `otherwise`; with `swap` that of as
    many good ones of other types, too."""
    rng = np.random.default_rng(seed)
    shown = list[bool]()
    ids = tuple(f"t{n}" for n in range(size))
    plan = replace(plan_of(), triggers=(Trigger(attribute="task_type", value="refund"),))
    for _ in range(60):
        is_canary, refund = rng.random(size) < 0.5, rng.random(size) < 0.5
        failure = (rng.random(size) < np.where(is_canary & refund, after, 0.3)).astype(np.float64)
        named = refund & ~(is_canary & (failure == 1) & (rng.random(size) < otherwise))
        if swap:
            good = np.flatnonzero(is_canary & ~refund & (failure == 0))
            named[good[: int((refund & ~named).sum())]] = True
        members = {"task_type": Members(csc_array(named[:, None]), ("refund",))}
        whole = Episodes(ids, np.arange(size, dtype=np.uint64), np.zeros(size), {"failure": failure}, {}, members)
        drawn = {each: ("canary" if canary else "stable", 0.5) for each, canary in zip(ids, is_canary, strict=True)}
        effect = arm_effect(plan, whole, drawn, NOW)
        shown.append(isinstance(effect, ArmEffect) and effect.high < 0)
    return shown


@pytest.mark.parametrize(
    ("size", "otherwise", "swap"), [(1_500, 0.6, False), (4_000, 0.3, False), (1_500, 1.0, False), (1_500, 0.6, True)]
)
def test_types_that_go_with_the_outcome_are_no_effect(size: int, otherwise: float, swap: bool) -> None:
    assert sum(typed_world(size, 1, otherwise, swap=swap)) <= 3


def test_the_type_of_a_task_measures_an_effect() -> None:
    assert why_unmeasurable(replace(plan_of(), triggers=(Trigger(attribute="task_type", value="refund"),))) is None
    assert sum(typed_world(1_500, 1, after=0.15)) > 30


def test_drift_of_inputs_is_nothing_that_arms_differ_in() -> None:
    plan = replace(plan_of(), expected=Effect(measure="inputs", value=0.4, low=0.3, high=0.5))
    assert "nothing that arms" in str(why_unmeasurable(plan))


def test_the_entry_condition_leaves_out_what_came_after() -> None:
    late = Trigger(attribute="tool_error", value="refund: too late")
    assert entry_of((REFUNDS, late)) == (REFUNDS,)
    assert entry_of((late,)) == (late,)
