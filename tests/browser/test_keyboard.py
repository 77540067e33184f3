"""Everything is reached without a pointer."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opening


def test_the_first_tab_skips_to_the_content(open_view: Opening) -> None:
    page = open_view()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.get_by_role("main")).to_be_focused()
    assert page.evaluate("location.hash") == "#/"


def test_help_lists_the_keys_and_gives_the_focus_back(open_view: Opening) -> None:
    page = open_view()
    page.get_by_role("button", name="Log out").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Log out")).to_be_focused()


def test_the_theme_changes_and_is_kept(open_view: Opening) -> None:
    page = open_view()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    dark = page.evaluate(background)
    page.reload()

    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert [page.evaluate(background), light != dark] == [dark, True]
