"""Open pages follow what happens, and ask again when a hint says so."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from playwright.sync_api import expect

from ratchet.core.contract.http.console import HintOut
from tests.browser.conftest import Opening
from tests.support.fake_console import FakeConsole

SUPPORT = "GET /deployer/v1/rollouts/support"


def hint(role: str) -> HintOut:
    """A rollout of that role changed."""
    return HintOut(kind="rollout", role=role, subject=None, at=datetime.now(UTC), text="something changed", count=1)


def asked(console: FakeConsole) -> int:
    """How often a page asked for the rollout."""
    return sum(f"{one.method} {one.path}" == SUPPORT for one in console.posted)


def test_a_hint_brings_what_changed_and_another_role_s_does_not(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("rollouts/support")
    expect(page.get_by_role("heading", name="support@7-9be2d410")).to_be_visible()
    before = asked(console)
    console.hints.append(hint("triage"))
    console.answers[SUPPORT] = msgspec.structs.replace(console.answers[SUPPORT], reason="a person looked at it")  # pyright: ignore[reportArgumentType] - the scene's are structs
    console.hints.append(hint("support"))

    expect(page.get_by_text("a person looked at it")).to_be_visible()
    assert asked(console) == before + 1


def test_figures_of_the_loop_move_without_asking(open_view: Opening, console: FakeConsole) -> None:
    page = open_view()
    expect(page.get_by_text("17 open trajectories")).to_be_visible()
    loop = console.answers["GET /v1/loop"]
    console.answers["GET /v1/loop"] = msgspec.structs.replace(loop, at=datetime.now(UTC), open_trajectories=23)  # pyright: ignore[reportArgumentType] - as above

    expect(page.get_by_text("23 open trajectories")).to_be_visible()


def test_a_stream_that_the_console_ends_is_followed_by_another(open_view: Opening, console: FakeConsole) -> None:
    page = open_view()
    expect(page.locator(".live")).to_have_text("live")
    console.ends_streams = True
    console.streams = False
    expect(page.locator(".live")).to_contain_text("no live updates")
    console.ends_streams = False
    console.streams = True

    expect(page.locator(".live")).to_have_text("live")
