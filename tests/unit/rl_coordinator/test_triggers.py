"""A role is trained again after enough that is new, once, and when its policy became worse by more than chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ratchet.bus.message import named_id
from ratchet.core.contract.reward import Preference
from ratchet.core.contract.state import Job
from ratchet.rl_coordinator.triggers.domain import (
    PREFERRED,
    REWARDED,
    THRESHOLD,
    Firing,
    Sample,
    Standing,
    compare,
    standing,
    training_request,
    why_due,
)
from tests.support.training import NOON, changed, config, job, request, reward, trajectory


def after_rewards(jobs: list[Job], counted: int, threshold: int | None = 100) -> Standing:
    return standing(REWARDED, "support", jobs=jobs, counted=counted, threshold=threshold)


def after_preferences(jobs: list[Job], counted: int, role: str = "support") -> Standing:
    return standing(PREFERRED, role, jobs=jobs, counted=counted, threshold=500)


def learned_from_pairs(name: str = "dpo", **changes: Any) -> Job:
    return job(name, request=request(name, training_config=config("dpo")), **changes)


def test_only_first_revisions_move_the_counter_of_their_role() -> None:
    ended = trajectory("t")
    assert REWARDED.role_of(reward(ended, 1.0)) == "support"
    assert REWARDED.role_of(reward(ended, 1.0, revision=1)) is None
    assert REWARDED.role_of(ended) is None


def test_recomputed_rewards_are_no_new_trajectories() -> None:
    assert REWARDED.role_of(changed(reward(trajectory("one"), 1.0), recomputed=True)) is None


def test_training_is_due_when_the_threshold_is_reached_and_not_before() -> None:
    assert after_rewards([], 99) == Standing(start=0, new=99, is_enough=False, is_due=False)
    assert after_rewards([], 100) == Standing(start=0, new=100, is_enough=True, is_due=True)


def test_a_role_without_a_threshold_is_never_due() -> None:
    assert after_rewards([], 10**9, threshold=None) == Standing(start=0, new=10**9, is_enough=False, is_due=False)


def test_counting_starts_again_when_the_role_is_trained_for_any_reason() -> None:
    manual = job(state="completed", rewarded=150)
    assert after_rewards([manual, job("older", rewarded=10)], 150).start == 150
    assert not after_rewards([manual], 249).is_due
    assert after_rewards([manual], 250).is_due


def test_learning_from_pairs_or_thumbs_leaves_count_of_trajectories_alone() -> None:
    others = [job(name, request=request(name, training_config=config(name)), rewarded=90) for name in ("dpo", "kto")]
    assert after_rewards([*others, job("own", rewarded=10)], 10).start == 10
    assert after_rewards([changed(one, state="completed") for one in others], 100).is_due


def test_a_training_that_offers_no_policy_holds_no_trigger_back() -> None:
    tried = job(request=request(offer=False), state="completed", rewarded=90)
    assert after_rewards([tried, job("own", rewarded=10)], 110).is_due
    pairs = job(request=request(training_config=config("dpo"), offer=False), state="completed", preferences=90)
    assert after_preferences([pairs], 500).is_due


def test_other_roles_do_not_matter() -> None:
    other = job(request=request(role="sales", trigger_reason="threshold_reached"), rewarded=500)
    assert after_rewards([other], 100).is_due


def test_overlapping_triggers_coalesce_into_the_one_that_is_under_way() -> None:
    under_way = job(request=request(trigger_reason="scheduled"), rewarded=0)
    assert not after_rewards([under_way], 5000).is_due
    ended = job(request=request(trigger_reason="scheduled"), state="completed", rewarded=0)
    assert after_rewards([ended], 5000).is_due


def test_a_manual_job_does_not_hold_the_trigger_back() -> None:
    assert after_rewards([job(rewarded=0)], 100).is_due


def test_a_threshold_asks_for_what_its_recipe_names() -> None:
    why = why_due(REWARDED, after_rewards([], 100), 100, None)
    assert why == "100 new rewarded trajectories, the threshold is 100"
    firing = Firing(REWARDED.name, THRESHOLD, why)
    made = training_request(firing, named_id("job"), "support", config(), priority="high", now=NOON)
    assert (made.role, made.trigger_reason, made.training_config) == ("support", "threshold_reached", config())
    assert (made.training_job_id, made.priority) == (named_id("job"), "high")
    assert why_due(PREFERRED, after_preferences([], 130), 100, None) == "130 new preferences, the threshold is 100"


def test_counter_that_began_again_does_not_wait_for_count_of_earlier_one() -> None:
    """The coordinator's bucket was lost: its jobs counted from 11,000, the counter begins with 0."""
    earlier = [job("a", state="completed", rewarded=5000), job("b", state="completed", rewarded=11_000)]
    assert after_rewards(earlier, 99).new == 99
    assert after_rewards(earlier, 100).is_due
    assert not after_rewards([*earlier, job("c", state="completed", rewarded=100)], 199).is_due


def test_preferences_move_the_counter_of_their_role() -> None:
    one = Preference(preference_id=named_id(1), prompt="p", chosen="a", rejected="b", source="human", role="support")
    assert PREFERRED.role_of(one) == "support"
    assert PREFERRED.role_of(trajectory("t")) is None


def test_dpo_is_due_at_enough_preferences_that_the_role_has_not_learned() -> None:
    assert not after_preferences([], 499).is_due
    assert after_preferences([], 500).is_due
    before = learned_from_pairs(state="completed", preferences=400)
    assert not after_preferences([before], 899).is_due
    assert after_preferences([before], 900).is_due
    assert not after_preferences([learned_from_pairs(state="failed", preferences=500)], 600).is_due


def test_training_on_anything_but_pairs_leaves_count_of_preferences_alone() -> None:
    policy_gradient = job(state="completed", preferences=500)
    assert after_preferences([policy_gradient], 500).is_due
    assert not after_preferences([policy_gradient], 0, role="sales").is_due


def test_dpo_waits_for_a_triggers_job_that_is_under_way() -> None:
    under_way = job(request=request(trigger_reason="threshold_reached"))
    assert not after_preferences([under_way], 5000).is_due


def test_whether_dpo_would_start_is_answered_with_the_reason() -> None:
    busy = job(request=request(trigger_reason="scheduled"), state="running")
    few, enough = after_preferences([], 499), after_preferences([], 500)
    assert why_due(PREFERRED, few, None, None) == "the role has no recipe for preferences: it is trained by hand"
    assert why_due(PREFERRED, few, 500, busy) == "499 new preferences, the threshold is 500"
    waits = (
        f"500 new preferences, the threshold is 500; job {busy.training_job_id}, which a trigger started, is running"
    )
    assert why_due(PREFERRED, enough, 500, busy) == waits


def sample(n: int, mean: float) -> Sample:
    """Of successes and failures."""
    return Sample(n, mean, mean * (1 - mean))


@pytest.mark.parametrize(
    ("before", "recent", "fires"),
    [
        (sample(2000, 0.8), sample(500, 0.6), True),
        (sample(2000, 0.8), sample(500, 0.71), False),  # too small a drop
        (sample(2000, 0.8), sample(100, 0.69), False),  # chance may make it
        (sample(2000, 0.8), sample(99, 0.1), False),  # too few
        (sample(99, 0.8), sample(2000, 0.1), False),
        (sample(2000, 0.5), sample(500, 0.9), False),
        (Sample(0, 0.0, 0.0), Sample(0, 0.0, 0.0), False),
        (Sample(200, math.nan, math.nan), Sample(200, 0.7, 0.1), False),
        (Sample(200, 1.0, 0.0), Sample(200, 0.7, 0.0), True),
    ],
)
def test_when_a_policy_counts_as_worse(before: Sample, recent: Sample, fires: bool) -> None:
    assert (compare(before, recent).problem(0.1, 100) is not None) == fires


def test_the_reason_names_both_means_and_the_least_drop() -> None:
    problem = compare(sample(2000, 0.8), sample(500, 0.6)).problem(0.1, 100)
    assert problem is not None
    assert "its mean reward fell by 0.200 (at least 0.1" in problem
    assert "0.800 of 2000 tasks, now 0.600 of 500" in problem


def test_looking_at_unchanged_policy_all_day_for_year_fires_almost_never() -> None:
    """365 days with windows of 150 trajectories, one of which is looked at after every tenth trajectory."""
    random = np.random.default_rng(7)
    before = sample(3000, 0.7)
    outcomes = (random.random((365, 300)) < 0.7).astype(float)
    fired = 0
    for day in outcomes:
        windows = (day[end - 150 : end].mean() for end in range(150, 301, 10))
        fired += any(compare(before, sample(150, float(mean))).problem(0.1, 100) for mean in windows)
    assert fired <= 1
