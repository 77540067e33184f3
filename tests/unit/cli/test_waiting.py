"""Waiting for a job bears a coordinator that restarts, and ends when it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from ratchet.cli.candidates import Candidate, follow
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.training import has_ended, standing
from ratchet.cli.waiting import POLL_S, SILENCE_S, Waiting, until
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.contract.training import CurrentMetrics, EvaluationResults, Progress
from ratchet.core.errors import Unavailable
from ratchet.core.rules.job_facts import figures_of
from ratchet.core.service.discovery import DEFAULT_DIRECTORY
from tests.support.messages import AT
from tests.support.training import request

RUNNING = JobOut(
    training_job_id="j1",
    role="support",
    algorithm="sft",
    state="running",
    priority="normal",
    created_at=AT,
    updated_at=AT,
    request=request(),
)
DONE = msgspec.structs.replace(RUNNING, state="completed")
CANDIDATE = PolicyVersion(
    role="support",
    version=2,
    name="support@2-abcd",
    digest="a" * 64,
    uri="",
    kind="bundle",
    base_model="",
    created_at=AT,
    stage=PolicyStage.REGISTERED,
)


class Clock:
    """Time passes only while the command sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def waiting(self, timeout_s: float | None = None) -> Waiting:
        return Waiting(timeout_s, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def answering(answers: Iterator[JobOut | None]) -> Callable[[float], JobOut]:
    """Answers in order; None: the coordinator is away."""

    def ask(_: float) -> JobOut:
        answer = next(answers)
        if answer is None:
            raise Unavailable("away")
        return answer

    return ask


def ignore(_: JobOut) -> None:
    """Show nothing."""


def test_a_coordinator_that_is_away_for_a_while_is_borne_every_time() -> None:
    away = [None] * int(SILENCE_S / POLL_S - 1)
    answers = iter([*away, RUNNING, *away, DONE])
    assert until(has_ended, RUNNING, answering(answers), ignore, Clock().waiting()) == DONE


def test_a_coordinator_that_stays_away_ends_the_wait() -> None:
    with pytest.raises(Unavailable):
        until(has_ended, RUNNING, answering(iter([None] * 1000)), ignore, Clock().waiting())


def test_the_job_as_it_was_last_seen_is_the_answer_when_the_time_is_up() -> None:
    clock = Clock()
    assert until(has_ended, RUNNING, answering(iter([RUNNING] * 100)), ignore, clock.waiting(3.0)) == RUNNING
    assert clock.now == 3.0


def test_a_question_takes_no_longer_than_the_wait() -> None:
    asked: list[float] = []
    clock = Clock()

    def hang(answer_s: float) -> JobOut:
        asked.append(answer_s)
        clock.now += answer_s
        raise Unavailable("it does not answer")

    assert until(has_ended, RUNNING, hang, ignore, clock.waiting(50.0)) == RUNNING
    assert (asked, clock.now) == ([30.0, 19.0], 50.0)


def test_a_job_that_has_ended_is_not_asked_for_again() -> None:
    assert until(has_ended, DONE, answering(iter([])), ignore, Clock().waiting()) == DONE


def test_figures_of_a_job_are_those_of_its_last_step_and_of_its_hold_out() -> None:
    scores = EvaluationResults(benchmark_scores={"holdout_win_rate": 0.7})
    job = msgspec.structs.replace(RUNNING, metrics=CurrentMetrics(loss=0.5), evaluation_results=scores)
    assert figures_of(job) == {"loss": 0.5, "holdout_win_rate": 0.7}
    assert figures_of(RUNNING) == {}


def test_an_interrupt_of_the_wait_names_the_candidate_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(Endpoints(DEFAULT_DIRECTORY, None, {}), Candidate(CANDIDATE, None), Waiting(sleep=interrupt), quiet=True)
    assert capsys.readouterr().err == "support@2-abcd goes on: `ratchet rollout status support` follows it\n"


def test_a_wait_shows_the_train_step_and_the_loss() -> None:
    assert standing(RUNNING) == "running"
    measured = msgspec.structs.replace(RUNNING, progress=Progress(current_step=7), metrics=CurrentMetrics(loss=0.51239))
    assert standing(measured) == "running, step 7, loss 0.5124"
