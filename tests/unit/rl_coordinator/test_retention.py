"""Old ended jobs go; what triggers count from stays."""

from __future__ import annotations

from ratchet.contract.state import Job
from ratchet.rl_coordinator.jobs.domain.retention import prunable
from tests.support.training import after, job

DAY = 86_400.0


def ended(name: str, days_ago: float, state: str = "completed", **changes: object) -> Job:
    at = after(-days_ago * DAY)
    return job(name, state=state, created_at=at, updated_at=at, finished_at=at, **changes)


def pruned(*jobs: Job) -> list[str]:
    names = {one.training_job_id: one for one in jobs}
    found = prunable(jobs, retention_s=90 * DAY, now=after(0))
    return [name for name in names if names[name] in found]


def test_old_ended_jobs_are_pruned_and_young_ones_stay():
    old, failed, young = ended("old", 100), ended("failed", 95, "failed"), ended("young", 10)
    assert pruned(old, failed, young) == [old.training_job_id, failed.training_job_id]


def test_the_newest_job_of_a_role_and_algorithm_stays_however_old_it_is():
    older, last = ended("older", 200), ended("last", 100)
    other = ended("other", 300, algorithm="sft")
    assert pruned(older, last, other) == [older.training_job_id]


def test_the_job_that_the_trigger_counts_from_stays():
    counted = ended("counted", 200, rewarded=50)
    assert pruned(counted, ended("later", 100, rewarded=10), ended("last", 1, rewarded=20)) != []
    assert counted.training_job_id not in pruned(counted, ended("last", 1, rewarded=20))


def test_a_job_of_pairs_with_a_higher_counter_does_not_take_the_place_of_the_one_that_is_counted_from():
    counted = ended("counted", 200, rewarded=50)
    of_pairs = ended("of pairs", 150, rewarded=80, algorithm="dpo")
    assert counted.training_job_id not in pruned(counted, of_pairs, ended("last", 1, rewarded=20))


def test_a_job_that_has_not_ended_or_is_not_told_stays():
    waiting = job("waiting", created_at=after(-200 * DAY))
    untold = ended("untold", 150, "failed", announced=False)
    assert pruned(waiting, untold, ended("last", 1)) == []
