"""One job as people read it: facts, attempts and figures, and where its curves are."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from ratchet.cli.jobs import AlgorithmCosts, all_jobs, costs_of, show_job
from ratchet.cli.training import awaiting
from ratchet.core.contract.http.jobs import JobOut, JobsOut
from ratchet.core.contract.training import Artifacts, CurrentMetrics, RequestMetadata, ResourceUsage, TrainingError
from ratchet.core.rules.job_facts import sentence_of
from ratchet.core.stores.training_history import AttemptRecord
from tests.support.messages import AT
from tests.support.training import request

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e"
RUNNING = JobOut(
    training_job_id="j1",
    role="support",
    algorithm="rloo",
    state="running",
    priority="normal",
    created_at=AT,
    updated_at=AT,
    request=request(),
    error=TrainingError(code="OOM", message=HOSTILE),
    metrics=CurrentMetrics(loss=0.5, ess=0.05, tokens_per_second=1200.0),
    resource_usage=ResourceUsage(cost_usd=1.5, gpu_hours=0.75, peak_memory_gb=3.0, total_training_time_seconds=2700.0),
)
ATTEMPTS = [
    AttemptRecord(
        number=number,
        state=state,
        first_at=AT,
        last_at=AT,
        worker=HOSTILE,
        error=error,
        curves="",
        last_step=10 * number,
        gpu_hours=0.25 * number,
    )
    for number, state, error in ((1, "failed", HOSTILE), (2, "running", ""))
]
PAGE = "http://127.0.0.1:8084/#/training/j1"


def test_show_job_has_attempts_what_they_used_and_the_page_of_curves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_job(RUNNING, Path(".ratchet"), ATTEMPTS, PAGE)
    out = capsys.readouterr().out
    assert re.search(r"^1 +failed +- +0.25", out, re.MULTILINE)
    assert re.search(r"^2 +running +- +0.5", out, re.MULTILINE)
    assert f"curves: {PAGE}\n" in out
    for name, value in (
        ("gpu_hours", "0.75"),
        ("cost_usd", "1.5"),
        ("peak_memory_gb", "3"),
        ("tokens_per_second", "1200"),
    ):
        assert re.search(rf"^{name} +{value} +\S", out, re.MULTILINE), name
    assert re.search(r"^ess +0.05 +BAD: Effective sample size", out, re.MULTILINE)
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_every_figure_has_its_sentence_and_only_bad_ones_say_so() -> None:
    assert (sentence_of("ess", 0.9) or "").startswith("Effective sample size")
    assert (sentence_of("ess", 0.01) or "").startswith("BAD: Effective sample size")
    assert sentence_of("a plug-in's", 1.0) is None


def test_a_completed_job_leads_to_what_it_made(capsys: pytest.CaptureFixture[str]) -> None:
    made = Artifacts(final_checkpoint="s3://b/policies/aa.json", kind="reward_model")
    show_job(msgspec.structs.replace(RUNNING, state="completed", artifacts=made), Path(".ratchet"))
    shown = capsys.readouterr().out
    assert "`ratchet policies export s3://b/policies/aa.json` writes the reward model" in shown
    assert "policies list" not in shown
    adapter = Artifacts(final_checkpoint="s3://b/policies/aa.json", kind="adapter")
    show_job(msgspec.structs.replace(RUNNING, state="completed", artifacts=adapter), Path(".ratchet"))
    assert "`ratchet policies list support` shows the policy" in capsys.readouterr().out


def test_a_plan_in_the_notes_has_a_line_for_each_reason(capsys: pytest.CaptureFixture[str]) -> None:
    noted = msgspec.structs.replace(
        request(), metadata=RequestMetadata(notes="planned sft: all succeeded; not dpo: 0 pairs")
    )
    job = msgspec.structs.replace(RUNNING, request=noted, findings=["one", "two"])
    show_job(job, Path(".ratchet"))
    out = capsys.readouterr().out
    assert re.search(r"^notes +planned sft: all succeeded *\n +not dpo: 0 pairs *$", out, re.MULTILINE)
    assert re.search(r"^findings +one *\n +two *$", out, re.MULTILINE)


def test_queued_job_shows_for_which_hours_it_waits() -> None:
    nightly = msgspec.structs.replace(RUNNING, state="queued", request=request(start_hours="22-6"))
    assert awaiting(nightly) == "queued, to start within the hours 22-6 (UTC)"
    assert awaiting(msgspec.structs.replace(nightly, priority="high")) == "queued"
    assert awaiting(msgspec.structs.replace(nightly, state="running")) == "running"


def test_costs_are_those_of_all_jobs_of_an_algorithm() -> None:
    used = ResourceUsage(cost_usd=1.5, gpu_hours=0.75, total_training_time_seconds=3600.0, tokens=1000)
    done = msgspec.structs.replace(RUNNING, state="completed", trajectories=64, resource_usage=used)
    pairs = msgspec.structs.replace(done, algorithm="dpo", resource_usage=msgspec.structs.replace(used, cost_usd=None))
    searched = CurrentMetrics(spent_tokens=500, spent_usd=0.25)
    search = msgspec.structs.replace(done, algorithm="gepa", metrics=searched, resource_usage=None)
    dpo, gepa, rloo = costs_of([done, RUNNING, pairs, search])
    assert dpo == AlgorithmCosts(
        algorithm="dpo", jobs=1, completed=1, rows=64, hours=1.0, gpu_hours=0.75, tokens=1000, usd=None
    )
    assert (gepa.tokens, gepa.usd) == (500, 0.25)
    assert (rloo.jobs, rloo.completed, rloo.rows, rloo.hours, rloo.usd) == (2, 1, 64, 1.75, 3.0)


def test_every_page_of_jobs_is_read_and_one_that_moved_counts_once() -> None:
    jobs = [msgspec.structs.replace(RUNNING, training_job_id=str(UUID(int=n))) for n in range(5)]
    pages = {0: jobs[:2], 2: jobs[1:3], 4: jobs[3:5], 6: []}
    assert all_jobs(lambda offset: JobsOut(jobs=pages[offset], total=6)) == jobs
