"""What a bundle may say, and how its instructions are expanded."""

from __future__ import annotations

import pytest

from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, Example, Instructions, ToolTexts
from ratchet.core.errors import Rejected
from ratchet.core.rules.bundles import MOST_BYTES, MissingVariable, check_bundle, template_of


def _template(text: str, *variables: str) -> Instructions:
    return Instructions(text=text, variables=variables)


def test_a_template_holds_what_the_agent_sent_and_variables() -> None:
    template = template_of(_template("For {{variables.shop}}: {{ instructions }}!", "shop"))
    assert template.expanded("be kind", {"shop": "Acme"}) == "For Acme: be kind!"


def test_a_template_is_expanded_once() -> None:
    template = template_of(_template("{{instructions}} {{variables.shop}}", "shop"))
    sent, shop = "say {{variables.shop}}", "{{instructions}}"
    assert template.expanded(sent, {"shop": shop}) == f"{sent} {shop}"


@pytest.mark.parametrize("given", [{}, {"shop": None}, {"shop": True}, {"shop": ["Acme"]}, {"shop": "x" * 5000}])
def test_a_request_without_a_usable_variable_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(MissingVariable, match="shop") as caught:
        template_of(_template("{{variables.shop}}", "shop")).expanded("", given)
    assert caught.value.param == "ratchet_variables.shop"


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        (_template("{{secret}}"), "neither"),
        (_template("{{variables.shop}}"), "does not declare"),
        (_template("hello", "shop"), "do not use"),
        (_template("{{instructions}}" * 3), "2 of them"),
        (_template("{{variables.a}}" * 101, "a"), "at most 100"),
        (_template("{{instructions}"), None),
        (_template("{" * 200_000), None),
    ],
)
def test_a_template_names_only_what_something_fills(instructions: Instructions, words: str | None) -> None:
    if words is None:
        assert template_of(instructions).names == ()
    else:
        with pytest.raises(Rejected, match=words):
            template_of(instructions)


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (NO_BUNDLE, "changes nothing"),
        (Bundle(instructions=Instructions(text="x" * MOST_BYTES)), "bytes"),
        (Bundle(examples=(Example(role="user", content="hi"),)), "last example"),
        (Bundle(instructions=Instructions(text="x", mode="before")), "'before' is no mode"),
        (Bundle(instructions=_template("{{variables.a b}}", "a b")), "'a b' is no variable's name"),
        (Bundle(examples=(Example(role="tool", content="hi"),)), "alone"),
        (Bundle(tools={" ": ToolTexts(hidden=True)}), "no name"),
        (Bundle(response_format={"type": "json_schema", "json_schema": "x"}), "is an object"),
        (Bundle(model=BundleModel(name="small")), "by its `digest`"),
        (Bundle(model=BundleModel(name="small", upstream="openai", digest="0" * 64)), "not both"),
    ],
)
def test_a_bundle_that_could_answer_no_call_is_refused(bundle: Bundle, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        check_bundle(bundle)
