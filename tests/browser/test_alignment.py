"""Learning from preferences in the browser: followed, started, and fed with the pairs of a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from playwright.sync_api import FilePayload, expect

from ratchet.core.contract.http.console import LeftOutLine, PairsFileOut
from ratchet.core.contract.http.jobs import JobOut, JobsOut
from ratchet.core.contract.training import Artifacts
from tests.browser.conftest import Opening
from tests.support.console_training import DPO, NEW, REPORT, all_jobs
from tests.support.fake_console import VIEWER, FakeConsole, Posted, Refused

RUNNING = 1
"""The place of the running job among all."""
FROM_PREFERENCES = {"Train a reward model": "reward_model", "Start DPO": "dpo"}
"""Links of the alignment panel: the algorithm that each starts."""
TAKE_IN = "/v1/annotation/preferences"


def running(**members: Any) -> JobOut:
    """The running job, changed."""
    return msgspec.structs.replace(all_jobs(datetime.now(UTC))[RUNNING], **members)


def sent(console: FakeConsole, path: str) -> list[Any]:
    """Bodies that were sent to a path."""
    return [one.body for one in console.posted if one.path == path and one.method == "POST"]


def test_alignment_follows_the_job_and_its_last_checkpoint(open_view: Opening) -> None:
    page = open_view("alignment?role=support")

    expect(page.get_by_role("heading", name="Running: dpo of support")).to_be_visible()
    expect(page.get_by_text(f"s3://ratchet/checkpoints/{DPO}/2-50.json")).to_be_visible()
    expect(page.get_by_text("61 of 100", exact=True)).to_be_visible()


@pytest.mark.parametrize("link", FROM_PREFERENCES)
def test_a_training_from_preferences_is_started_at_the_alignment_panel(
    open_view: Opening, console: FakeConsole, link: str
) -> None:
    queued = running(training_job_id=NEW, algorithm=FROM_PREFERENCES[link], state="queued", progress=None)
    console.answers["POST /coordinator/v1/jobs"] = queued
    console.answers[f"GET /coordinator/v1/jobs/{NEW}"] = queued
    page = open_view("alignment?role=support")
    page.get_by_role("link", name=link).click()
    page.get_by_role("button", name="Preview the data").click()
    expect(page.get_by_text("412 rows to learn from")).to_be_visible()
    page.get_by_role("button", name="Start the training").click()

    expect(page).to_have_url(re.compile(NEW))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Job ")
    asked = {"role": "support", "algorithm": FROM_PREFERENCES[link], "base_model": "stable", "priority": "normal"}
    [looked] = sent(console, "/coordinator/v1/jobs/preview")
    [body] = sent(console, "/coordinator/v1/jobs")
    assert looked == body == {**asked, "requester": "console", "idempotency_key": body["idempotency_key"]}


def test_a_dataset_card_is_read_in_the_browser_alone(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("alignment")
    expect(page.locator(".loading")).to_have_count(0)
    picker = page.get_by_label("The report of an export")
    picker.set_input_files(_file(b'{"total": 3}'))
    expect(page.get_by_role("alert")).to_contain_text("This file is no schema_report.json")
    picker.set_input_files(_file(msgspec.json.encode(REPORT)))

    expect(page.get_by_text("93 % valid")).to_be_visible()
    expect(page.get_by_text("7: both are <b>the same</b>")).to_be_visible()
    assert [one for one in console.posted if one.method == "POST"] == []


def test_the_precision_and_the_version_that_dpo_begins_from_are_chosen(
    open_view: Opening, console: FakeConsole
) -> None:
    page = open_view("alignment?role=support")
    page.get_by_role("link", name="Start DPO").click()
    expect(page.get_by_text("It is the reference, too.")).to_be_visible()
    versions = page.locator("datalist option")
    expect(versions).to_have_count(3)
    uri = versions.last.get_attribute("value")
    assert uri is not None
    page.get_by_label("Begins from").fill(uri)
    page.get_by_label("Precision").select_option("fp32")
    page.get_by_role("button", name="Start the training").click()

    expect(page).to_have_url(re.compile(NEW))
    [body] = sent(console, "/coordinator/v1/jobs")
    assert (body["base_model"], body["compute"]) == (uri, {"mixed_precision": "fp32"})


def test_the_log_of_a_job_is_read_at_the_panel(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("alignment?role=support")
    expect(page.get_by_text(f"ratchet logs --grep {DPO}")).to_be_visible()
    made = Artifacts(final_checkpoint="s3://ratchet/policies/1.json")
    console.answers["GET /coordinator/v1/jobs"] = JobsOut(jobs=[running(state="completed", artifacts=made)], total=1)
    page.reload()
    page.get_by_text("What the training printed").click()

    expect(page.get_by_text("UserWarning: <b>a long row was cut</b>")).to_be_visible()
    expect(page.get_by_text("This is its end.")).to_be_visible()


def test_pairs_of_a_file_are_taken_in_and_the_new_ones_counted(open_view: Opening, console: FakeConsole) -> None:
    lines = b'{"prompt": "p"}\n{"prompt": "q"}\n'
    left_out = [LeftOutLine(line=2, reason="the record has no chosen, rejected")]
    console.answers[f"POST {TAKE_IN}"] = PairsFileOut(records=2, added=1, present=0, left_out=left_out)
    page = open_view("alignment?role=support")
    take = page.get_by_role("button", name="Take them in")
    expect(take).to_have_attribute("title", "Choose a file first.")
    page.get_by_label("A file of pairs").set_input_files(_file(lines, "pairs.jsonl"))
    take.click()

    expect(page.get_by_text("1 new pair, 0 stored before, 1 left out.")).to_be_visible()
    expect(page.get_by_text("line 2: the record has no chosen, rejected")).to_be_visible()
    assert sent(console, TAKE_IN) == [{"role": "support", "lines": lines.decode()}]


def test_a_large_file_goes_in_parts_whose_counts_add_up(open_view: Opening, console: FakeConsole) -> None:
    lines = [b'{"prompt": "%s"}' % (b"x" * 1000) for _ in range(1200)]
    bad = [LeftOutLine(line=1, reason="no")]
    console.answers[f"POST {TAKE_IN}"] = PairsFileOut(records=10, added=8, present=1, left_out=bad)
    page = open_view("alignment?role=support")
    page.get_by_label("A file of pairs").set_input_files(_file(b"\n".join(lines), "pairs.jsonl"))
    page.get_by_role("button", name="Take them in").click()

    expect(page.get_by_text("24 new pairs, 3 stored before, 3 left out.")).to_be_visible()
    parts = [body["lines"] for body in sent(console, TAKE_IN)]
    assert "\n".join(parts).encode() == b"\n".join(lines)
    expect(page.get_by_text(f"line {1 + parts[0].count(chr(10)) + 1}: no")).to_be_visible()


def test_pairs_that_are_refused_leave_the_words_of_the_refusal(open_view: Opening, console: FakeConsole) -> None:
    def refuse(_: Posted) -> None:
        raise Refused(503, "the broker is away")

    console.answers[f"POST {TAKE_IN}"] = refuse
    page = open_view("alignment?role=support")
    page.get_by_label("A file of pairs").set_input_files(_file(b"{}", "pairs.jsonl"))
    page.get_by_role("button", name="Take them in").click()

    expect(page.get_by_role("alert")).to_contain_text("the broker is away")


def test_pairs_are_taken_in_for_a_role_by_who_may_annotate(open_view: Opening, console: FakeConsole) -> None:
    anywhere = open_view("alignment").get_by_role("button", name="Take them in")
    expect(anywhere).to_have_attribute("title", "Choose a role first.")
    viewer = open_view("alignment?role=support", key=VIEWER).get_by_role("button", name="Take them in")
    expect(viewer).to_have_attribute("title", "The key “vic” lacks the scope annotate.")
    assert sent(console, TAKE_IN) == []


def _file(content: bytes, name: str = "schema_report.json") -> FilePayload:
    return FilePayload(name=name, mimeType="application/json", buffer=content)
