"""A role is trained again after enough new rewarded trajectories, once."""

from __future__ import annotations

from ratchet.bus.message import named_id
from ratchet.contract.reward import Preference
from ratchet.rl_coordinator.triggers.domain import (
    count_one_more,
    counted_from,
    counted_role,
    preferences_request,
    preferring_role,
    should_run_dpo,
    threshold_request,
)
from tests.support.training import NOON, changed, config, job, request, reward, trajectory


def asked(jobs: list, rewarded: int, threshold: int = 100):
    return threshold_request("support", config(), jobs=jobs, counted=rewarded, threshold=threshold, now=NOON)


def test_only_first_revisions_move_the_counter_of_their_role() -> None:
    told = trajectory("t")
    assert counted_role(reward(told, 1.0)) == "support"
    assert counted_role(reward(told, 1.0, revision=1)) is None
    assert counted_role(told) is None
    assert [count_one_more(None), count_one_more(41)] == [1, 42]


def test_the_threshold_asks_for_training_when_it_is_reached_and_not_before() -> None:
    assert asked([], 99) is None
    made = asked([], 100)
    assert made is not None
    assert (made.role, made.trigger_reason, made.training_config) == ("support", "threshold_reached", config())


def test_counting_starts_again_when_the_role_is_trained_for_whatever_reason() -> None:
    manual = job(state="completed", rewarded=150)
    assert counted_from("support", [manual, job("older", rewarded=10)]) == 150
    assert asked([manual], 249) is None
    assert asked([manual], 250) is not None


def test_learning_from_pairs_or_thumbs_leaves_the_count_of_trajectories_alone() -> None:
    others = [job(name, request=request(name, training_config=config(name)), rewarded=90) for name in ("dpo", "kto")]
    assert counted_from("support", [*others, job("own", rewarded=10)]) == 10
    assert asked([changed(one, state="completed") for one in others], 100) is not None


def test_other_roles_do_not_matter() -> None:
    other = job(request=request(role="sales", trigger_reason="threshold_reached"), rewarded=500)
    assert asked([other], 100) is not None


def test_overlapping_triggers_coalesce_into_the_one_that_is_under_way() -> None:
    under_way = job(request=request(trigger_reason="scheduled"), rewarded=0)
    assert asked([under_way], 5000) is None
    ended = job(request=request(trigger_reason="scheduled"), state="completed", rewarded=0)
    assert asked([ended], 5000) is not None


def test_a_manual_job_does_not_hold_the_trigger_back() -> None:
    assert asked([job(rewarded=0)], 100) is not None


def test_firing_twice_from_the_same_count_is_one_job() -> None:
    first, second = asked([], 100), asked([], 130)
    assert first is not None
    assert second is not None
    assert first.training_job_id == second.training_job_id == named_id("trigger", "threshold_reached", "support", 0)


def learned_from_pairs(name: str = "dpo", **changes):
    return job(name, request=request(name, training_config=config("dpo")), **changes)


def test_preferences_move_the_counter_of_their_role() -> None:
    one = Preference(preference_id=named_id(1), prompt="p", chosen="a", rejected="b", source="human", role="support")
    assert preferring_role(one) == "support"
    assert preferring_role(trajectory("t")) is None


def test_dpo_is_due_when_the_role_has_enough_preferences_that_it_has_not_learned_from() -> None:
    assert not should_run_dpo("support", jobs=[], preferences=499, threshold=500)
    assert should_run_dpo("support", jobs=[], preferences=500, threshold=500)
    before = learned_from_pairs(state="completed", preferences=400)
    assert not should_run_dpo("support", jobs=[before], preferences=899, threshold=500)
    assert should_run_dpo("support", jobs=[before], preferences=900, threshold=500)


def test_training_on_anything_but_pairs_leaves_the_count_of_preferences_alone() -> None:
    policy_gradient = job(state="completed", preferences=500)
    assert should_run_dpo("support", jobs=[policy_gradient], preferences=500, threshold=500)
    assert not should_run_dpo("sales", jobs=[policy_gradient], preferences=0, threshold=500)


def test_dpo_waits_for_a_triggers_job_that_is_under_way() -> None:
    under_way = job(request=request(trigger_reason="threshold_reached"))
    assert not should_run_dpo("support", jobs=[under_way], preferences=5000, threshold=500)


def test_enough_preferences_ask_for_one_job_of_their_own() -> None:
    def asked_for(counted: int, jobs: list):
        return preferences_request("support", config("dpo"), jobs=jobs, counted=counted, threshold=500, now=NOON)

    first, second = asked_for(500, []), asked_for(510, [])
    assert first is not None
    assert second is not None
    assert first.training_job_id == second.training_job_id == named_id("trigger", "preferences", "support", 0)
    assert (first.trigger_reason, first.training_config.algorithm) == ("threshold_reached", "dpo")
    assert asked_for(600, [learned_from_pairs(state="failed", preferences=500)]) is None
