"""A service that is away: its own words, what still works, and how old the rest is; then all is well again."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opening
from tests.support.fake_console import FakeConsole


def test_the_loop_keeps_its_last_figures_with_their_age(open_view: Opening, console: FakeConsole) -> None:
    console.streams = False
    page = open_view()
    expect(page.get_by_role("heading", name="Roles")).to_be_visible()
    console.away["v1"] = "ClickHouse is away: connection refused"

    expect(page.get_by_text("ClickHouse is away: connection refused").first).to_be_visible()
    expect(page.get_by_text("What follows is")).to_be_visible()
    expect(page.get_by_role("heading", name="Roles")).to_be_visible()
    expect(page.get_by_text("no live updates")).to_be_visible()

    console.away.clear()
    console.streams = True
    expect(page.get_by_text("ClickHouse is away")).to_have_count(0)
    expect(page.locator(".live")).to_have_text("live")


def test_policies_outlive_the_coordinator(open_view: Opening, console: FakeConsole) -> None:
    console.away["coordinator"] = "coordinator is away: try again when it is back"
    page = open_view("policies")
    expect(page.get_by_text("coordinator is away: try again when it is back")).to_be_visible()
    expect(page.get_by_text("Traffic, rewards and rollouts go on")).to_be_visible()

    console.away.clear()
    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_role("link", name="support@7-9be2d410")).to_be_visible()
    expect(page.get_by_text("coordinator is away")).to_have_count(0)


def test_a_page_without_the_console_keeps_what_it_shows(open_view: Opening) -> None:
    page = open_view("rollouts/support")
    expect(page.get_by_role("heading", name="support@7-9be2d410")).to_be_visible()
    page.context.set_offline(True)
    page.get_by_role("button", name="Verify again").click()
    expect(page.get_by_text("The console does not answer.").first).to_be_visible()
    expect(page.get_by_role("heading", name="support@7-9be2d410")).to_be_visible()

    page.context.set_offline(False)
    expect(page.get_by_text("The console does not answer.")).to_have_count(0)
