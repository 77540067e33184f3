"""Log-in with a key: it stays in the tab, and the console's own words say why one is refused."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opening
from tests.browser.test_views import violations
from tests.support.fake_console import OPERATOR, VIEWER, FakeConsole


def test_a_key_logs_in_and_stays_in_the_tab(open_view: Opening) -> None:
    page = open_view(key=None)
    expect(page.get_by_label("Key")).to_be_focused()
    assert violations(page) == []

    page.keyboard.type("misspelt")
    page.keyboard.press("Enter")
    expect(page.get_by_text("this API key is unknown, expired or revoked")).to_be_visible()
    page.get_by_label("Key").fill(OPERATOR)
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    expect(page.get_by_text("ada")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_log_out_forgets_the_key(open_view: Opening) -> None:
    page = open_view()
    page.get_by_role("button", name="Log out").click()

    expect(page.get_by_label("Key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_is_revoked_meanwhile_leads_back_to_the_log_in(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(key=VIEWER)
    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    console.revoked.add(VIEWER)

    expect(page.get_by_text("this API key is unknown, expired or revoked")).to_be_visible()


def test_an_installation_without_keys_asks_for_none(open_view: Opening, console: FakeConsole) -> None:
    console.asks_for_keys = False
    page = open_view(key=None)

    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    expect(page.get_by_text("No keys are asked for")).to_be_visible()
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)
