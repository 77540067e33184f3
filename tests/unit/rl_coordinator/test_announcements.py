"""The bus hears of every state that the coordinator decides, exactly as often as that takes effect."""

from __future__ import annotations

import pytest

from ratchet.contract import TrainingDispatch, TrainingStatus
from ratchet.contract.training import Artifacts, SnapshotRef, TrainingError
from ratchet.rl_coordinator.jobs.domain import announcements as outbox
from tests.support.training import after, job


@pytest.mark.parametrize("state", ["queued", "failed", "cancelled"])
def test_a_state_the_coordinator_decided_is_told_as_a_status(state: str) -> None:
    untold = job(state=state, announced=False, error=TrainingError(code="DATA", message="no rows"))
    message = outbox.due(untold)
    assert isinstance(message, TrainingStatus)
    assert (message.status, message.attempt, message.role, message.error) == (state, 1, "support", untold.error)
    assert outbox.due(outbox.announced(untold)) is None


def test_a_dispatch_carries_what_the_worker_needs() -> None:
    untold = job(
        state="dispatched",
        attempt=2,
        announced=False,
        parent="support@1-dddddddd",
        snapshot=SnapshotRef(uri="s3://b/s.json", digest="e" * 64),
        artifacts=Artifacts(checkpoint="s3://b/c.json"),
    )
    message = outbox.due(untold)
    assert isinstance(message, TrainingDispatch)
    assert (message.attempt, message.parent, message.resume_from) == (2, "support@1-dddddddd", "s3://b/c.json")
    assert message.subject == "agent.rl.training.dispatch.v1.default"


@pytest.mark.parametrize("state", ["running", "completed"])
def test_what_a_worker_says_is_not_repeated(state: str) -> None:
    assert outbox.due(job(state=state, announced=False)) is None


def test_telling_twice_is_the_same_event() -> None:
    untold = job(state="dispatched", announced=False)
    first, second = outbox.due(untold), outbox.due(untold)
    assert first is not None
    assert second is not None
    assert first.event_id == second.event_id


def test_a_dispatch_that_may_be_forgotten_by_the_broker_becomes_the_next_attempt() -> None:
    untold = job(state="dispatched", announced=False)
    assert outbox.renumbered(untold, after(60)) == untold
    again = outbox.renumbered(untold, after(91))
    assert (again.state, again.attempt) == ("queued", 2)


def test_a_dispatch_that_was_told_may_wait_for_a_worker_as_long_as_it_takes() -> None:
    told = job(state="dispatched")
    assert outbox.renumbered(told, after(9999)) == told
