"""Log-in with a key: it stays in the tab, and the console's own words say why one is refused."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opening, held
from tests.browser.test_views import violations
from tests.support.console_trajectories import IDS
from tests.support.fake_console import OPERATOR, VIEWER, FakeConsole, Posted, Refused


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


def log_in(page: Page, key: str) -> None:
    """On the log-in page."""
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")


def test_a_late_refusal_of_an_old_key_leaves_the_newer_one(open_view: Opening) -> None:
    page = open_view(f"trajectories/{IDS[1]}?role=support")
    waiting = held(page, "**/gateway/v1/feedback")
    page.get_by_role("button", name="Good").click()
    page.get_by_role("button", name="Log out").click()
    log_in(page, VIEWER)
    expect(page.get_by_text("vic", exact=True)).to_be_visible()
    waiting[0].fulfill(status=401, json={"error": {"message": "this API key is unknown, expired or revoked"}})

    expect(page.get_by_text("Not given: this API key is unknown")).to_be_visible()
    expect(page.get_by_text("vic", exact=True)).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('ratchet.key')") == VIEWER


@pytest.mark.parametrize("end", ["log out", "revoke"])
def test_what_one_key_saw_is_gone_with_it(open_view: Opening, console: FakeConsole, end: str) -> None:
    page = open_view("trajectories")
    expect(page.locator("tbody tr")).to_have_count(12)
    expect(page.locator(".live")).to_have_text("live")
    console.streams = False
    if end == "log out":
        page.get_by_role("button", name="Log out").click()
    else:
        console.revoked.add(OPERATOR)
        page.get_by_label("Outcome").select_option("failure")
    expect(page.get_by_label("Key")).to_be_visible()
    console.answers["GET /v1/trajectories"] = no_lists
    log_in(page, VIEWER)

    expect(page.get_by_text("ClickHouse is away")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(0)
    expect(page.get_by_label("Role").locator("option")).to_have_count(1)


def no_lists(_: Posted) -> None:
    """ClickHouse is away."""
    raise Refused(503, "ClickHouse is away")


def test_an_installation_without_keys_asks_for_none(open_view: Opening, console: FakeConsole) -> None:
    console.asks_for_keys = False
    page = open_view(key=None)

    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    expect(page.get_by_text("No keys are asked for")).to_be_visible()
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)
