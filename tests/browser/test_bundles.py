"""Bundles: what one changes of calls, beside another version, from the list, a rollout and a call."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from playwright.sync_api import Page, expect

from ratchet.core.contract.bundle import Bundle, BundleModel, Instructions, ToolTexts
from ratchet.core.contract.http.models import ModelsOut
from ratchet.core.contract.http.rollouts import DifferenceOut, RolloutsOut
from ratchet.core.rules.bundles import MOST_BYTES
from tests.browser.conftest import Opening
from tests.support.console_bundles import SERVED, large, model, named, policy
from tests.support.console_rollouts import support
from tests.support.console_trajectories import HOSTILE, IDS
from tests.support.fake_console import FakeConsole

CHANGED = "Refund what is defective within "


def answer(console: FakeConsole, bundle: Bundle) -> None:
    """Version 3 changes this."""
    made = named(bundle, policy(3, datetime.now(UTC)))
    console.answers["GET /deployer/v1/policies/returns/3/bundle"] = made


def lines(page: Page, kind: str) -> list[str]:
    """Lines that came or went in the instructions."""
    return page.get_by_role("table", name="instructions").locator(f"td.{kind}").all_inner_texts()


def test_a_bundles_page_shows_its_parts(open_view: Opening) -> None:
    page = open_view("policies/returns/3")
    parts = page.get_by_role("region", name="What it changes of calls")

    expect(parts.locator("section .row")).to_have_text(
        [
            "who answers openai/small-2",
            "instructions in the place of the agent's; need shop of the request",
            "tool delete_order hidden from the model",
            "tool refund describes the tool, sum",
            "examples 2 messages after the instructions",
            "sampling 2 of its values",
            "response format in place of the agent's: json_object",
        ]
    )
    expect(parts.locator(".placeholder")).to_have_text(["{{variables.shop}}", "{{instructions}}"])
    expect(page.get_by_text("not kept any more")).to_have_count(0)


def test_a_bundle_stands_beside_stable_and_any_version(open_view: Opening) -> None:
    page = open_view("policies/returns/3")
    expect(page.get_by_label("Compared with", exact=True)).to_have_value("2")
    expect(page.get_by_text("The same in both: tool delete_order, tool refund.")).to_be_visible()
    assert lines(page, "gone") == [f"{CHANGED}30 days.", "Ask for the order's number first."]
    assert lines(page, "come") == [f"{CHANGED}60 days, and pay the postage."]
    page.get_by_label("Compared with", exact=True).select_option("version 0, as agents send it (bundle, archived)")

    expect(page).to_have_url(re.compile(r"/returns/3\?with=0$"))
    expect(page.get_by_text("as agents send it → in the place of the agent's")).to_be_visible()
    assert lines(page, "gone") == []


def test_version_0_changes_nothing(open_view: Opening) -> None:
    page = open_view("policies/returns/0")

    expect(page.get_by_text("Nothing: calls go on as agents send them")).to_be_visible()
    expect(page.get_by_label("Compared with", exact=True)).to_have_value("2")


def test_a_narrow_window_stacks_the_texts(open_view: Opening) -> None:
    page = open_view("policies/returns/3", width=400)
    table = page.get_by_role("table", name="instructions")
    gone, come = table.locator("td.gone").first, table.locator("td.come").first
    expect(come).to_be_visible()
    before, after = gone.bounding_box(), come.bounding_box()

    assert before is not None
    assert after is not None
    assert after["y"] >= before["y"] + before["height"]
    assert before["width"] > 250


def test_a_hostile_bundle_is_text_alone(open_view: Opening, console: FakeConsole) -> None:
    tools = {HOSTILE: ToolTexts(description=HOSTILE, parameters={HOSTILE: HOSTILE})}
    model = BundleModel(name=HOSTILE, upstream=HOSTILE)
    answer(console, Bundle(model=model, instructions=Instructions(text=HOSTILE), tools=tools))
    page = open_view("policies/returns/3")

    expect(page.get_by_role("region", name="What it changes of calls")).to_contain_text("<script>alert(1)</script>")
    expect(page.get_by_role("region", name="Compared with another version")).to_contain_text("‹U+202E›")
    assert page.locator("main script, main img").count() == 0


def test_instructions_of_256_kb_stay_usable(open_view: Opening, console: FakeConsole) -> None:
    answer(console, large(MOST_BYTES))
    page = open_view("policies/returns/3")
    page.get_by_role("button", name=re.compile(r"^More of 3,\d+ further lines")).click()

    expect(page.get_by_role("button", name=re.compile(r"^More of 1,\d+ further lines"))).to_be_visible()
    page.get_by_role("button", name=re.compile("show 100k of 258k more letters")).click()
    expect(page.get_by_role("button", name=re.compile("show 100k of 158k more letters"))).to_be_visible()
    page.get_by_label("Compared with", exact=True).select_option("0")
    expect(page).to_have_url(re.compile("with=0"))


def test_one_line_of_256_kb_stays_usable(open_view: Opening, console: FakeConsole) -> None:
    line = "x" * MOST_BYTES
    answer(console, Bundle(instructions=Instructions(text=line)))
    console.answers["GET /deployer/v1/policies/returns/2/bundle"] = named(
        Bundle(instructions=Instructions(text=f"{line} and more")), policy(2, datetime.now(UTC))
    )
    page = open_view("policies/returns/3")

    expect(page.get_by_role("table", name="instructions").locator("td.come")).to_contain_text("show all")
    assert page.evaluate("document.querySelector('table.diff').textContent.length") < 20_000


def test_the_list_names_kinds_and_who_answers(open_view: Opening, console: FakeConsole) -> None:
    now = datetime.now(UTC)
    models = [model(policy(version, now)) for version in (0, 2, 3)]
    console.answers["GET /coordinator/v1/models"] = ModelsOut(models=models)
    page = open_view("policies")

    expect(page.get_by_role("row", name=SERVED[3].name)).to_contain_text("answered by openai/small-2")
    expect(page.get_by_role("row", name=SERVED[2].name)).to_contain_text("names no model")
    expect(page.get_by_role("row", name=SERVED[3].name).get_by_role("link", name="version 2")).to_be_visible()


def test_a_rollouts_bundle_leads_to_the_difference(open_view: Opening, console: FakeConsole) -> None:
    now = datetime.now(UTC)
    rollout = msgspec.structs.replace(support(now), role="returns", candidate=SERVED[3], stable=SERVED[2])
    console.answers["GET /deployer/v1/rollouts"] = RolloutsOut(rollouts=[rollout, support(now)])
    console.answers["GET /deployer/v1/rollouts/returns"] = rollout
    page = open_view("rollouts")
    links = page.get_by_role("link", name="what it changes, beside version 2")
    expect(links).to_have_count(1)
    page.get_by_role("link", name="returns", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rollout of returns")
    links.click()

    expect(page.get_by_role("heading", level=1)).to_have_text("returns, version 3")
    expect(page).to_have_url(re.compile("with=2"))


def test_cost_stands_beside_harm_and_reward(open_view: Opening, console: FakeConsole) -> None:
    rollout = support(datetime.now(UTC))
    cost = DifferenceOut(difference=-0.2, low=-0.31, high=-0.09, margin=0.25)
    whole = msgspec.to_builtins(msgspec.structs.replace(rollout, differences={**rollout.differences, "cost": cost}))
    for arm, mean in (("stable", 0.0041), ("canary", 0.0033)):
        whole["arms"][arm]["cost_usd"] = mean
    console.answers["GET /deployer/v1/rollouts/support"] = whole
    page = open_view("rollouts/support")

    expect(page.get_by_role("row", name="cost", exact=False).first).to_contain_text("−20 %−31 % to −9 %")
    expect(page.get_by_role("row", name="Mean cost")).to_contain_text("$0.0041$0.0033")


def test_a_call_shows_what_the_engine_got(open_view: Opening) -> None:
    page = open_view(f"trajectories/{IDS[1]}?role=support")
    page.get_by_role("button", name="What the engine got").click()
    table = page.get_by_role("table", name="instructions: the agent sent beside the engine got")

    expect(table.locator("td.gone")).to_have_text("Be brief; refund what is defective.")
    expect(table.locator("td.come").first).to_have_text("Be friendly and brief; refund what is defective.")
    expect(table.locator("td.come").last).to_contain_text("<script>alert(1)</script>")
    expect(page.get_by_role("link", name="The policy")).to_have_attribute("href", "#/policies/support/7")
    page.get_by_role("button", name="Tokens").last.click()
    expect(table).to_have_count(0)
