"""Alerts of trainings that fail: jobs are counted, not attempts, and one that completes ends them."""

from __future__ import annotations

from ratchet.core.contract import Alert
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import TrainingError
from ratchet.rl_coordinator.jobs.domain.failures import failure_alerts, failures_in_a_row, recovery_alerts
from tests.support.training import after, job

ERROR = TrainingError(code="OOM", message="out of memory")


def ended(number: int, state: str = "failed", *, role: str = "support", attempt: int = 3) -> Job:
    return job(
        training_job_id=f"job-{number}",
        role=role,
        state=state,
        attempt=attempt,
        finished_at=after(number),
        error=ERROR if state == "failed" else None,
    )


def keys(alerts: list[Alert]) -> list[tuple[str, str, bool]]:
    return [(alert.key, alert.severity, alert.cleared) for alert in alerts]


FAILED = ("training-failed:support", "warning", False)
FAILING = ("trainings-failing:support", "critical", False)


def test_the_third_job_in_a_row_that_fails_is_an_alert_of_its_own() -> None:
    jobs = [ended(1), ended(2), ended(3)]
    assert [keys(failure_alerts(one, jobs[:place])) for place, one in enumerate(jobs)] == [
        [FAILED],
        [FAILED],
        [FAILED, FAILING],
    ]
    assert (
        failure_alerts(jobs[2], jobs)[1].summary
        == "the last 3 trainings of role support failed, the newest one: out of memory"
    )


def test_attempts_of_one_job_are_one_failure() -> None:
    assert keys(failure_alerts(ended(1, attempt=9), [ended(1, attempt=8)])) == [FAILED]


def test_other_roles_and_a_completed_job_between_do_not_count() -> None:
    jobs = [ended(1), ended(2, role="sales"), ended(3, "completed"), ended(4), ended(5, "cancelled")]
    assert keys(failure_alerts(ended(6), jobs)) == [FAILED]
    assert failures_in_a_row([*jobs, ended(6)]) == {"support": 2, "sales": 1}


def test_a_completed_job_ends_what_failed_before_it_and_nothing_else() -> None:
    failed = [ended(1), ended(2), ended(3)]
    done = ended(4, "completed")
    over = [(key, "info", True) for key, _, _ in (FAILED, FAILING)]
    assert keys(recovery_alerts(done, [*failed, done])) == over
    assert keys(recovery_alerts(done, failed[:1])) == over[:1]
    assert recovery_alerts(ended(9, "completed"), [*failed, done]) == []
    assert recovery_alerts(done, []) == []
