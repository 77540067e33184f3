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


def test_two_keys_open_a_view_and_rest_while_one_types(open_view: Opening) -> None:
    page = open_view()
    expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("Rollouts")
    expect(page.get_by_role("heading", level=1)).to_be_focused()

    page.goto(page.url.partition("#")[0] + "#/policies/compare")
    page.get_by_label("What a user writes").focus()
    page.keyboard.type("g r?")
    expect(page.get_by_label("What a user writes")).to_have_value("g r?")
    expect(page.get_by_role("heading", level=1)).to_have_text("Two policies side by side")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_chart_is_read_by_keyboard_and_as_a_table(open_view: Opening) -> None:
    page = open_view("rollouts/support")
    chart = page.get_by_role("img", name="E-values of rollback over time")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".chart .legend li").last).to_contain_text(":")

    page.get_by_text("Figures as a table").click()
    table = page.get_by_role("table", name="E-values of rollback over time")
    expect(table.get_by_role("columnheader", name="combined")).to_be_visible()
    assert table.get_by_role("row").count() >= 7


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
