"""Better priorities first, first come first served within one, no more than the slots, and no job starves."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.training import Compute
from ratchet.rl_coordinator.jobs.domain.schedule import PRIORITIES, Schedule
from tests.support.training import NOON, after, changed, config, job, request

AGEING_S = 600.0
ONE_SLOT = Schedule({"default": 1}, AGEING_S)
WITH_GPU = Schedule({"default": 1, "gpu": 1}, AGEING_S)


def names(jobs: list) -> list[str]:
    return [each.training_job_id for each in jobs]


def test_equal_priorities_are_first_come_first_served() -> None:
    waiting = [
        job("low", priority="low", created_at=after(0)),
        job("normal 1", created_at=after(1)),
        job("normal 2", created_at=after(2)),
        job("high", priority="high", created_at=after(3)),
        job("urgent", priority="urgent", created_at=after(4)),
    ]
    expected = [waiting[4], waiting[3], waiting[1], waiting[2], waiting[0]]
    assert ONE_SLOT.in_order(waiting) == expected


def test_a_job_that_waited_long_enough_comes_before_newer_urgent_ones() -> None:
    old = job("old", priority="low", created_at=NOON)
    new = job("new", priority="urgent", created_at=after(3 * AGEING_S + 1))
    assert ONE_SLOT.in_order([new, old]) == [old, new]


def test_excess_jobs_stay_queued() -> None:
    waiting = [job(str(n), created_at=after(n)) for n in range(5)]
    assert names(Schedule({"default": 2}, AGEING_S).next_up(waiting, after(9))) == names(waiting[:2])


def test_a_held_slot_is_not_given_away() -> None:
    held = job("held", state="running")
    assert ONE_SLOT.slots_used([held, job("next")]) == {"default": 1}
    assert ONE_SLOT.next_up([held, job("next")], NOON) == []


def test_a_full_pool_does_not_hold_up_another() -> None:
    busy = job("busy", state="dispatched")
    gpu = job("gpu", pool="gpu", priority="low")
    assert WITH_GPU.next_up([busy, job("next"), gpu], NOON) == [gpu]


def test_a_job_of_an_unknown_pool_waits() -> None:
    assert ONE_SLOT.next_up([job(pool="elsewhere")], NOON) == []


def test_a_job_in_its_pause_before_a_retry_is_passed_over() -> None:
    paused, other = job("paused", retry_at=after(60)), job("other", created_at=after(5))
    assert ONE_SLOT.next_up([paused, other], after(10)) == [other]
    assert ONE_SLOT.next_up([paused, other], after(60)) == [paused]


@pytest.mark.parametrize(("hours", "starts"), [("12-13", True), ("13-12", False), ("22-6", False), ("9-9", True)])
def test_a_job_waits_for_the_hours_that_it_may_start_in(hours: str, starts: bool) -> None:
    waiting = job(request=request(start_hours=hours))
    assert ONE_SLOT.next_up([waiting], NOON) == [waiting] * starts
    assert ONE_SLOT.next_up([changed(waiting, priority="high")], NOON) != []


def test_the_hours_of_a_job_hold_no_other_up() -> None:
    nightly, other = job("nightly", request=request(start_hours="22-6")), job("other", created_at=after(5))
    assert ONE_SLOT.next_up([nightly, other], after(10)) == [other]
    assert ONE_SLOT.next_up([nightly], after(11 * 3600)) == [nightly]


def test_a_pause_that_a_clock_a_year_ahead_noted_lasts_no_year() -> None:
    year = 365 * 86_400
    paused = job("paused", retry_at=after(year + 600), updated_at=after(year))
    assert ONE_SLOT.next_up([paused], after(10)) == [paused]
    skewed = job("skewed", retry_at=after(600), updated_at=after(12))
    assert ONE_SLOT.next_up([skewed], after(10)) == []


def test_a_job_is_announced_as_queued_before_it_is_dispatched() -> None:
    assert ONE_SLOT.next_up([job(announced=False)], NOON) == []


def test_jobs_for_a_gpu_go_to_its_pool_where_there_is_one() -> None:
    for_gpu = request(training_config=changed(config(), compute=Compute(gpu_count=1)))
    assert WITH_GPU.pool_of(for_gpu) == "gpu"
    assert ONE_SLOT.pool_of(for_gpu) == "default"
    assert WITH_GPU.pool_of(request()) == "default"


@given(st.lists(st.tuples(st.sampled_from(sorted(PRIORITIES)), st.integers(0, 10_000)), min_size=1, max_size=30))
def test_job_is_overtaken_only_by_those_of_a_bounded_time_after_it(arrivals: list) -> None:
    waiting = [job(str(n), priority=p, created_at=after(at)) for n, (p, at) in enumerate(arrivals)]
    served = ONE_SLOT.in_order(waiting)
    for place, late in enumerate(served):
        for early in served[place + 1 :]:
            steps = PRIORITIES[early.priority] - PRIORITIES[late.priority]
            assert (late.created_at - early.created_at).total_seconds() <= steps * AGEING_S


def test_search_for_a_bundle_has_a_pool_of_its_own() -> None:
    assert WITH_GPU.pool_of(request(training_config=config("gepa", "stable"))) == "prompts"
