"""Training in the browser: the list, live curves, a cancel in stages, a start with its preview, two jobs compared."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from playwright.sync_api import expect

from ratchet.core.contract.http.console import HintOut
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.training import Artifacts
from tests.browser.conftest import Opening
from tests.support.console_training import DPO, NEW, RLOO, SFT, all_jobs, curves
from tests.support.fake_console import VIEWER, FakeConsole, Posted, Refused

RUNNING = 1
"""The place of the running job among all."""


def running(**members: Any) -> JobOut:
    """The running job, changed."""
    return msgspec.structs.replace(all_jobs(datetime.now(UTC))[RUNNING], **members)


def sent(console: FakeConsole, path: str) -> list[Any]:
    """Bodies that were sent to a path."""
    return [one.body for one in console.posted if one.path == path and one.method == "POST"]


def test_jobs_that_run_come_first_and_filters_stay_in_the_address(open_view: Opening) -> None:
    page = open_view("training")
    expect(page.locator("tbody tr")).to_have_count(6)
    expect(page.locator("tbody tr").first).to_contain_text("running")
    page.get_by_label("State").select_option("failed")

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("OOM: A pass of 512 tokens does not fit")
    expect(page).to_have_url(re.compile("state=failed"))


def test_curves_grow_while_the_job_runs(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(f"training/{DPO}")
    expect(page.get_by_role("img", name="loss. loss is 0.432")).to_be_visible()
    one = running()
    later = msgspec.structs.replace(one.progress or one, current_step=77)
    console.answers[f"GET /v1/jobs/{DPO}/curves"] = curves(running(progress=later), RUNNING, datetime.now(UTC))
    console.hints.append(
        HintOut(kind="job", role="support", subject=DPO, at=datetime.now(UTC), text="step 77", count=1)
    )

    expect(page.get_by_role("img", name="loss. loss is 0.432")).to_have_count(0)
    expect(page.get_by_role("img", name="loss. loss is")).to_be_visible()


def test_a_curve_shows_where_it_should_be_and_that_it_is_not(open_view: Opening) -> None:
    page = open_view(f"training/{RLOO}")
    panel = page.get_by_role("region", name="ess", exact=True)

    expect(panel).to_contain_text("out of range")
    expect(panel).to_contain_text("Should be 0.3 to 1. Good: near 1; bad: a few tokens decide.")
    expect(page.get_by_text("Stopped at train step 88: ess was 0.07, its limit is 0.1")).to_be_visible()
    expect(page.get_by_text("The weights of train step 80 were kept.")).to_be_visible()


def test_the_card_of_the_trainer_is_shown_as_the_text_that_it_is(open_view: Opening) -> None:
    page = open_view(f"training/{RLOO}")
    page.get_by_text("As the trainer wrote it").click()

    expect(page.get_by_text("- notes: <img src=x onerror=alert(1)>")).to_be_visible()
    expect(page.locator("img[src=x]")).to_have_count(0)


def test_a_cancel_is_asked_for_acknowledged_and_done(open_view: Opening, console: FakeConsole) -> None:
    asked = running(cancel_requested=True, cancelled_by="ada (k1)")

    def cancel(posted: Posted) -> JobOut:
        answer = msgspec.structs.replace(asked, cancel_now=posted.query.get("now") == "true")
        console.answers[f"GET /coordinator/v1/jobs/{DPO}"] = answer
        return answer

    console.answers[f"POST /coordinator/v1/jobs/{DPO}/cancel"] = cancel
    page = open_view(f"training/{DPO}")
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("dialog").get_by_role("button", name="Let it go on").click()
    assert sent(console, f"/coordinator/v1/jobs/{DPO}/cancel") == []
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()

    stages = page.get_by_role("list", name="The cancel").get_by_role("listitem")
    expect(stages).to_have_count(3)
    expect(stages.nth(0)).to_contain_text("Asked forby ada (k1)")
    expect(stages.nth(1)).to_have_attribute("aria-current", "step")
    expect(stages.nth(1)).to_contain_text("Waits for the worker")

    console.answers[f"GET /coordinator/v1/jobs/{DPO}"] = msgspec.structs.replace(asked, stopping="after_step")
    expect(stages.nth(1)).to_contain_text("Acknowledgedby trainer-1: it stops after its train step")
    expect(stages.nth(2)).to_have_attribute("aria-current", "step")

    page.get_by_role("button", name="Stop now").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop now").click()
    expect(stages.nth(0)).to_contain_text("an end at once")
    expect(stages.nth(1)).to_contain_text("Waits for the worker")
    expect(page.get_by_role("button", name="Stop now")).to_have_attribute("aria-disabled", "true")

    ended = running(state="cancelled", cancel_requested=True, cancelled_by="ada (k1)", cancel_now=True, stopping="now")
    kept = Artifacts(checkpoint="s3://ratchet/checkpoints/7.json")
    ended = msgspec.structs.replace(ended, artifacts=kept, finished_at=datetime.now(UTC))
    console.answers[f"GET /coordinator/v1/jobs/{DPO}"] = ended
    expect(stages.nth(1)).to_contain_text("it ends the training at once")
    expect(stages.nth(2)).to_contain_text("its checkpoint is kept")
    expect(page.get_by_role("link", name="Train again")).to_be_visible()

    console.answers[f"POST /coordinator/v1/jobs/{DPO}/resume"] = lambda _: ended
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Resumed: its next attempt goes on from the checkpoint.")).to_be_visible()
    assert len(sent(console, f"/coordinator/v1/jobs/{DPO}/resume")) == 1


def test_a_silent_worker_is_warned_about(open_view: Opening, console: FakeConsole) -> None:
    heard = datetime.now(UTC) - timedelta(seconds=100)
    console.answers[f"GET /coordinator/v1/jobs/{DPO}"] = running(heartbeat_at=heard)
    page = open_view(f"training/{DPO}")

    expect(page.get_by_text("trainer-1 was not heard for 1 min")).to_be_visible()
    expect(page.get_by_text("the coordinator gives its attempt away")).to_be_visible()


def test_rows_why_each_was_taken_and_what_was_left_out(open_view: Opening) -> None:
    page = open_view(f"training/{RLOO}?tab=data")

    expect(page.get_by_role("table", name="Rows of the snapshot").locator("tbody tr")).to_have_count(20)
    expect(page.get_by_role("row", name="learnt from before")).to_contain_text("1,410")
    expect(page.get_by_role("cell", name="reward 0.5, at least 0.1; version 3 answered")).to_be_visible()
    expect(page.get_by_text("among the newest groups of tries, at most 512 rows")).to_be_visible()
    expect(page.get_by_text("1 to 20 of 412 rows")).to_be_visible()


def test_a_training_is_proposed_previewed_and_started_once(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("training?start=1&role=support")
    page.get_by_role("button", name="Take it").click()
    page.get_by_label("Learning rate").fill("2e-5")
    page.get_by_role("button", name="Preview the data").click()
    expect(page.get_by_text("412 rows to learn from")).to_be_visible()
    page.get_by_label("Epochs").fill("2")
    expect(page.get_by_text("The form has changed since: look again.")).to_be_visible()
    page.get_by_role("button", name="Start the training").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("Job ")
    assert NEW in page.url
    [body] = sent(console, "/coordinator/v1/jobs")
    assert len(body.pop("idempotency_key")) == 36
    assert body == {
        "role": "support",
        "algorithm": "rloo",
        "base_model": "stable",
        "priority": "normal",
        "requester": "console",
        "hyperparameters": {"learning_rate": 2e-5, "epochs": 2},
    }


def test_what_the_coordinator_refuses_stays_on_the_form(open_view: Opening, console: FakeConsole) -> None:
    def refuse(_: Posted) -> None:
        raise Refused(422, "hyperparameters.beta: rloo does not take it")

    console.answers["POST /coordinator/v1/jobs"] = refuse
    page = open_view("training?start=1&role=support")
    page.get_by_label("Beta").fill("0.1")
    page.get_by_role("button", name="Start the training").click()

    expect(page.get_by_text("hyperparameters.beta: rloo does not take it")).to_be_visible()
    expect(page.get_by_label("Beta")).to_have_value("0.1")


def test_training_again_takes_the_same_data(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(f"training/{RLOO}")
    page.get_by_role("link", name="Train again").click()
    expect(page.get_by_text("This is a new job, with the same request")).to_be_visible()
    page.get_by_role("button", name="Begin from its policy").click()
    page.get_by_role("button", name="Start the training").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Job ")

    [body] = sent(console, "/coordinator/v1/jobs")
    assert body["base_model"] == "s3://ratchet/policies/9be2d410.json"
    assert body["dataset"] == {
        "sample_size": 5000,
        "snapshot": {"uri": "s3://ratchet/snapshots/5f0c.json", "digest": "5f0c" * 16},
    }


def test_a_key_without_the_scope_starts_and_cancels_nothing(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(f"training/{DPO}", key=VIEWER)
    cancel = page.get_by_role("button", name="Cancel the job")
    expect(cancel).to_have_attribute("aria-disabled", "true")
    expect(cancel).to_have_attribute("title", "The key “vic” lacks the scope train.")
    page.get_by_role("link", name="All jobs").click()
    page.get_by_role("link", name="Start a training").click()

    expect(page.get_by_role("button", name="Start the training")).to_have_attribute("aria-disabled", "true")
    assert [one for one in console.posted if one.method == "POST"] == []


def test_two_jobs_lie_over_each_other(open_view: Opening) -> None:
    page = open_view("training")
    page.get_by_label(f"Compare job {RLOO}").check()
    page.get_by_label(f"Compare job {SFT}").check()
    page.get_by_role("link", name="Compare these two").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Two jobs")
    expect(page.get_by_role("row", name="hyperparameters.kl_beta")).to_contain_text("by default")
    expect(page.locator(".chart path.line")).to_have_count(8)


def test_a_coordinator_that_is_away_is_named_and_comes_back(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("training")
    expect(page.locator("tbody tr")).to_have_count(6)
    console.away["coordinator"] = "the coordinator is away: connection refused"
    console.hints.append(
        HintOut(kind="job", role="support", subject=DPO, at=datetime.now(UTC), text="running", count=1)
    )

    expect(page.get_by_text("the coordinator is away: connection refused")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(6)
    console.away.clear()
    page.get_by_role("button", name="Ask again").first.click()
    expect(page.get_by_text("the coordinator is away")).to_have_count(0)
