"""One job as people read it: facts, attempts, pictures and figures; and the page that `--html` writes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from ratchet.cli.job_page import job_page
from ratchet.cli.jobs import sentence_of, show_job
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.training import Artifacts, CurrentMetrics, RequestMetadata, ResourceUsage, TrainingError
from ratchet.core.rules.curves import TrainStep
from ratchet.core.stores.training_history import AttemptRecord, TrainingHistory
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
HISTORY = TrainingHistory(
    attempts=[
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
    ],
    steps=[TrainStep(step, {"loss": 1 / step, "ess": 0.5, HOSTILE: float(step)}) for step in range(1, 21)],
)


class Parts(HTMLParser):
    """The tags of a page and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_running_job_shows_its_curves_its_attempts_and_what_all_of_them_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_job(RUNNING, Path(".ratchet"), HISTORY)
    out = capsys.readouterr().out
    assert re.search(r"^1 +failed +- +0.25", out, re.MULTILINE)
    assert re.search(r"^2 +running +- +0.5", out, re.MULTILINE)
    assert re.search(r"step 1 +20", out)
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


def test_a_page_holds_every_curve_and_loads_and_runs_nothing() -> None:
    page = job_page(RUNNING, HISTORY)
    parts = Parts(page)
    tags = [tag for tag, _ in parts.tags]
    assert tags.count("polyline") == tags.count("figure") == 3
    assert not {"script", "img", "link", "iframe", "a"} & set(tags)
    assert not any(name.startswith("on") or name in ("src", "href") for _, given in parts.tags for name in given)
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in parts.tags
    assert "onerror=alert(1)" in parts.text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "Effective sample size" in parts.text


def test_a_page_of_a_job_that_has_not_begun_has_a_sentence_instead_of_curves() -> None:
    waiting = msgspec.structs.replace(RUNNING, state="queued", metrics=None, resource_usage=None, error=None)
    assert "No train step has been measured" in Parts(job_page(waiting, TrainingHistory())).text


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
    assert "not dpo: 0 pairs" in Parts(job_page(job, HISTORY)).text
