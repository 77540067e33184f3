"""Workflows in the browser: the list, one that runs, its graph, and a cancel."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from msgspec.structs import replace
from playwright.sync_api import expect

from tests.browser.conftest import Opening
from tests.support.console_workflows import PARTIAL_ID, RUNNING_ID, workflows_shown
from tests.support.fake_console import VIEWER, FakeConsole
from tests.support.fake_workflows import ID


def test_the_list_leads_to_a_workflow_with_its_graph(open_view: Opening) -> None:
    page = open_view("workflows")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("link", name=re.compile("Summarise the two")).nth(1).click()

    graph = page.get_by_role("img", name=re.compile("3 sub-tasks"))
    expect(graph.locator("rect")).to_have_count(3)
    expect(graph.locator("path")).to_have_count(2)
    expect(page).to_have_url(re.compile(ID))


def test_a_failed_branch_is_marked_with_its_reason(open_view: Opening) -> None:
    page = open_view(f"workflows/{PARTIAL_ID}")

    expect(page.locator("svg.workflow g[data-state=failed]")).to_have_count(1)
    expect(page.locator("svg.workflow g[data-state=skipped]")).to_have_count(1)
    expect(page.get_by_text("the worker answered nothing")).to_be_visible()
    expect(page.get_by_text("80 % of the budget is spent")).to_be_visible()


def test_a_workflow_that_runs_is_followed_to_its_end(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(f"workflows/{RUNNING_ID}")
    expect(page.locator("svg.workflow g[data-state=running]")).to_have_count(3)
    done = next(one for one in workflows_shown(datetime.now(UTC)) if one.workflow_id == ID)
    console.answers[f"GET /workflows/v1/workflows/{RUNNING_ID}"] = replace(done, workflow_id=RUNNING_ID)

    expect(page.locator("svg.workflow g[data-state=succeeded]")).to_have_count(3)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_a_cancel_is_sent_to_the_workflow(open_view: Opening, console: FakeConsole) -> None:
    path = f"/workflows/v1/workflows/{RUNNING_ID}/cancel"
    console.answers[f"POST {path}"] = workflows_shown(datetime.now(UTC))[0]
    page = open_view(f"workflows/{RUNNING_ID}")
    page.get_by_role("button", name="Cancel").click()

    expect(page.get_by_text("The workflow is being cancelled.")).to_be_visible()
    assert [one.path for one in console.posted if one.method == "POST"] == [path]


def test_a_key_without_the_right_cannot_cancel(open_view: Opening) -> None:
    page = open_view(f"workflows/{RUNNING_ID}", key=VIEWER)

    expect(page.get_by_role("button", name="Cancel")).to_have_attribute("aria-disabled", "true")


def test_a_service_that_is_away_is_named_with_what_still_works(open_view: Opening, console: FakeConsole) -> None:
    console.away["workflows"] = "the workflows service does not answer"
    page = open_view("workflows")

    expect(page.get_by_text("those under way go on when it is back")).to_be_visible()
