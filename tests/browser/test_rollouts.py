"""A person decides about a rollout: with a reason, after a look at what it would do, and only with the scope."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from ratchet.core.contract.http.console import HintOut
from tests.browser.conftest import Opening
from tests.browser.test_views import violations
from tests.support.fake_console import VIEWER, FakeConsole, Posted, Refused

SUPPORT = "/deployer/v1/rollouts/support"
NEWER = "019a3c5e-7d10-7a40-8c2e-5b1f0d9eaaaa"
DIALOGS = {
    "pause": ("Pause", "paused"),
    "promote": ("Promote", "promoted"),
    "rollback": ("Roll back", "rolled_back"),
    "revert": ("Revert", "reverted"),
}
"""Act: the name of its button, and the state that it leads to."""
RESUMED = {
    "paused": {"state": "paused"},
    "held": {"state": "held"},
    "suspended": {"state": "suspended", "weight": 0.0},
    "parked": {"state": "promoted", "parked": True},
}
"""What may be resumed: a rollout that stands still, and a queue of candidates."""


def acting(console: FakeConsole, path: str, state: str) -> None:
    """The deployer takes an act that leads to `state`; a dry run changes nothing."""

    def act(posted: Posted) -> Any:
        after = msgspec.structs.replace(console.answers[f"GET {path}"], state=state, waiting_for=[])  # pyright: ignore[reportArgumentType] - the scene's are structs
        if not posted.body["dry_run"]:
            console.answers[f"GET {path}"] = after
        return after

    for name in ("approve", "pause", "resume", "promote", "rollback", "revert", "start"):
        console.answers[f"POST {path}/{name}"] = act


def suspend(console: FakeConsole, state: str = "suspended") -> None:
    """The canary of support is suspended on what three subjects show, or has ended so."""
    rollout: Any = console.answers[f"GET {SUPPORT}"]
    note = "3 subjects seen: fewer than 10 show nothing of others and decide nothing"
    subjects = msgspec.structs.replace(rollout.subjects, seen=3, note=note)
    console.answers[f"GET {SUPPORT}"] = msgspec.structs.replace(
        rollout, state=state, weight=0.0, waiting_for=[], subjects=subjects
    )


def acts_of(console: FakeConsole) -> list[tuple[str, dict[str, Any]]]:
    """Every act that was sent: its path's last part, and its body."""
    return [(one.path.rpartition("/")[2], one.body) for one in console.posted if one.method == "POST"]


def decide(page: Page, button: str, reason: str) -> None:
    """Give the reason, look, and act."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog.get_by_text("It would do this")).to_be_visible()
    dialog.get_by_role("button", name=f"{button} now").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_difference_has_its_interval_and_evidence_between_decisions(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("rollouts/support")
    row = page.get_by_role("table", name="Differences by metric and share of traffic").get_by_role("row")
    expect(row.nth(0)).to_contain_text("At 10 % canary")
    expect(row.nth(1)).to_contain_text("\N{MINUS SIGN}0.031")
    expect(row.nth(1)).to_contain_text("\N{MINUS SIGN}0.065 to +0.003")
    expect(row.nth(1)).to_contain_text("within")
    expect(row.filter(has_text="latency")).to_contain_text("not clear yet")
    page.get_by_text("Figures as a table").first.click()
    trail: Any = console.answers[f"GET {SUPPORT}/trail"]
    table = page.get_by_role("table", name=re.compile("E-values of rollback"))
    expect(table.get_by_role("row")).to_have_count(1 + len(trail.samples) + 1)  # the first decision is older than it


def test_a_rollout_names_the_candidate_that_is_next(open_view: Opening, console: FakeConsole) -> None:
    rollout: Any = console.answers[f"GET {SUPPORT}"]
    queue = ["support@9-5d21c0aa", "support@8-91b2d0c7"]
    console.answers[f"GET {SUPPORT}"] = msgspec.structs.replace(rollout, queue=queue)
    page = open_view("rollouts/support")
    waits = "support@9-5d21c0aa waits until this rollout ends, and then supersedes 1 older candidate"
    expect(page.get_by_text(waits)).to_be_visible()


@pytest.mark.parametrize("act", DIALOGS)
def test_an_act_takes_a_reason_and_is_tried_first(open_view: Opening, console: FakeConsole, act: str) -> None:
    button, state = DIALOGS[act]
    acting(console, SUPPORT, state)
    page = open_view("rollouts/support")
    page.get_by_role("group", name="Acts").get_by_role("button", name=button, exact=True).click()
    page.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_role("dialog").get_by_text("Give a reason first")).to_be_visible()
    assert acts_of(console) == []

    decide(page, button, "the shop's prices changed")

    shown = console.answers[f"GET {SUPPORT}"].rollout_id  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue] - as above
    body = {"actor": "ada", "reason": "the shop's prices changed", "rollout_id": shown}
    assert acts_of(console) == [(act, body | {"dry_run": True}), (act, body | {"dry_run": False})]
    expect(page.locator(".panel .status").filter(has_text=state.replace("_", " ")).first).to_be_visible()


@pytest.mark.parametrize("still", RESUMED)
def test_what_stands_still_is_resumed(open_view: Opening, console: FakeConsole, still: str) -> None:
    rollout: Any = console.answers[f"GET {SUPPORT}"]
    console.answers[f"GET {SUPPORT}"] = msgspec.structs.replace(rollout, **RESUMED[still])
    acting(console, SUPPORT, "running")
    page = open_view("rollouts/support")
    page.get_by_role("group", name="Acts").get_by_role("button", name="Resume", exact=True).click()

    decide(page, "Resume", "the shop is open again")

    body = {"actor": "ada", "reason": "the shop is open again", "rollout_id": rollout.rollout_id}
    assert acts_of(console) == [("resume", body | {"dry_run": True}), ("resume", body | {"dry_run": False})]
    expect(page.locator(".panel .status").filter(has_text="running").first).to_be_visible()


def test_an_approval_from_the_home_view_by_keyboard(open_view: Opening, console: FakeConsole) -> None:
    acting(console, "/deployer/v1/rollouts/triage", "running")
    page = open_view()
    page.get_by_role("link", name="Look and approve").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Approve", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []

    decide(page, "Approve", "read forty answers")

    assert [act for act, _ in acts_of(console)] == ["approve", "approve"]


def test_an_override_stands_behind_a_second_tick_and_is_tried_again(open_view: Opening, console: FakeConsole) -> None:
    acting(console, SUPPORT, "promoted")
    page = open_view("rollouts/support")
    page.get_by_role("button", name="Promote", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("the old one is broken")
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog.get_by_role("button", name="Promote now")).to_be_visible()
    dialog.get_by_label("Promote past an undecided canary").check()

    expect(dialog.get_by_role("button", name="Promote now")).to_have_count(0)
    decide(page, "Promote", "the old one is broken")
    assert [body.get("override", False) for _, body in acts_of(console)] == [False, True, True]


def test_a_preview_is_void_when_another_rollout_takes_the_place(open_view: Opening, console: FakeConsole) -> None:
    acting(console, SUPPORT, "rolled_back")
    page = open_view("rollouts/support")
    page.get_by_role("button", name="Roll back", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("it refunds twice")
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog.get_by_role("button", name="Roll back now")).to_be_visible()
    newer = msgspec.structs.replace(console.answers[f"GET {SUPPORT}"], rollout_id=NEWER)  # pyright: ignore[reportArgumentType] - as above
    console.answers[f"GET {SUPPORT}"] = newer
    console.hints.append(
        HintOut(kind="rollout", role="support", subject=NEWER, at=datetime.now(UTC), text="gating", count=1)
    )

    expect(dialog.get_by_role("button", name="Roll back now")).to_have_count(0)
    decide(page, "Roll back", "it refunds twice")
    sent = [(body["rollout_id"] == NEWER, body["dry_run"]) for _, body in acts_of(console)]
    assert sent == [(False, True), (True, True), (True, False)]


def test_an_act_that_comes_after_another_rollout_is_refused_in_words(open_view: Opening, console: FakeConsole) -> None:
    words = "a newer rollout of support has taken its place: look at that one first"

    def refuse_late(posted: Posted) -> Any:
        if not posted.body["dry_run"]:
            raise Refused(409, words)
        return console.answers[f"GET {SUPPORT}"]

    console.answers[f"POST {SUPPORT}/rollback"] = refuse_late
    page = open_view("rollouts/support")
    page.get_by_role("button", name="Roll back", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("it refunds twice")
    dialog.get_by_role("button", name="Show what it would do").click()
    dialog.get_by_role("button", name="Roll back now").click()

    expect(dialog.get_by_text(words)).to_be_visible()
    expect(dialog.get_by_role("button", name="Roll back now")).to_have_count(0)


def test_failing_trajectories_are_opened_in_their_role(open_view: Opening) -> None:
    page = open_view("rollouts/support")

    lowest = page.get_by_role("region", name="Canary's lowest rewards").get_by_role("link").first
    expect(lowest).to_have_attribute("href", re.compile(r"^#/trajectories/[^?]+\?role=support$"))


def test_a_refusal_is_shown_in_the_deployers_words(open_view: Opening, console: FakeConsole) -> None:
    def refuse(_: Posted) -> Any:
        raise Refused(409, "the canary is undecided: promote takes override")

    console.answers[f"POST {SUPPORT}/promote"] = refuse
    page = open_view("rollouts/support")
    page.get_by_role("button", name="Promote", exact=True).click()
    page.get_by_label("Reason").fill("in a hurry")
    page.get_by_role("button", name="Show what it would do").click()

    expect(page.get_by_role("dialog").get_by_text("the canary is undecided: promote takes override")).to_be_visible()
    expect(page.get_by_role("button", name="Promote now")).to_have_count(0)


def test_a_version_is_started(open_view: Opening, console: FakeConsole) -> None:
    path = "/deployer/v1/rollouts/triage"
    ended = msgspec.structs.replace(console.answers[f"GET {path}"], state="rolled_back")  # pyright: ignore[reportArgumentType] - as above
    console.answers[f"GET {path}"] = ended
    acting(console, path, "gating")
    page = open_view("rollouts/triage")
    page.get_by_role("button", name="Start a rollout").click()
    page.get_by_label("Version").select_option("3")
    page.get_by_label("Strategy").select_option("blue_green")
    decide(page, "Start a rollout", "again, with the prices")

    assert acts_of(console)[-1] == (
        "start",
        {
            "actor": "ada",
            "reason": "again, with the prices",
            "version": 3,
            "strategy": "blue_green",
            "dry_run": False,
        },
    )


def test_a_suspended_canary_asks_for_a_decision(open_view: Opening, console: FakeConsole) -> None:
    suspend(console)
    page = open_view("rollouts/support")
    expect(page.get_by_text("Suspended: a person has to decide")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="stopped here")).to_contain_text("Stage 2")
    for act in ("Resume", "Promote", "Roll back", "Revert"):
        expect(page.get_by_role("group", name="Acts").get_by_role("button", name=act, exact=True)).to_be_visible()
    expect(page.get_by_text("until it is withdrawn")).to_be_visible()
    assert violations(page) == []


def test_subjects_are_counted_and_too_few_are_pointed_out(open_view: Opening, console: FakeConsole) -> None:
    suspend(console)
    page = open_view("rollouts/support")
    expect(page.get_by_text("at 9,640 subjects a day in 24,100 trajectories")).to_be_visible()
    expect(page.get_by_text("3 seen; before it 412 in 1,000 starts; 1 of them stood for many")).to_be_visible()
    expect(page.get_by_text("3 subjects seen: fewer than 10 show nothing of others")).to_be_visible()


def test_what_suspends_is_shown_beside_its_thresholds(open_view: Opening) -> None:
    page = open_view("rollouts/support")
    page.get_by_role("button", name="suspension", exact=True).click()
    panel = page.locator(".panel").filter(has_text="Evidence over time")
    for limit in ("combined at 40", "first call at 100", "complaints, safety at 200"):
        expect(panel.get_by_text(limit, exact=True).first).to_be_visible()


def test_a_withdrawn_canary_has_ended(open_view: Opening, console: FakeConsole) -> None:
    suspend(console, state="withdrawn")
    page = open_view("rollouts/support")
    expect(page.get_by_role("listitem").filter(has_text="withdrawn")).to_contain_text("stable serves on")
    expect(page.get_by_role("button", name="Start a rollout")).to_be_visible()


def test_a_key_without_the_scope_sees_why_it_may_not_act(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("rollouts/support", key=VIEWER)
    pause = page.get_by_role("button", name="Pause")
    expect(pause).to_have_attribute("aria-disabled", "true")
    expect(pause).to_have_accessible_description("The key “vic” lacks the scope operate.")
    pause.click(force=True)

    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_broken_audit_chain_is_loud(open_view: Opening, console: FakeConsole) -> None:
    whole = console.answers[f"GET {SUPPORT}/audit"]
    console.answers[f"GET {SUPPORT}/audit"] = msgspec.structs.replace(
        whole,  # pyright: ignore[reportArgumentType] - as above
        whole=False,
        problem="decision 12 was changed: its hash does not fit",
    )
    page = open_view("rollouts/support")

    expect(page.get_by_text("The chain is broken")).to_be_visible()
    expect(page.get_by_text("decision 12 was changed: its hash does not fit")).to_be_visible()


def test_the_page_outlives_the_deployer(open_view: Opening, console: FakeConsole) -> None:
    console.away["deployer"] = "deployer is away: try again when it is back"
    page = open_view("rollouts/support")
    expect(page.get_by_text("deployer is away: try again when it is back").first).to_be_visible()
    expect(page.get_by_text("rollouts stand still until it answers").first).to_be_visible()

    console.away.clear()
    expect(page.get_by_text("deployer is away")).to_have_count(0)
    expect(page.get_by_role("heading", name="support@7-9be2d410")).to_be_visible()


def test_a_hostile_reason_is_text_and_nothing_else(open_view: Opening, console: FakeConsole) -> None:
    rollout = console.answers[f"GET {SUPPORT}"]
    hostile = "<img src=x onerror=\"document.title='owned'\">\u202e\u001b[2J " + "W" * 5_000
    console.answers[f"GET {SUPPORT}"] = msgspec.structs.replace(rollout, reason=hostile, actor="<b>eve</b>")  # pyright: ignore[reportArgumentType] - as above
    page = open_view("rollouts/support", width=1000)

    expect(page.get_by_text("<img src=x")).to_be_visible()
    expect(page.get_by_text("‹U+202E›")).to_be_visible()
    expect(page.get_by_text("<b>eve</b>")).to_be_visible()
    assert page.locator("img").count() == 0
    assert page.title() == "Rollout of support · Ratchet"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000
