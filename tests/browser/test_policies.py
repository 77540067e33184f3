"""Policies: down to the people behind one, to a rollout, and two of them side by side."""

from __future__ import annotations

from typing import Any

import msgspec
from playwright.sync_api import expect

from tests.browser.conftest import Opening
from tests.support.fake_console import VIEWER, FakeConsole, Posted, Refused


def test_a_policy_leads_down_to_its_data_and_people(open_view: Opening) -> None:
    page = open_view("policies")
    page.get_by_role("link", name="support@7-9be2d410").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("support, version 7")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("list", name="Where it comes from")).to_contain_text("3,480 trajectories")
    expect(page.get_by_role("row", name="rita")).to_contain_text("84")
    page.get_by_text("As text").click()
    expect(page.get_by_text("# support@7-9be2d410")).to_be_visible()


def test_two_policies_answer_the_same_prompt(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("policies/compare?role=support&left=7")
    page.get_by_label("What a user writes").fill("My parcel came broken.")
    page.get_by_role("button", name="Ask both").first.click()

    expect(page.get_by_role("region", name="Answer of support@7-9be2d410")).to_contain_text("I have refunded")
    expect(page.get_by_role("region", name="Answer of support@6-1f0c77aa")).to_contain_text("send a picture")
    sent = [one.body for one in console.posted if one.path == "/gateway/v1/chat/completions"]
    assert [body["messages"] for body in sent] == [[{"role": "user", "content": "My parcel came broken."}]] * 2


def test_a_prompt_of_an_agent_is_asked_again(open_view: Opening, console: FakeConsole) -> None:
    page = open_view("policies/compare?role=support&left=7")
    page.get_by_text("Or a prompt that an agent of support sent").click()
    page.get_by_role("listitem").filter(has_text="Where is my order").get_by_role("button", name="Ask both").click()

    expect(page.get_by_role("region", name="Answer of support@7-9be2d410")).to_contain_text("I have refunded")
    asked = [one.query for one in console.posted if one.path == "/coordinator/v1/replay/prompts"]
    assert asked == [{"role": "support", "version": "7", "limit": "20"}]


def test_an_engine_that_is_away_is_named_beside_the_other_answer(open_view: Opening, console: FakeConsole) -> None:
    answers = console.answers["POST /gateway/v1/chat/completions"]

    def half(posted: Posted) -> Any:
        if posted.body["model"].startswith("support@6"):
            raise Refused(503, "no engine answers for support@6-1f0c77aa")
        return answers(posted)  # pyright: ignore[reportCallIssue, reportUnknownVariableType] - the scene's is a function

    console.answers["POST /gateway/v1/chat/completions"] = half
    page = open_view("policies/compare?role=support&left=7")
    page.get_by_label("What a user writes").fill("My parcel came broken.")
    page.get_by_role("button", name="Ask both").first.click()

    expect(page.get_by_text("no engine answers for support@6-1f0c77aa")).to_be_visible()
    expect(page.get_by_role("region", name="Answer of support@7-9be2d410")).to_contain_text("I have refunded")


def test_a_viewer_may_neither_call_nor_roll_out(open_view: Opening) -> None:
    page = open_view("policies/compare?role=support&left=7", key=VIEWER)
    page.get_by_label("What a user writes").fill("hello")
    ask = page.get_by_role("button", name="Ask both").first
    expect(ask).to_have_accessible_description("The key “vic” lacks the scope infer.")

    page.goto(page.url.partition("#")[0] + "#/policies")
    roll_out = page.get_by_role("button", name="Roll out").first
    expect(roll_out).to_have_accessible_description("The key “vic” lacks the scope operate.")


def test_a_rollout_starts_from_a_version(open_view: Opening, console: FakeConsole) -> None:
    path = "/deployer/v1/rollouts/triage"
    console.answers[f"POST {path}/start"] = lambda _: console.answers[f"GET {path}"]
    rollouts = console.answers["GET /deployer/v1/rollouts"]
    page = open_view("policies")
    row = page.get_by_role("row", name="triage@3-c41f9b02")
    expect(row.get_by_role("link", name="under way")).to_be_visible()
    expect(row.get_by_role("button")).to_have_count(0)
    console.answers["GET /deployer/v1/rollouts"] = msgspec.structs.replace(rollouts, rollouts=[])  # pyright: ignore[reportArgumentType, reportCallIssue] - the scene's are structs
    page.reload()
    row.get_by_role("button", name="Roll out").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Version")).to_have_value("3")
    dialog.get_by_label("Reason").fill("the new prices")
    dialog.get_by_role("button", name="Show what it would do").click()
    dialog.get_by_role("button", name="Start a rollout now").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Rollout of triage")
    sent = [one.body for one in console.posted if one.method == "POST"]
    assert [(body["version"], body["dry_run"]) for body in sent] == [(3, True), (3, False)]
