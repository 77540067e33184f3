"""What to change, in the browser: patterns by cost, their evidence, plans, decisions, and the trail."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from msgspec.structs import replace
from playwright.sync_api import expect

from ratchet.core.contract.http.analyst import PatternOut, PlanOut
from ratchet.core.contract.learning import ArmEffect
from tests.browser.conftest import Opening
from tests.support.console_changes import EVIDENCE, HOSTILE, HOSTILE_NAME, PLAN, REFUNDS, patterns, plan_of
from tests.support.fake_console import VIEWER, FakeConsole

PAGE = f"/analyst/v1/patterns/support/{REFUNDS}"


def test_patterns_stand_by_cost_with_their_plans(open_view: Opening) -> None:
    page = open_view("changes")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("96.4 of reward, $3.1")
    expect(rows.first).to_contain_text("Add a sentence about dates")
    expect(rows.first.get_by_role("img", name=re.compile("by window: now 18 %"))).to_be_visible()
    page.get_by_role("combobox", name="Patterns").select_option("closed")
    expect(rows).to_have_count(1)


def test_evidence_is_a_click_away_and_the_trail_on_the_same_page(open_view: Opening) -> None:
    page = open_view("changes")
    page.get_by_role("link", name=re.compile("says refund")).click()

    expect(page.get_by_role("link", name=re.compile(EVIDENCE[:8]))).to_have_attribute(
        "href", f"#/trajectories/{EVIDENCE}?role=support"
    )
    expect(page.get_by_text("failure +0.29 (0.24 to 0.34)")).to_be_visible()
    expect(page.get_by_text("Look at the date of an order before you refund it.")).to_be_visible()
    steps = page.get_by_role("region", name="Trail").locator("tbody tr")
    expect(steps).to_have_count(2)
    expect(steps.last).to_contain_text("adaptation: plan drafted")


def test_what_came_of_a_plan_stands_on_it(open_view: Opening, console: FakeConsole) -> None:
    now = datetime.now(UTC)
    effect = ArmEffect(difference=0.04, low=0.01, high=0.07, stable=900, canary=310, at=now)
    harmed = replace(plan_of(now), state="rolled_back", effect=effect, verdict="It harmed: more of them fail.")
    console.answers[f"GET {PAGE}"] = PatternOut(pattern=patterns(now)[0], plans=[harmed])
    page = open_view(f"changes/support/{REFUNDS}")

    expect(page.get_by_text("It harmed: more of them fail.")).to_be_visible()
    expect(page.get_by_text("failure +0.04 (0.01 to 0.07), of 310 in canary and 900 in stable")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_plan_is_approved_on_its_page(open_view: Opening, console: FakeConsole) -> None:
    now = datetime.now(UTC)
    path = f"/analyst/v1/plans/support/{PLAN}/approve"
    console.answers[f"POST {path}"] = PlanOut(plan=plan_of(now), pattern=None)
    page = open_view(f"changes/support/{REFUNDS}")
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Approve now").click()

    expect(page.get_by_text("Approve: done").first).to_be_attached()
    assert [(posted.path, posted.body) for posted in console.posted if posted.method == "POST"] == [(path, {})]


def test_a_dismissal_asks_for_its_reason(open_view: Opening, console: FakeConsole) -> None:
    console.answers[f"POST {PAGE}/dismiss"] = PatternOut(pattern=patterns(datetime.now(UTC))[0], plans=[])
    page = open_view(f"changes/support/{REFUNDS}")
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_role("button", name="Dismiss now").click()
    expect(page.get_by_text("Give a reason first")).to_be_visible()
    page.get_by_label("Reason").fill(" known since May ")
    page.get_by_role("button", name="Dismiss now").click()

    expect(page.get_by_text("Dismiss: done").first).to_be_attached()
    assert [posted.body for posted in console.posted if posted.method == "POST"] == [{"reason": "known since May"}]


def test_a_plan_shows_what_it_waits_for(open_view: Opening, console: FakeConsole) -> None:
    waits = PlanOut(plan=plan_of(datetime.now(UTC)), pattern=None, waits_for="no held-out tasks are set")
    console.answers[f"GET /analyst/v1/plans/support/{PLAN}"] = waits
    expect(open_view(f"changes/support/{REFUNDS}").get_by_text("no held-out tasks are set")).to_be_visible()


def test_a_dismissed_pattern_is_opened_again(open_view: Opening, console: FakeConsole) -> None:
    pattern = patterns(datetime.now(UTC))[0]
    dismissed = PatternOut(pattern=replace(pattern, state="dismissed"), plans=[])
    console.answers |= {f"GET {PAGE}": dismissed, f"POST {PAGE}/reopen": PatternOut(pattern=pattern, plans=[])}
    page = open_view(f"changes/support/{REFUNDS}")
    page.get_by_role("button", name="Reopen").click()
    page.get_by_role("button", name="Reopen now").click()

    expect(page.get_by_text("Reopen: done").first).to_be_attached()
    assert [(posted.path, posted.body) for posted in console.posted if posted.method == "POST"] == [
        (f"{PAGE}/reopen", {})
    ]


def test_a_key_without_the_right_cannot_decide(open_view: Opening) -> None:
    page = open_view(f"changes/support/{REFUNDS}", key=VIEWER)
    for name in ("Approve", "Reject", "Dismiss"):
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-disabled", "true")


def test_a_hostile_name_is_text(open_view: Opening) -> None:
    page = open_view(f"changes/support/{HOSTILE}")
    expect(page.get_by_text("tool " + HOSTILE_NAME[:20]).first).to_be_visible()
    expect(page.locator("main img[src]")).to_have_count(0)
    expect(page.get_by_text("‹U+202E›").first).to_be_visible()
    expect(page).not_to_have_title("owned")


def test_an_analyst_that_is_away_is_named_with_what_still_works(open_view: Opening, console: FakeConsole) -> None:
    console.away["analyst"] = "the analyst does not answer"
    expect(open_view("changes").get_by_text("a rollout under way goes on").first).to_be_visible()
