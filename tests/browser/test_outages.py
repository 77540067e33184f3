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

    expect(page.get_by_text("ClickHouse is away: connection refused")).to_be_visible()
    expect(page.get_by_text("What follows is")).to_be_visible()
    expect(page.get_by_role("heading", name="Roles")).to_be_visible()
    expect(page.get_by_text("no live updates")).to_be_visible()

    console.away.clear()
    console.streams = True
    expect(page.get_by_text("ClickHouse is away")).to_have_count(0)
    expect(page.locator(".live")).to_have_text("live")
