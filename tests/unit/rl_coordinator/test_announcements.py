"""The bus hears of every state that the coordinator decides, exactly as often as that takes effect."""

from __future__ import annotations

import pytest

from ratchet.core.contract import TrainingDispatch, TrainingStatus
from ratchet.core.contract.training import Artifacts, SnapshotRef, TrainingError
from ratchet.rl_coordinator.jobs.domain.announcements import failure_alert, pending_announcement, requeue_unconfirmed
from ratchet.rl_coordinator.jobs.domain.jobs import mark_announced
from tests.support.training import after, job


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


def test_a_dispatch_whose_id_the_broker_may_have_forgotten_becomes_the_next_attempt() -> None:
    unconfirmed = job(state="dispatched", announced=False)
    assert requeue_unconfirmed(unconfirmed, after(60)) == unconfirmed
    again = requeue_unconfirmed(unconfirmed, after(91))
    assert (again.state, again.attempt) == ("queued", 2)


def test_an_announced_dispatch_may_wait_for_a_worker_as_long_as_it_takes() -> None:
    announced = job(state="dispatched")
    assert requeue_unconfirmed(announced, after(9999)) == announced
