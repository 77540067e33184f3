"""Statistics in the browser: what is chosen stays in the address, the keyboard, a group's trajectories, nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from playwright.sync_api import expect

from tests.browser.conftest import Opening
from tests.support.console_statistics import group, statistics_out
from tests.support.console_trajectories import HOSTILE
from tests.support.fake_console import FakeConsole

BEGIN = datetime(2026, 11, 16, tzinfo=UTC)


def test_what_is_chosen_stays_in_the_address_and_is_asked_for(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("statistics")
    page.get_by_label("Group by", exact=True).select_option("agent")
    page.get_by_label("and by", exact=True).select_option("outcome")
    page.get_by_label("Figure").select_option("cost")
    expect(page).to_have_url(re.compile(r"\?by=agent&and=outcome&figure=cost$"))
    page.reload()

    expect(page.get_by_role("heading", name="Cost by day")).to_be_visible()
    asked = [one for one in console.posted if one.path == "/v1/statistics"][-1]
    assert asked.query["by"] == "agent,outcome"
    assert "figure" not in asked.query


def test_a_chart_is_read_with_the_keyboard_and_as_a_table(open_view: Opening) -> None:
    page = open_view("statistics?by=agent")
    chart = page.get_by_role("img", name=re.compile("Mean reward by day"))
    chart.press("ArrowLeft")
    expect(page.locator(".chart .cursor")).to_have_count(1)
    page.get_by_text("Figures as a table").click()
    expect(page.get_by_role("region", name="Mean reward by day").get_by_role("row")).to_have_count(8)


def test_a_group_leads_to_its_trajectories(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("statistics?by=agent&role=support")
    with page.expect_response(re.compile(r"/v1/trajectories\?")):
        page.get_by_role("link", name="triage-agent").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectories")
    asked = [posted for posted in console.posted if posted.path == "/v1/trajectories"][-1].query
    assert {name: asked[name] for name in ("agent", "role", "state")} == {
        "agent": "triage-agent", "role": "support", "state": "ended",
    }  # fmt: skip


def test_nothing_is_words_and_hostile_names_are_text(open_view: Opening, console: FakeConsole) -> None:
    made = statistics_out(BEGIN, [group(HOSTILE, BEGIN, [0.5, 0.6])])
    console.answers["GET /v1/statistics"] = made
    page = open_view("statistics?by=agent")
    expect(page.get_by_role("rowheader", name="<script>")).to_be_visible()
    console.answers["GET /v1/statistics"] = msgspec.structs.replace(
        made, total=msgspec.structs.replace(made.total, points=[]), groups=[]
    )
    page.reload()
    expect(page.get_by_text("No trajectory ended and no call was made")).to_be_visible()
