"""Reports of a day, a week and a training: what they list, and that nothing of a user's is markup or secret in them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.http.statistics import GroupOut
from ratchet.core.contract.training import Artifacts, CurrentMetrics, EvaluationResults, ResourceUsage, TrainingError
from ratchet.core.rules.alert_book import AlertBook
from ratchet.core.rules.job_facts import job_out
from ratchet.core.rules.reports import (
    MOST_LISTED,
    EndedJob,
    Facts,
    PolicyChange,
    daily_report,
    job_report,
    weekly_report,
)
from tests.support.training import NOON, config, job, request

SINCE = NOON - timedelta(days=1)
HOSTILE = "</li><b>`x` alice@example.com \x1b[2J\u202e"


def group(role: str = "support", trajectories: int = 1200, mean: float | None = 0.61) -> GroupOut:
    return GroupOut(
        names=[role],
        points=[],
        trajectories=trajectories,
        outcomes=1000,
        successes=900,
        success_share=0.9,
        rewarded=1100,
        mean_reward=mean,
        reward_interval=(0.59, 0.63) if mean is not None else None,
        calls=5000,
        errors=7,
        cancelled=0,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        reasoning_tokens=0,
        cost_usd=12.5,
        unpriced=0,
        latency_ms=None,
        first_token_ms=None,
    )


def change(verdict: str, version: int = 7, **members: Any) -> PolicyChange:
    values: dict[str, Any] = {"role": "support", "version": version, "before": 6, "at": NOON - timedelta(hours=2)}
    values |= {"verdict": verdict, "reason": "why", "actor": "canary_deployer"}
    return PolicyChange(**values | members)


def facts(*changes: PolicyChange, jobs: int = 1) -> Facts:
    ended = EndedJob(job_id="019a3c5e-6a00", role="support", algorithm="grpo", state="failed", error=HOSTILE)
    before = [group(mean=0.55)]
    return Facts(since=SINCE, until=NOON, roles=[group()], before=before, jobs=[ended] * jobs, changes=changes)


def book(*events: tuple[str, bool, int]) -> AlertBook:
    made = AlertBook()
    for key, cleared, hours in events:
        at = NOON - timedelta(hours=hours)
        alert = Alert(
            alert_id=named_id(key, hours), key=key, severity="critical", summary=key, source="s", at=at, cleared=cleared
        )
        made.add(alert)
    return made


def test_daily_report_has_every_field_that_a_day_is_judged_by() -> None:
    changes = (change("registered", 8), change("promote"), change("roll_back", 9))
    report = daily_report(facts(*changes), book(("disk", False, 3), ("engines", True, 1)))
    text = report.markdown()
    assert (
        "support: 1,200 trajectories; mean reward 0.610, between 0.590 and 0.630 (1,100 rewarded; before 0.550)" in text
    )
    assert "support: grpo 019a3c5e failed" in text
    few = daily_report(replace(facts(), roles=[group(trajectories=1)]), book()).markdown()
    assert "support: 1 trajectory; mean reward" in few
    assert text.index("support@7 after support@6 promote") < text.index("## Rollbacks") < text.index("support@9")
    assert "disk (critical, holds)" in text
    assert "engines (over)" in text
    assert report.figures == {
        "trajectories": 1200,
        "jobs": 1,
        "changes": 2,
        "rollbacks": 1,
        "issues": 2,
        "issues_open": 1,
    }


def test_daily_report_lists_an_old_alert_while_it_holds() -> None:
    report = daily_report(facts(), book(("disk", False, 40), ("engines", True, 40)))
    assert report.figures["issues"] == 1
    assert "disk" in report.markdown()


def test_daily_report_of_too_much_data_has_the_rest() -> None:
    many = Facts(since=SINCE, until=NOON, roles=None, before=None, jobs=[], changes=[change("promote")])
    text = daily_report(many, []).markdown()
    assert "Too many to add up" in text
    assert "support@7" in text


def test_weekly_report_states_what_was_earned_with_its_interval() -> None:
    changes = (change("promote", earned=(0.05, 0.01, 0.09)), change("revert", 8), change("refuse", 9), change("start"))
    text = weekly_report(facts(*changes)).markdown()
    assert "support@7: mean reward +0.05, between +0.01 and +0.09" in text
    taken_back, not_tried = text.index("## What was taken back"), text.index("## What was not tried")
    assert taken_back < text.index("support@8") < not_tried < text.index("support@9")
    assert " start" not in text


def test_long_section_counts_what_it_does_not_list() -> None:
    text = daily_report(facts(jobs=MOST_LISTED + 5), []).markdown()
    assert text.count("grpo") == MOST_LISTED
    assert "and 5 more" in text


def test_no_words_of_users_are_markup_or_secrets_in_a_report() -> None:
    failed = job(state="failed", error=TrainingError(code="DATA", message=HOSTILE), finished_at=NOON)
    pages = [daily_report(facts(), []), job_report(job_out(failed, NOON))]
    for text in (page.markdown() for page in pages):
        assert "alice" not in text
        assert text.replace("\n", "").isprintable()
        assert "- `" in text
        assert "`x`" not in text
    assert all("<b>" not in page.html() for page in pages)


def test_no_words_of_a_worker_are_markup_or_secrets_in_a_report() -> None:
    name = f"x\n\n{HOSTILE}"
    made, scores = Artifacts(final_checkpoint=name), EvaluationResults(benchmark_scores={name: 0.5})
    text = job_report(
        job_out(job(state="completed", finished_at=NOON, artifacts=made, evaluation_results=scores), NOON)
    ).markdown()
    assert "alice" not in text
    assert "\n</li>" not in text


def test_report_of_a_training_has_its_figures_and_what_is_bad() -> None:
    ended = job(
        state="completed",
        started_at=NOON,
        finished_at=NOON + timedelta(hours=1),
        metrics=CurrentMetrics(loss=0.5, ess=0.01),
        spent=ResourceUsage(cost_usd=1.0),
        resource_usage=ResourceUsage(cost_usd=2.0),
    )
    report = job_report(job_out(ended, NOON))
    text = report.markdown()
    assert "completed: rloo" in report.title
    assert "ess: 0.01. BAD: Effective sample size" in text
    assert report.figures["cost_usd"] == 3.0
    assert "It made no policy." in text


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [("dpo", "preference pairs: 40"), ("kto", "labelled answers: 40"), ("rloo", "trajectories: 40")],
)
def test_report_of_a_training_names_what_it_trained_on(algorithm: str, line: str) -> None:
    ended = job(
        request=request(training_config=config(algorithm)), state="completed", finished_at=NOON, trajectories=40
    )
    lines = job_report(job_out(ended, NOON)).markdown().splitlines()
    assert f"- `{line}`" in lines
    assert [counted for counted in lines if counted.endswith(": 40`")] == [f"- `{line}`"]


def test_report_of_a_training_has_times_to_the_second_and_each_finding() -> None:
    began = NOON + timedelta(microseconds=123456)
    ended = job(state="completed", started_at=began, finished_at=began, findings=["it lacks a tool", "it adds a turn"])
    lines = job_report(job_out(ended, NOON)).markdown().splitlines()
    assert "- `started: 2026-11-21 12:00:00 UTC`" in lines
    assert [line for line in lines if "findings" in line] == [
        "- `findings: it lacks a tool`",
        "- `findings: it adds a turn`",
    ]
