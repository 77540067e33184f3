"""What the bus must hear about a job, and what time alone does to it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ratchet.core.contract import TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import Artifacts, SnapshotRef, TrainingError
from ratchet.rl_coordinator.jobs.domain.failures import failure_alert
from ratchet.rl_coordinator.jobs.domain.jobs import Limits, mark_announced
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES
from ratchet.rl_coordinator.jobs.domain.upkeep import (
    Listening,
    bring_up_to,
    keep_listening,
    pending_announcement,
    prunable,
    requeue_unconfirmed,
    untaken,
)
from tests.support.training import after, job, request


@pytest.mark.parametrize("state", ["queued", "failed", "cancelled"])
def test_a_state_that_the_coordinator_decided_is_announced_as_a_status(state: str) -> None:
    decided = job(state=state, announced=False, error=TrainingError(code="DATA", message="no rows"))
    message = pending_announcement(decided)
    assert isinstance(message, TrainingStatus)
    assert (message.status, message.attempt, message.role, message.error) == (state, 1, "support", decided.error)
    assert pending_announcement(mark_announced(decided)) is None


def test_a_dispatch_carries_what_the_worker_needs() -> None:
    dispatched = job(
        state="dispatched",
        attempt=2,
        announced=False,
        parent="support@1-dddddddd",
        snapshot=SnapshotRef(uri="s3://b/s.json", digest="e" * 64),
        artifacts=Artifacts(checkpoint="s3://b/c.json"),
    )
    message = pending_announcement(dispatched)
    assert isinstance(message, TrainingDispatch)
    assert (message.attempt, message.parent, message.resume_from) == (2, "support@1-dddddddd", "s3://b/c.json")
    assert message.subject == "agent.rl.training.dispatch.v1.default"


@pytest.mark.parametrize("state", ["running", "completed"])
def test_a_state_that_the_worker_reported_is_not_repeated(state: str) -> None:
    assert pending_announcement(job(state=state, announced=False)) is None


def test_announcing_twice_is_the_same_event() -> None:
    dispatched = job(state="dispatched", announced=False)
    first, second = pending_announcement(dispatched), pending_announcement(dispatched)
    assert first is not None
    assert second is not None
    assert first.event_id == second.event_id


def test_the_failure_of_a_job_that_was_resumed_is_another_alert() -> None:
    first = job(state="failed", attempt=2)
    assert failure_alert(first) == failure_alert(first)
    assert failure_alert(first).alert_id != failure_alert(job(state="failed", attempt=3)).alert_id


def test_dispatch_whose_id_broker_may_have_forgotten_becomes_next_attempt() -> None:
    unconfirmed = job(state="dispatched", announced=False)
    assert requeue_unconfirmed(unconfirmed, after(60)) == unconfirmed
    again = requeue_unconfirmed(unconfirmed, after(91))
    assert (again.state, again.attempt) == ("queued", 2)


def test_an_announced_dispatch_may_wait_for_a_worker_as_long_as_it_takes() -> None:
    announced = job(state="dispatched")
    assert requeue_unconfirmed(announced, after(9999)) == announced


DAY = 86_400.0
LIMITS = Limits(lease_s=30.0, claim_s=120.0, max_attempts=5, retries=DEFAULT_RETRIES)


def test_answers_close_to_each_other_are_one_stretch() -> None:
    first = keep_listening(None, after(0), gap_s=5)
    third = keep_listening(keep_listening(first, after(4), 5), after(8), 5)
    assert third == Listening(since=after(0), last=after(8))


def test_a_pause_starts_a_new_stretch() -> None:
    first = keep_listening(None, after(0), 5)
    assert keep_listening(first, after(6), 5) == Listening(since=after(6), last=after(6))


def test_a_clock_that_was_set_back_starts_a_new_stretch() -> None:
    first = keep_listening(None, after(100), 5)
    assert keep_listening(first, after(50), 5) == Listening(since=after(50), last=after(50))


def test_unconfirmed_dispatch_is_queued_again_and_fails_past_its_deadline() -> None:
    waiting = job(state="dispatched", announced=False)
    now = after(100)
    assert bring_up_to(now, waiting, listening_since=after(0), limits=LIMITS).state == "queued"
    late = job(state="dispatched", announced=False, request=request(deadline=now - timedelta(seconds=1)))
    failed = bring_up_to(now, late, listening_since=after(0), limits=LIMITS)
    assert (failed.state, failed.attempt) == ("failed", 2)


def test_unconfirmed_dispatch_that_was_cancelled_is_not_made_again() -> None:
    """The coordinator stopped after the cancel and came back too late to publish the same dispatch again."""
    asked = job(state="dispatched", announced=False, cancel_requested=True)
    ended = bring_up_to(after(100), asked, listening_since=after(99), limits=LIMITS)
    assert (ended.state, ended.attempt) == ("cancelled", 1)


def ended(name: str, days_ago: float, state: str = "completed", **changes: Any) -> Job:
    at = after(-days_ago * DAY)
    return job(name, state=state, created_at=at, updated_at=at, finished_at=at, **changes)


def pruned(*jobs: Job) -> list[str]:
    chosen = prunable(jobs, retention_s=90 * DAY, now=after(0))
    return [one.training_job_id for one in jobs if one in chosen]


def test_old_ended_jobs_are_pruned_and_young_ones_stay() -> None:
    old, failed, young = ended("old", 100), ended("failed", 95, "failed"), ended("young", 10)
    assert pruned(old, failed, young) == [old.training_job_id, failed.training_job_id]


def test_the_newest_job_of_a_role_and_algorithm_stays_however_old_it_is() -> None:
    older, last = ended("older", 200), ended("last", 100)
    other = ended("other", 300, algorithm="sft")
    assert pruned(older, last, other) == [older.training_job_id]


def test_the_job_that_the_trigger_counts_from_stays() -> None:
    counted = ended("counted", 200, rewarded=50)
    assert pruned(counted, ended("later", 100, rewarded=10), ended("last", 1, rewarded=20)) != []
    assert counted.training_job_id not in pruned(counted, ended("last", 1, rewarded=20))


def test_job_of_pairs_with_a_higher_counter_does_not_replace_the_base() -> None:
    counted = ended("counted", 200, rewarded=50)
    of_pairs = ended("of pairs", 150, rewarded=80, algorithm="dpo")
    assert counted.training_job_id not in pruned(counted, of_pairs, ended("last", 1, rewarded=20))


def test_a_job_that_has_not_ended_or_whose_end_is_not_announced_stays() -> None:
    waiting = job("waiting", created_at=after(-200 * DAY))
    pending = ended("pending", 150, "failed", announced=False)
    assert pruned(waiting, pending, ended("last", 1)) == []


def test_a_job_that_no_worker_takes_is_named_by_its_pool() -> None:
    jobs = [job("a", state="dispatched", updated_at=after(0)), job("b", state="running", updated_at=after(0))]
    assert untaken(jobs, after(300)) is None
    assert untaken(jobs, after(301)) == "no worker of the pool default has taken its job for 5 minutes"
    assert untaken(jobs[1:], after(301)) is None
