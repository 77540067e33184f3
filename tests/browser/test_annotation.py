"""Annotation in the browser, by keys alone: the queue, pairs in a hidden order, agreement."""

from __future__ import annotations

from typing import Any

import msgspec
from playwright.sync_api import expect

from ratchet.core.contract.http.console import PairsOut
from tests.browser.conftest import Opening
from tests.support.console_trajectories import IDS, pair
from tests.support.fake_console import REVIEWER, VIEWER, FakeConsole, Posted, Refused

JUDGEMENTS = "/v1/annotation/judgements"
PAIRS = "annotation?tab=pairs&role=support"
SCROLLED = """() => {
  const box = document.querySelector(".versus").appendChild(document.createElement("pre"));
  Object.assign(box, { tabIndex: 0, textContent: "wide ".repeat(999) });
  Object.assign(box.style, { overflow: "auto", whiteSpace: "pre", width: "200px" });
  box.focus();
}"""


def sent(console: FakeConsole, path: str) -> list[dict[str, Any]]:
    """Bodies that were sent to a path."""
    return [one.body for one in console.posted if one.path == path and one.method == "POST"]


def test_a_queue_is_worked_through_by_keys(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("annotation", key=REVIEWER)
    expect(page.get_by_text("1 of 3 here, 41 of the newest 500 without your rating")).to_be_visible()
    expect(page.locator("#message-4")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("n")
    expect(page.get_by_text("2 of 3 here")).to_be_visible()
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("2")
    expect(page.get_by_text("2 of 5", exact=True)).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_text("1 of 3 here")).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_role("button", name="Bad")).to_have_attribute("aria-pressed", "true")

    given = [
        (one["trajectory_id"], one["kind"], one["value"], one["rater"]) for one in sent(console, "/gateway/v1/feedback")
    ]
    assert given == [
        (IDS[1], "thumbs", True, "rita"),
        (IDS[2], "rating", 2, "rita"),
        (IDS[1], "thumbs", False, "rita"),
    ]


def test_the_end_of_the_queue_asks_for_more(open_view: Opening) -> None:
    page = open_view("annotation")
    expect(page.locator("#message-4")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("n")

    # The queue is asked for again, and begins anew.
    expect(page.get_by_text("1 of 3 here")).to_be_visible()


def test_pairs_are_judged_with_the_arrows(open_view: Opening, console: FakeConsole) -> None:
    def next_pair(_: Posted) -> PairsOut:
        judged = len(sent(console, JUDGEMENTS))
        if judged == 3:
            return PairsOut(pair=None, why="You have judged every pair.")
        return PairsOut(
            pair=msgspec.structs.replace(pair(), pair_id=f"pair-{judged}", task_id=f"number {judged}"), why=None
        )

    console.answers["GET /v1/annotation/pair"] = next_pair
    page = open_view(PAIRS, key=REVIEWER)
    for judged, key in enumerate(("ArrowLeft", "ArrowRight", "0")):
        expect(page.get_by_text(f"Task number {judged}")).to_be_visible()
        page.keyboard.press(key)

    expect(page.get_by_text("You have judged every pair.")).to_be_visible()
    choices = [(one["pair_id"], one["choice"], one["confidence"]) for one in sent(console, JUDGEMENTS)]
    assert choices == [("pair-0", "left", None), ("pair-1", "right", None), ("pair-2", "neither", None)]


def test_pair_whose_texts_changed_is_shown_unjudged(open_view: Opening, console: FakeConsole) -> None:
    def now(_: Posted) -> PairsOut:
        texts = "new" if sent(console, JUDGEMENTS) else "old"
        return PairsOut(pair=msgspec.structs.replace(pair(), digest=texts, task_id=texts), why=None)

    def refuse(_: Posted) -> PairsOut:
        raise Refused(409, "an answer of this pair was reported anew")

    console.answers["GET /v1/annotation/pair"] = now
    console.answers[f"POST {JUDGEMENTS}"] = refuse
    page = open_view(PAIRS)
    expect(page.get_by_text("Task old")).to_be_visible()
    page.keyboard.press("ArrowLeft")

    expect(page.get_by_text("Not given: an answer of this pair was reported anew")).to_be_visible()
    expect(page.get_by_text("Task new")).to_be_visible()
    assert [one["digest"] for one in sent(console, JUDGEMENTS)] == ["old"]


def numbered(number: int) -> PairsOut:
    """That pair of several."""
    return PairsOut(
        pair=msgspec.structs.replace(pair(), pair_id=f"pair-{number}", task_id=f"number {number}"), why=None
    )


def test_a_held_arrow_judges_one_pair_alone(open_view: Opening, console: FakeConsole) -> None:
    console.answers["GET /v1/annotation/pair"] = lambda _: numbered(len(sent(console, JUDGEMENTS)))
    page = open_view(PAIRS)
    expect(page.get_by_text("Task number 0")).to_be_visible()
    page.keyboard.down("ArrowLeft")
    expect(page.get_by_text("Task number 1")).to_be_visible()
    for _ in range(3):
        page.keyboard.down("ArrowLeft")
    page.keyboard.up("ArrowLeft")
    page.keyboard.press("0")

    expect(page.get_by_text("Task number 2")).to_be_visible()
    assert [one["choice"] for one in sent(console, JUDGEMENTS)] == ["left", "neither"]


def test_arrows_that_select_or_scroll_do_not_judge(open_view: Opening, console: FakeConsole) -> None:
    console.answers["GET /v1/annotation/pair"] = lambda _: numbered(len(sent(console, JUDGEMENTS)))
    page = open_view(PAIRS)
    expect(page.get_by_text("Task number 0")).to_be_visible()
    page.keyboard.press("Shift+ArrowRight")
    page.evaluate(SCROLLED)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("0")

    expect(page.get_by_text("Task number 1")).to_be_visible()
    assert [one["choice"] for one in sent(console, JUDGEMENTS)] == ["neither"]


def test_a_pair_that_is_offered_again_waits_for_the_next_one(open_view: Opening, console: FakeConsole) -> None:
    console.answers["GET /v1/annotation/pair"] = numbered(0)
    page = open_view(PAIRS)
    left = page.get_by_role("button", name="Left is better")
    left.click()
    expect(page.get_by_text("The next pair is on its way")).to_be_visible()
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("link", name="Pairs").click()
    expect(page.get_by_text("The next pair is on its way")).to_be_visible()
    page.keyboard.press("ArrowRight")
    console.answers["GET /v1/annotation/pair"] = numbered(1)

    expect(page.get_by_text("Task number 1")).to_be_visible()
    expect(left).to_be_visible()
    assert [one["choice"] for one in sent(console, JUDGEMENTS)] == ["left"]


def test_a_judgement_takes_its_certainty_and_its_reason(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("annotation?tab=pairs&role=support")
    page.get_by_label("How sure").select_option("fairly sure")
    page.get_by_label("Why").fill("it asks first, 0 doubts")
    page.get_by_role("button", name="Right is better").click()
    expect(page.get_by_text("Given: the right answer is better.")).to_be_visible()

    assert sent(console, JUDGEMENTS) == [
        {
            "pair_id": "pair-1",
            "digest": "d" * 64,
            "choice": "right",
            "confidence": 0.75,
            "comment": "it asks first, 0 doubts",
        }
    ]


def test_agreement_names_who_disagrees_more_than_chance_makes(open_view: Opening) -> None:
    page = open_view("annotation?tab=agreement&role=support")

    expect(page.get_by_text("tentative")).to_be_visible()
    row = page.get_by_role("row", name="reviewer-3")
    expect(row).to_contain_text("more than chance makes")
    expect(row).to_contain_text("38 % to 71 %")


def test_pairs_of_no_role_ask_for_one(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("annotation?tab=pairs")
    expect(page.get_by_text("Choose a role")).to_be_visible()
    page.get_by_label("Role").select_option("support")

    expect(page.get_by_role("heading", name="The question")).to_be_visible()
    [asked] = [one for one in console.posted if one.path == "/v1/annotation/pair"]
    assert asked.query == {"role": "support"}


def test_a_key_without_the_scope_is_not_asked_for_opinions(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("annotation", key=VIEWER)

    expect(page.get_by_text("lacks the scope annotate")).to_be_visible()
    assert [one for one in console.posted if one.path.startswith("/v1/annotation")] == []
