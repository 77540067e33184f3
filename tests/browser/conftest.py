"""One browser for all tests; each has a console of its own over a fake API, and pages that may log no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from tests.browser.chromium import BINARY, launched
from tests.support.fake_console import OPERATOR, FakeConsole, serving

PATIENCE_MS = 20_000
EXPECTED = ("the server responded with a status of", "net::ERR_INTERNET_DISCONNECTED")
"""What Chromium logs by itself about answers that are errors, and about a network that is away."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all where there is no Chromium."""
    for item in items:
        item.add_marker(pytest.mark.skipif(BINARY is None, reason="there is no Chromium: make chromium"))


class Opening(Protocol):
    """Opens a view, logged in with `key`, and returns its page."""

    def __call__(
        self, view: str = "", *, theme: str = "light", key: str | None = OPERATOR, width: int = 1280
    ) -> Page: ...


def held(page: Page, pattern: str) -> list[Route]:
    """Requests to such an address, which wait until the test lets them go on."""
    waiting: list[Route] = []

    def keep(route: Route) -> None:
        waiting.append(route)

    page.route(pattern, keep)
    return waiting


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright, launched(playwright) as browser:
        yield browser


@pytest.fixture
def console() -> FakeConsole:
    """What the console's API answers."""
    return FakeConsole()


@pytest.fixture
def address(console: FakeConsole) -> Iterator[str]:
    """Where the pages are."""
    with serving(console) as address:
        yield address


@pytest.fixture
def open_view(browser: Browser, address: str) -> Iterator[Opening]:
    """Pages close after the test. What they logged as an error fails it, but for what is `EXPECTED`."""
    errors: list[str] = []
    closing: list[Callable[[], None]] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(words in message.text for words in EXPECTED):
            errors.append(message.text)

    def opened(view: str = "", *, theme: str = "light", key: str | None = OPERATOR, width: int = 1280) -> Page:
        scheme = "dark" if theme == "dark" else "light"
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        closing.append(context.close)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if key is not None:
            page.add_init_script(f"if (!sessionStorage.length) sessionStorage.setItem('ratchet.key', '{key}')")
        page.goto(f"{address}/#/{view}")
        return page

    yield opened
    for close in closing:
        close()
    assert errors == []
