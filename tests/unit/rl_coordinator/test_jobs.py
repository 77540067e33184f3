"""A job moves forward only, and only a status of its present attempt moves it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from prometheus_client import REGISTRY

from ratchet.bus.message import Cause
from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.core.contract.training import (
    Artifacts,
    Dataset,
    Hyperparameters,
    Progress,
    ResourceUsage,
    SnapshotRef,
    StatusMetadata,
    TrainingError,
    TrainingStatus,
)
from ratchet.core.errors import Rejected, WrongState
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.jobs import NEXT, RANK, Counted, Limits
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES
from ratchet.rl_coordinator.jobs.domain.upkeep import pending_announcement
from ratchet.rl_coordinator.metrics import count_jobs
from ratchet.trainer_worker.domain import Worker, may_start
from tests.support.training import NOON, after, changed, config, job, request

LATE = Worker("late", "1")
LIMITS = Limits(lease_s=30.0, claim_s=120.0, max_attempts=5, retries=DEFAULT_RETRIES)


def status(of: Job, word: str, **changes: object) -> TrainingStatus:
    values = {"training_job_id": of.training_job_id, "timestamp": NOON, "status": word, "attempt": of.attempt}
    return TrainingStatus(**{**values, **changes})


def used(hours: float, usd: float, memory: float) -> ResourceUsage:
    seconds = hours * 3600
    return ResourceUsage(
        gpu_hours=hours, cost_usd=usd, peak_memory_gb=memory, total_training_time_seconds=seconds, tokens=int(seconds)
    )


def running(**changes: object) -> Job:
    return job(state="running", heartbeat_at=NOON, **changes)


def test_a_job_goes_from_the_queue_through_a_worker_to_its_policy() -> None:
    queued = jobs.accept(request(), pool="default", counted=Counted(rewarded=7, preferences=3), now=NOON)
    dispatched = jobs.dispatch(queued, after(1))
    at_work = jobs.fold(
        dispatched,
        status(queued, "running", progress=Progress(current_step=3), metadata=StatusMetadata(worker="w1")),
        after(2),
        LIMITS,
    )
    done = jobs.fold(at_work, status(queued, "completed", artifacts=Artifacts(digest="a" * 64)), after(9), LIMITS)
    assert [queued.state, dispatched.state, at_work.state, done.state] == [
        "queued",
        "dispatched",
        "running",
        "completed",
    ]
    assert (at_work.worker, at_work.progress, at_work.started_at) == ("w1", Progress(current_step=3), after(2))
    assert (queued.rewarded, queued.preferences) == (7, 3)
    assert (done.artifacts, done.finished_at, done.worker) == (Artifacts(digest="a" * 64), after(9), "w1")


@pytest.mark.parametrize("word", ["running", "completed", "failed", "cancelled"])
@pytest.mark.parametrize("attempt", [1, 3])
def test_another_attempt_is_fenced_off(word: str, attempt: int) -> None:
    current = running(attempt=2)
    assert jobs.fold(current, status(current, word, attempt=attempt), after(5), LIMITS) == current


@pytest.mark.parametrize("word", ["running", "completed", "failed", "cancelled"])
def test_of_two_processes_with_one_attempt_the_first_to_report_has_it(word: str) -> None:
    dispatched = job(state="dispatched")
    one, two = (StatusMetadata(worker="gpu-box", instance=instance) for instance in ("one", "two"))
    begun = jobs.fold(dispatched, status(dispatched, "running", metadata=one), after(1), LIMITS)
    assert (begun.worker, begun.instance) == ("gpu-box", "one")
    assert jobs.fold(begun, status(begun, word, metadata=two), after(2), LIMITS) == begun
    assert jobs.fold(begun, status(begun, "running", metadata=one), after(3), LIMITS).heartbeat_at == after(3)
    handed_back = jobs.fold(begun, status(begun, "cancelled", metadata=one), after(4), LIMITS)
    assert (handed_back.attempt, handed_back.instance) == (2, None)


def test_findings_stay_with_the_job() -> None:
    dispatched = job(state="dispatched")
    begun = jobs.fold(dispatched, status(dispatched, "running", findings=["A text is lost."]), after(1), LIMITS)
    done = jobs.fold(begun, status(begun, "completed"), after(2), LIMITS)
    assert begun.findings == done.findings == ["A text is lost."]


def test_only_a_person_s_resume_follows_an_end_and_none_follows_success() -> None:
    assert NEXT[JobState.COMPLETED] == frozenset()
    assert {state for state, following in NEXT.items() if following <= {JobState.QUEUED}} == ENDED


@pytest.mark.parametrize("end", sorted(ENDED))
@pytest.mark.parametrize("word", ["running", "completed", "failed", "cancelled", "queued"])
def test_an_ended_job_stays_as_it_is(end: str, word: str) -> None:
    ended = job(state=end)
    assert jobs.fold(ended, status(ended, word), after(5), LIMITS) == ended


def test_a_job_names_the_event_that_brought_it_to_its_attempt_and_state() -> None:
    asked = Cause(event_id="the-request", correlation_id="the-root")
    dispatched = job(state="dispatched", cause=asked)
    begun = status(dispatched, "running")
    running_now = jobs.fold(dispatched, begun, NOON, LIMITS)
    assert running_now.cause == Cause(event_id=begun.event_id, correlation_id="the-root")
    again = jobs.fold(running_now, status(dispatched, "running", timestamp=after(1)), after(1), LIMITS)
    assert again.cause == running_now.cause
    lost = status(dispatched, "failed", error=TrainingError(code="UNKNOWN", message="lost"))
    retried = jobs.fold(again, lost, after(2), LIMITS)
    assert (retried.attempt, retried.cause) == (2, Cause(event_id=lost.event_id, correlation_id="the-root"))


def test_a_status_does_not_move_a_queued_job_which_has_no_worker() -> None:
    waiting = job(attempt=2)
    assert jobs.fold(waiting, status(waiting, "running"), after(5), LIMITS) == waiting


def test_an_older_step_does_not_undo_a_newer_one() -> None:
    ahead = running(progress=Progress(current_step=20))
    late = jobs.fold(ahead, status(ahead, "running", progress=Progress(current_step=10)), after(5), LIMITS)
    assert late.progress == Progress(current_step=20)
    assert late.heartbeat_at == after(5)


def test_the_newest_checkpoint_is_remembered_beside_later_artifacts() -> None:
    saved = running(artifacts=Artifacts(checkpoint="s3://b/checkpoints/1.json"))
    logged = jobs.fold(saved, status(saved, "running", artifacts=Artifacts(tensorboard_logs="s3://b/l")), NOON, LIMITS)
    assert logged.artifacts == Artifacts(tensorboard_logs="s3://b/l", checkpoint="s3://b/checkpoints/1.json")


def test_cancelling_a_queued_job_ends_it_at_once() -> None:
    assert jobs.cancel(job(), after(1), "ops").state == JobState.CANCELLED


def test_cancelling_a_running_job_asks_its_worker_and_waits_for_its_status() -> None:
    asked = jobs.cancel(running(), after(1), "ops")
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert jobs.cancel(asked, after(2), "ops") == asked
    assert jobs.fold(asked, status(asked, "cancelled"), after(3), LIMITS).state == JobState.CANCELLED


def test_a_second_cancel_asks_for_an_end_at_once_and_keeps_who_asked_first() -> None:
    asked = jobs.cancel(running(), after(1), "ops")
    at_once = jobs.cancel(asked, after(2), "ada", at_once=True)
    assert (at_once.state, at_once.cancel_now, at_once.cancelled_by) == ("running", True, "ops")
    assert jobs.cancel(at_once, after(3), "ops") == at_once
    assert jobs.cancel(at_once, after(3), "ops", at_once=True) == at_once
    directly = jobs.cancel(running(), after(1), "ops", at_once=True)
    assert (directly.cancel_requested, directly.cancel_now) == (True, True)


def test_a_status_of_the_worker_acknowledges_a_cancel() -> None:
    asked = jobs.cancel(running(), after(1), "ops")
    assert jobs.fold(asked, status(asked, "running"), after(2), LIMITS).stopping is None
    read = jobs.fold(asked, status(asked, "running", stopping="after_step"), after(2), LIMITS)
    assert read.stopping == "after_step"
    assert jobs.fold(read, status(read, "cancelled"), after(3), LIMITS).stopping == "after_step"


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_job_that_has_ended_goes_on_from_its_checkpoint_as_next_attempt(end: str) -> None:
    saved = Artifacts(checkpoint="s3://b/checkpoints/1.json")
    stopped = running(artifacts=saved, cancel_requested=True, cancel_now=True, cancelled_by="ops", stopping="now")
    stopped = msgspec.structs.replace(stopped, state=JobState(end), finished_at=after(1))
    resumed = jobs.resume(stopped, after(2), "ada")
    assert (resumed.state, resumed.attempt, resumed.resumed_by) == ("queued", stopped.attempt + 1, "ada")
    assert (resumed.cancel_requested, resumed.cancel_now, resumed.cancelled_by, resumed.stopping) == (
        False, False, None, None,
    )  # fmt: skip
    assert (resumed.finished_at, resumed.artifacts, resumed.snapshot) == (None, saved, stopped.snapshot)
    announced = pending_announcement(jobs.dispatch(resumed, after(3)))
    assert isinstance(announced, TrainingDispatch)
    assert announced.resume_from == saved.checkpoint


@pytest.mark.parametrize(("attempt", "unclaimed"), [(5, 0), (1, 0), (9, 4)])
def test_a_resumed_job_may_try_as_often_as_a_new_one(attempt: int, unclaimed: int) -> None:
    saved = Artifacts(checkpoint="s3://b/checkpoints/1.json")
    ended = job(state="failed", attempt=attempt, unclaimed=unclaimed, artifacts=saved)
    current = jobs.resume(ended, NOON, "ada")
    for _ in range(LIMITS.max_attempts - 1):
        current = changed(current, state="running", heartbeat_at=NOON)
        current = jobs.expire(current, listening_since=NOON, now=after(31), limits=LIMITS)
        assert current.state == JobState.QUEUED
    last = changed(current, state="running", heartbeat_at=NOON)
    assert jobs.expire(last, listening_since=NOON, now=after(31), limits=LIMITS).state == JobState.FAILED


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"state": "completed", "artifacts": Artifacts(checkpoint="s3://b/checkpoints/1.json")}, "is completed"),
        ({"state": "running", "artifacts": Artifacts(checkpoint="s3://b/checkpoints/1.json")}, "is running"),
        ({"state": "cancelled"}, "no checkpoint"),
    ],
)
def test_what_has_nothing_to_go_on_from_is_not_resumed(members: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongState, match=why):
        jobs.resume(job(**members), after(1), "ada")


def test_an_ended_job_cannot_be_cancelled() -> None:
    with pytest.raises(Rejected, match="already completed"):
        jobs.cancel(job(state="completed"), NOON, "ops")


def test_a_worker_that_stops_without_being_asked_leaves_the_job_to_another() -> None:
    stopped = jobs.fold(running(), status(running(), "cancelled"), after(5), LIMITS)
    assert (stopped.state, stopped.attempt) == ("queued", 2)


def test_workers_that_hand_a_job_back_in_order_do_not_use_its_attempts_up() -> None:
    """Machines that go away at an hour's notice, six times; then one is lost."""
    current = running()
    for second in range(6):
        waiting = jobs.fold(current, status(current, "cancelled"), after(second), LIMITS)
        current = changed(waiting, state="running")
    assert current.attempt == 7
    assert jobs.expire(current, listening_since=NOON, now=after(40), limits=LIMITS).state == JobState.QUEUED


def test_sign_of_life_from_clock_that_was_day_ahead_keeps_no_lease_for_day() -> None:
    silent = changed(running(), heartbeat_at=after(86_400))
    assert jobs.expire(silent, listening_since=after(0), now=after(30), limits=LIMITS) == silent
    assert jobs.expire(silent, listening_since=after(0), now=after(31), limits=LIMITS).attempt == 2


def test_silent_worker_loses_its_lease_and_next_attempt_keeps_checkpoint() -> None:
    silent = running(artifacts=Artifacts(checkpoint="s3://b/c.json"), worker="w1")
    assert jobs.expire(silent, listening_since=NOON, now=after(30), limits=LIMITS) == silent
    again = jobs.expire(silent, listening_since=NOON, now=after(31), limits=LIMITS)
    assert (again.state, again.attempt, again.worker) == ("queued", 2, None)
    assert again.artifacts == Artifacts(checkpoint="s3://b/c.json")
    assert again.error is not None
    assert again.error.code == "INFRA"


def test_a_worker_is_not_blamed_for_the_coordinators_own_absence() -> None:
    silent = running()
    assert jobs.expire(silent, listening_since=after(600), now=after(620), limits=LIMITS) == silent
    assert jobs.expire(silent, listening_since=after(600), now=after(631), limits=LIMITS).attempt == 2


def test_a_job_whose_workers_keep_vanishing_fails_in_the_end() -> None:
    last = jobs.expire(running(attempt=5), listening_since=NOON, now=after(31), limits=LIMITS)
    assert (last.state, last.attempt) == ("failed", 5)


def untaken(current: Job, seconds: float) -> Job:
    return jobs.expire(current, listening_since=NOON, now=after(seconds), limits=LIMITS)


def test_dispatch_that_no_worker_takes_gives_its_slot_back() -> None:
    waiting = job(state="dispatched")
    assert untaken(waiting, 120) == waiting
    again = untaken(waiting, 121)
    assert (again.state, again.attempt, again.unclaimed, again.retry_at) == ("queued", 2, 1, None)
    assert again.error == TrainingError(code="INFRA", message="no worker of pool default took attempt 1 within 120 s")


def test_job_that_again_no_worker_takes_lets_others_have_slot_for_while() -> None:
    second = untaken(job(state="dispatched", attempt=2, unclaimed=1), 121)
    assert second.retry_at == after(121 + 120)
    assert untaken(job(state="dispatched", attempt=9, unclaimed=8), 121).retry_at == after(121 + 240)


def test_a_worker_that_takes_an_old_dispatch_is_fenced_off() -> None:
    waiting = job(state="dispatched")
    again = jobs.dispatch(untaken(waiting, 121), after(122))
    assert jobs.fold(again, status(waiting, "running"), after(123), LIMITS) == again
    assert not may_start(again, attempt=1, worker=LATE)
    assert may_start(again, attempt=2, worker=LATE)


def test_the_coordinators_own_absence_is_no_reason_to_take_a_dispatch_back() -> None:
    waiting = job(state="dispatched")
    assert jobs.expire(waiting, listening_since=after(900), now=after(1000), limits=LIMITS) == waiting


def test_dispatches_that_no_worker_took_count_against_no_limit() -> None:
    unlucky = running(attempt=14, unclaimed=10)
    assert untaken(unlucky, 31).state == JobState.QUEUED
    error = TrainingError(code="TIMEOUT", message="too long")
    assert jobs.fold(unlucky, status(unlucky, "failed", error=error), NOON, LIMITS).state == JobState.FAILED
    first = running(attempt=11, unclaimed=10)
    assert jobs.fold(first, status(first, "failed", error=error), NOON, LIMITS).state == JobState.QUEUED


def test_a_job_sums_up_what_its_attempts_used() -> None:
    first = running()
    lost = jobs.fold(first, status(first, "running", resource_usage=used(2.0, 0.5, 3.0)), after(1), LIMITS)
    again = jobs.dispatch(untaken(lost, 40), after(41))
    assert jobs.usage_of(again) == used(2.0, 0.5, 3.0)
    second = jobs.fold(again, status(again, "running", resource_usage=used(1.0, 0.25, 4.0)), after(42), LIMITS)
    assert jobs.usage_of(second) == used(3.0, 0.75, 4.0)
    ended = jobs.fold(second, status(again, "completed", resource_usage=used(2.0, 0.5, 4.0)), after(43), LIMITS)
    assert jobs.usage_of(ended) == used(4.0, 1.0, 4.0)


def test_a_price_that_one_of_two_workers_has_is_not_lost() -> None:
    unpriced = running(resource_usage=ResourceUsage(gpu_hours=1.0))
    again = changed(untaken(unpriced, 40), state="running", resource_usage=ResourceUsage(cost_usd=2.0, gpu_hours=1.0))
    total = jobs.usage_of(again)
    assert total is not None
    assert (total.cost_usd, total.gpu_hours) == (2.0, 2.0)


def test_a_job_keeps_when_it_first_got_a_slot() -> None:
    first = jobs.dispatch(job(), after(5))
    again = jobs.dispatch(untaken(first, 200), after(201))
    assert (first.dispatched_at, again.dispatched_at) == (after(5), after(5))


def test_a_cancelled_dispatch_that_no_worker_took_ends_after_the_lease() -> None:
    asked = jobs.cancel(job(state="dispatched"), after(1), "ops")
    assert jobs.expire(asked, listening_since=NOON, now=after(20), limits=LIMITS) == asked
    assert jobs.expire(asked, listening_since=NOON, now=after(32), limits=LIMITS).state == JobState.CANCELLED


def test_out_of_memory_is_tried_again_with_halves_down_to_the_last() -> None:
    hyper = Hyperparameters(batch_size=2, pass_tokens=256)
    current = running(request=request(training_config=config(hyperparameters=hyper)))
    error = TrainingError(code="OOM", message="out of memory")
    again = jobs.fold(current, status(current, "failed", error=error), after(5), LIMITS)
    chosen = again.request.training_config.hyperparameters
    assert (again.state, again.attempt, chosen.batch_size, chosen.gradient_accumulation) == ("queued", 2, 1, 2)
    second = changed(again, state="running")
    assert jobs.fold(second, status(second, "failed", error=error), after(9), LIMITS).state == JobState.FAILED


def test_a_diverged_job_starts_over_with_half_the_learning_rate() -> None:
    current = running(artifacts=Artifacts(checkpoint="s3://b/c.json"))
    error = TrainingError(code="CONVERGENCE", message="loss is not finite")
    again = jobs.fold(current, status(current, "failed", error=error), after(5), LIMITS)
    assert again.request.training_config.hyperparameters.learning_rate == pytest.approx(5e-5)
    assert again.artifacts is None


def test_a_broken_machine_gets_a_pause_before_the_next_attempt() -> None:
    current = running()
    error = TrainingError(code="INFRA", message="disk is full")
    again = jobs.fold(current, status(current, "failed", error=error), after(5), LIMITS)
    assert (again.state, again.retry_at, again.error) == ("queued", after(605), error)


def test_bad_data_is_chosen_and_exported_anew_once() -> None:
    error, ref = TrainingError(code="DATA", message="no rows"), SnapshotRef(uri="s3://b/s.json", digest="a" * 64)
    exported = config(dataset=Dataset(source="clickhouse", sample_size=100, snapshot=ref))
    first = running(request=request(training_config=exported), snapshot=ref, artifacts=Artifacts(checkpoint="s3://b/c"))
    again = jobs.fold(first, status(first, "failed", error=error), after(5), LIMITS)
    assert (again.state, again.snapshot, again.artifacts) == ("queued", None, None)
    assert again.request.training_config.dataset.snapshot is None
    second = changed(again, state="running", snapshot=ref)
    failed = jobs.fold(second, status(second, "failed", error=error), after(9), LIMITS)
    assert (failed.state, failed.error) == ("failed", error)


@pytest.mark.parametrize("code", ["DATA", "UNKNOWN"])
def test_what_would_fail_the_same_way_again_is_not_tried_again(code: str) -> None:
    error, first = TrainingError(code=code, message="all 12 groups have equal rewards", final=True), running()
    failed = jobs.fold(first, status(first, "failed", error=error), after(5), LIMITS)
    assert (failed.state, failed.error) == ("failed", error)


def test_bad_data_that_the_request_names_is_not_tried_again() -> None:
    error, ref = TrainingError(code="DATA", message="no rows"), SnapshotRef(uri="s3://b/s.json", digest="a" * 64)
    named = config(dataset=Dataset(source="s3", sample_size=100, snapshot=ref))
    own = running(request=request(training_config=named), snapshot=ref)
    failed = jobs.fold(own, status(own, "failed", error=error), after(5), LIMITS)
    assert (failed.state, failed.error, failed.snapshot) == ("failed", error, ref)


def test_a_failure_after_a_cancel_is_a_cancelled_job() -> None:
    asked = running(cancel_requested=True)
    failed = jobs.fold(asked, status(asked, "failed", error=TrainingError(code="INFRA", message="x")), NOON, LIMITS)
    assert failed.state == JobState.CANCELLED


def test_a_job_past_its_deadline_leaves_the_queue() -> None:
    late = job(request=request(deadline=after(10)))
    assert jobs.fail_overdue(late, after(10)) == late
    ended = jobs.fail_overdue(late, after(11))
    assert (ended.state, ended.error and ended.error.code) == ("failed", "TIMEOUT")


words = st.sampled_from(["queued", "running", "completed", "failed", "cancelled", "from the future"])
codes = st.sampled_from(["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN", "SOMETHING"])
events = st.one_of(
    st.tuples(st.just("status"), words, st.integers(-2, 1), codes),
    st.tuples(st.just("expire"), st.integers(0, 300)),
    st.tuples(st.just("dispatch")),
    st.tuples(st.just("cancel")),
)


def happen(current: Job, event: tuple, second: int) -> Job:
    """The job after an event, legal or not: an illegal one is refused and changes nothing."""
    now = after(second)
    try:
        match event:
            case ("status", word, offset, code):
                error = TrainingError(code=code, message="m") if word == "failed" else None
                heard = status(current, word, attempt=current.attempt + offset, error=error)
                return jobs.fold(current, heard, now, LIMITS)
            case ("expire", silence):
                return jobs.expire(current, listening_since=after(second - silence), now=now, limits=LIMITS)
            case ("dispatch",):
                return jobs.dispatch(current, now)
            case _:
                return jobs.cancel(current, now, "ops")
    except Rejected:
        return current


@given(st.lists(events, max_size=60))
def test_no_series_of_events_moves_a_job_back_or_out_of_its_end(story: list[tuple]) -> None:
    current = jobs.accept(request(), pool="default", counted=Counted(), now=NOON)
    for second, event in enumerate(story):
        following = happen(current, event, second)
        before = (current.attempt, RANK[JobState(current.state)])
        assert (following.attempt, RANK[JobState(following.state)]) >= before
        assert following.attempt <= max(LIMITS.max_attempts, current.attempt + 1)
        if current.state in ENDED:
            assert following == current
        if event[0] == "status" and event[2] != 0:
            assert following == current
        current = following


def test_pool_of_no_setting_has_no_open_jobs_after_its_last_one() -> None:
    count_jobs([job(state="queued", pool="gone")], ["idle"])
    count_jobs([], ["idle"])
    assert REGISTRY.get_sample_value("ratchet_open_jobs", {"pool": "gone"}) is None


def test_open_jobs_are_counted_by_pool_also_of_pools_without_any() -> None:
    listed = [job(state=state, pool="tall") for state in ("queued", "dispatched", "running", "completed", "failed")]
    count_jobs(listed, ["tall", "idle"])
    counted = {pool: REGISTRY.get_sample_value("ratchet_open_jobs", {"pool": pool}) for pool in ("tall", "idle")}
    assert counted == {"tall": 3, "idle": 0}
