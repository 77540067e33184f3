"""Trajectories in the browser: the search, the keyboard, a hostile conversation, tokens, opinions."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect
from starlette.responses import Response

from ratchet.console.domain.hints import Hints, trajectory_hint
from ratchet.core.contract.http.console import HintOut
from tests.browser.conftest import Opening, held
from tests.support.console_trajectories import HOSTILE, IDS, LONG, brief, listing, trajectory
from tests.support.fake_console import VIEWER, FakeConsole, Posted, Refused

ONE = f"trajectories/{IDS[1]}?role=support"
MEGABYTES = 20


def feedback(console: FakeConsole) -> list[Posted]:
    """What was sent as feedback."""
    return [one for one in console.posted if one.path == "/gateway/v1/feedback"]


def test_a_search_stays_in_the_address_and_is_asked_for(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("trajectories")
    expect(page.get_by_label("Text")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("lamp & light")
    page.get_by_label("Outcome").select_option("failure")
    expect(page).to_have_url(re.compile(r"\?text=lamp\+%26\+light&outcome=failure$"))
    page.reload()

    expect(page.get_by_label("Text")).to_have_value("lamp & light")
    expect(page.locator(".loading")).to_have_count(0)
    asked = [one for one in console.posted if one.path == "/v1/trajectories"][-1]
    assert asked.query == {"text": "lamp & light", "outcome": "failure"}


def test_older_trajectories_are_pages_and_the_way_back_is_the_browsers(
    open_view: Opening, console: FakeConsole
) -> None:
    now = datetime.now(UTC)
    first = listing([brief(n, now) for n in range(3)], "cursor-1")
    second = listing([brief(n, now) for n in range(3, 5)], None)
    console.answers["GET /v1/trajectories"] = lambda asked: second if asked.query.get("after") else first
    page = open_view("trajectories")
    page.get_by_role("link", name="Older").click()

    expect(page.get_by_text("there are no older ones")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_a_form_that_cannot_be_asked_names_its_fault(open_view: Opening) -> None:
    page = open_view("trajectories")
    page.get_by_text("Policy, reward, reason").click()
    page.get_by_label("Reward from").fill("0.9")
    page.get_by_label("Reward to").fill("0.1")
    page.keyboard.press("Enter")

    expect(page.get_by_role("alert")).to_have_text("The least reward is above the largest one.")


def test_j_k_and_enter_open_a_row(open_view: Opening) -> None:
    page = open_view("trajectories")
    expect(page.locator("tbody tr")).to_have_count(12)
    for key in ("j", "j", "j", "k", "Enter"):
        page.keyboard.press(key)

    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectory change of address")
    assert IDS[1] in page.url


def test_new_trajectories_are_counted_and_shown_on_demand(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("trajectories")
    expect(page.locator("tbody tr")).to_have_count(12)
    expect(page.locator(".live")).to_have_text("live")
    now = datetime.now(UTC)
    console.answers["GET /v1/trajectories"] = listing([brief(14, now)], None)
    hints = Hints()
    for role in ("support", "triage", "support", "support"):
        hints.add(trajectory_hint(role, now))
    console.hints += hints.take()
    page.get_by_role("button", name="4 new or changed: show").click()

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("button", name="changed")).to_have_count(0)


def test_a_hostile_conversation_is_text_alone(open_view: Opening) -> None:
    page = open_view(ONE)
    message = page.locator("#message-1")
    expect(message).to_contain_text("<script>alert(1)</script><img src=x onerror=alert(2)>")
    expect(message.get_by_title("U+001B")).to_have_count(2)
    expect(message.get_by_title("U+202E")).to_have_text("‹U+202E›")

    assert page.locator("main script, main img").count() == 0


def test_a_long_message_is_shown_on_demand(open_view: Opening) -> None:
    page = open_view(ONE)
    message = page.locator("#message-1")
    message.get_by_role("button", name="show all 5,700 letters").click()

    expect(message).to_contain_text(LONG.strip()[-200:])
    expect(message.get_by_role("button", name="show")).to_have_count(0)


def test_a_message_of_20_mb_comes_in_parts(open_view: Opening, console: FakeConsole) -> None:
    whole = (HOSTILE + "x" * 999)[:1000] * (1000 * MEGABYTES)

    def answer(_: object) -> Response:
        return Response(whole, media_type="text/plain")

    now = datetime.now(UTC)
    one = trajectory(brief(1, now), now)
    long = msgspec.structs.replace(one.messages[1], text=whole[:20_000], letters=len(whole))
    console.answers[f"GET /v1/trajectories/{IDS[1]}"] = msgspec.structs.replace(one, messages=[long])
    console.answers[f"GET /v1/trajectories/{IDS[1]}/messages/1"] = answer
    page = open_view(ONE)
    message = page.locator("#message-1")
    message.get_by_role("button", name="show 100k of 20M more letters").click()

    expect(message.get_by_role("button", name="show 100k of 19.9M more letters")).to_be_visible()
    assert 100_000 < page.evaluate("document.querySelector('#message-1').textContent.length") < 200_000
    page.get_by_role("link", name="All trajectories").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectories")


def test_tokens_say_how_likely_they_were_and_what_learns(open_view: Opening) -> None:
    page = open_view(ONE)
    page.get_by_role("button", name="Tokens").last.click()
    drawn = page.locator(".drawn .token")
    expect(drawn).to_have_count(14)
    expect(page.get_by_text("14 tokens; 13 learn; mean log-probability")).to_be_visible()
    expect(drawn.nth(9)).to_have_attribute("data-likely", "surprising")
    expect(drawn.nth(13)).to_have_attribute("title", "id 313, log-probability -0.01, 99 %, does not learn")
    page.get_by_role("button", name="As a table").click()

    expect(page.get_by_role("table", name="Tokens of this answer").locator("tbody tr")).to_have_count(14)


def test_rewards_reasons_and_the_run_are_in_words(open_view: Opening) -> None:
    page = open_view(ONE)

    expect(page.get_by_text("user feedback is known now: 1; the total changed by +0.02")).to_be_visible()
    expect(page.get_by_text("weighs 60 %, by outcome")).to_be_visible()
    expect(page.get_by_text("Set a temperature above 0 where a run is to teach.")).to_be_visible()
    expect(page.get_by_text("1 of 3 calls learn")).to_be_visible()
    page.get_by_role("link", name="sorter").click()
    expect(page).to_have_url(re.compile(IDS[3]))


def test_thumbs_and_stars_by_key_reach_the_gateway_with_the_persons_name(
    open_view: Opening, console: FakeConsole
) -> None:
    page = open_view(ONE)
    expect(page.get_by_role("button", name="Good")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("d")
    expect(page.get_by_role("button", name="Bad")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("4")
    expect(page.get_by_text("4 of 5", exact=True)).to_be_visible()

    sent = [one.body for one in feedback(console)]
    known = {"trajectory_id": IDS[1], "role": "support", "source": "console", "rater": "ada"}
    assert sent == [
        {**known, "kind": "thumbs", "value": True},
        {**known, "kind": "thumbs", "value": False},
        {**known, "kind": "rating", "value": 4},
    ]


def test_a_rating_is_sent_once_while_it_is_under_way(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(ONE)
    waiting = held(page, "**/gateway/v1/feedback")
    expect(page.get_by_role("button", name="Good")).to_be_visible()
    page.keyboard.down("u")
    page.keyboard.down("u")
    page.keyboard.up("u")
    page.keyboard.press("d")
    expect(_notes(page)).to_contain_text("the one before is still being sent")
    waiting[0].continue_()
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")

    assert [one.body["value"] for one in feedback(console)] == [True]
    assert len(waiting) == 1


def test_the_same_id_in_another_role_is_another_trajectory(open_view: Opening) -> None:
    triage = f"trajectories/{IDS[1]}?role=triage"
    page = open_view(triage)
    expect(page.get_by_role("button", name="Good")).to_be_visible()
    page.evaluate(f"location.hash = '#/{ONE}'")
    expect(page).to_have_url(re.compile("support"))
    page.get_by_role("button", name="Good").click()
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    page.evaluate(f"location.hash = '#/{triage}'")

    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "false")


def test_a_run_marks_the_part_of_this_role_alone(open_view: Opening, console: FakeConsole) -> None:
    now = datetime.now(UTC)
    one = trajectory(brief(1, now), now)
    twin = msgspec.structs.replace(one.run[1], trajectory_id=IDS[1])
    console.answers[f"GET /v1/trajectories/{IDS[1]}"] = msgspec.structs.replace(one, run=[one.run[0], twin])
    page = open_view(ONE)

    expect(page.locator(".tree [aria-current]")).to_have_count(1)
    expect(page.get_by_role("link", name="sorter")).to_be_visible()


def test_a_comment_and_a_correction_are_written(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(ONE)
    expect(page.get_by_role("button", name="Comment")).to_be_visible()
    page.keyboard.press("c")
    # Keys rest while one writes.
    page.get_by_label("What you think of it").fill("dubious, 1 u")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Correct the answer").click()
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("change it to what it should be")
    page.get_by_label("What the answer should have been").fill("I have refunded 39.90.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    sent = [(one.body["kind"], one.body["value"]) for one in feedback(console)]
    assert sent == [("comment", "dubious, 1 u"), ("correction", "I have refunded 39.90.")]


def test_what_the_gateway_refuses_is_shown_and_nothing_is_marked(open_view: Opening, console: FakeConsole) -> None:
    def refuse(_: Posted) -> None:
        raise Refused(503, "the gateway has no room for feedback")

    console.answers["POST /gateway/v1/feedback"] = refuse
    page = open_view(ONE)
    page.get_by_role("button", name="Good").click()

    expect(page.get_by_text("Not given: the gateway has no room for feedback")).to_be_visible()
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "false")


@pytest.mark.parametrize("key", ["u", "c", "5"])
def test_a_key_without_the_scope_rates_nothing_and_reads_why(
    open_view: Opening, console: FakeConsole, key: str
) -> None:
    page = open_view(ONE, key=VIEWER)
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press(key)

    expect(_notes(page)).to_contain_text("lacks the scope annotate")
    assert feedback(console) == []


def _notes(page: Page) -> Locator:
    return page.locator(".notes")


def test_an_outage_keeps_the_conversation(open_view: Opening, console: FakeConsole) -> None:
    page = open_view(ONE)
    expect(page.locator("#message-4")).to_be_visible()
    console.away["v1"] = "ClickHouse is away: connection refused"
    console.hints.append(
        HintOut(kind="reward", role="support", subject=IDS[1], at=datetime.now(UTC), text="a reward came", count=1)
    )

    expect(page.get_by_text("ClickHouse is away: connection refused")).to_be_visible()
    expect(page.locator("#message-4")).to_be_visible()
    console.away.clear()
    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_text("ClickHouse is away")).to_have_count(0)
