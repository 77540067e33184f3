"""A role is trained again after enough new rewarded trajectories, once."""

from __future__ import annotations

from ratchet.messages.base import named_id
from ratchet.rl_coordinator.domain.triggers import count_one_more, counted_from, counted_role, threshold_request
from tests.support.training import NOON, config, job, request, reward, trajectory


def asked(jobs: list, rewarded: int, threshold: int = 100):
    return threshold_request("support", config(), jobs=jobs, rewarded=rewarded, threshold=threshold, now=NOON)


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
