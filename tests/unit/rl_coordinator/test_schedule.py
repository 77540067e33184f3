"""Better priorities first, first come first served within one, no more than the slots, and nobody starves."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ratchet.contract.training import Compute
from ratchet.rl_coordinator.jobs.domain.schedule import PRIORITIES, in_order, next_up, pool_of
from tests.support.training import NOON, after, changed, config, job, request

AGEING_S = 600.0
SLOTS = {"default": 1}


def names(jobs: list) -> list[str]:
    return [each.training_job_id for each in jobs]


def test_priorities_are_honoured_and_equal_ones_are_first_come_first_served() -> None:
    waiting = [
        job("low", priority="low", created_at=after(0)),
        job("normal 1", created_at=after(1)),
        job("normal 2", created_at=after(2)),
        job("high", priority="high", created_at=after(3)),
        job("urgent", priority="urgent", created_at=after(4)),
    ]
    expected = [waiting[4], waiting[3], waiting[1], waiting[2], waiting[0]]
    assert in_order(waiting, AGEING_S) == expected


def test_a_job_that_waited_long_enough_comes_before_newer_urgent_ones() -> None:
    old = job("old", priority="low", created_at=NOON)
    new = job("new", priority="urgent", created_at=after(3 * AGEING_S + 1))
    assert in_order([new, old], AGEING_S) == [old, new]


def test_excess_jobs_stay_queued() -> None:
    waiting = [job(str(n), created_at=after(n)) for n in range(5)]
    assert names(next_up(waiting, {"default": 2}, ageing_s=AGEING_S, now=after(9))) == names(waiting[:2])


def test_a_held_slot_is_not_given_away() -> None:
    held = job("held", state="running")
    assert next_up([held, job("next")], SLOTS, ageing_s=AGEING_S, now=NOON) == []


def test_a_full_pool_does_not_hold_up_another() -> None:
    busy = job("busy", state="dispatched")
    gpu = job("gpu", pool="gpu", priority="low")
    assert next_up([busy, job("next"), gpu], {"default": 1, "gpu": 1}, ageing_s=AGEING_S, now=NOON) == [gpu]


def test_a_job_of_an_unknown_pool_waits() -> None:
    assert next_up([job(pool="elsewhere")], SLOTS, ageing_s=AGEING_S, now=NOON) == []


def test_a_job_in_its_pause_before_a_retry_is_passed_over() -> None:
    paused, other = job("paused", retry_at=after(60)), job("other", created_at=after(5))
    assert next_up([paused, other], SLOTS, ageing_s=AGEING_S, now=after(10)) == [other]
    assert next_up([paused, other], SLOTS, ageing_s=AGEING_S, now=after(60)) == [paused]


def test_a_job_is_announced_as_queued_before_it_is_dispatched() -> None:
    assert next_up([job(announced=False)], SLOTS, ageing_s=AGEING_S, now=NOON) == []


def test_jobs_for_a_gpu_go_to_its_pool_where_there_is_one() -> None:
    wants = request(training_config=changed(config(), compute=Compute(gpu_count=1)))
    assert pool_of(wants, {"default": 1, "gpu": 1}) == "gpu"
    assert pool_of(wants, {"default": 1}) == "default"
    assert pool_of(request(), {"default": 1, "gpu": 1}) == "default"


@given(st.lists(st.tuples(st.sampled_from(sorted(PRIORITIES)), st.integers(0, 10_000)), min_size=1, max_size=30))
def test_nothing_starves_a_job_is_overtaken_only_by_those_created_within_a_bounded_time(arrivals: list) -> None:
    waiting = [job(str(n), priority=p, created_at=after(at)) for n, (p, at) in enumerate(arrivals)]
    served = in_order(waiting, AGEING_S)
    for place, late in enumerate(served):
        for early in served[place + 1 :]:
            steps = PRIORITIES[early.priority] - PRIORITIES[late.priority]
            assert (late.created_at - early.created_at).total_seconds() <= steps * AGEING_S
