"""Bundles in words: a line for each part, and what differs."""

from __future__ import annotations

from ratchet.core.contract.bundle import (
    NO_BUNDLE,
    Bundle,
    BundleModel,
    Example,
    Instructions,
    SamplingValues,
    ToolTexts,
)
from ratchet.core.rules.bundle_parts import changes, parts_of

BEFORE = Bundle(
    instructions=Instructions(text="Be kind.\nBe brief.\n"),
    tools={"refund": ToolTexts(description="Pays back.", parameters={"order": "Its number."})},
    overrides=SamplingValues(temperature=1.0),
)
AFTER = Bundle(
    model=BundleModel(upstream="openai", name="small"),
    instructions=Instructions(text="Be kind.\nBe right.\n", mode="append", variables=()),
    tools={"refund": ToolTexts(hidden=True)},
    examples=(Example(role="user", content="Hi"), Example(role="assistant", content="Hello")),
    defaults=SamplingValues(seed=1),
    overrides=SamplingValues(temperature=0.2),
    response_format={"type": "json_object"},
)


def test_each_part_has_a_line() -> None:
    assert {name: part.words for name, part in parts_of(AFTER).items()} == {
        "model": "openai/small",
        "instructions": "after the agent's",
        "tool refund": "hidden from the model",
        "examples": "2 messages after the instructions",
        "seed unless the agent sets it": "1",
        "temperature whatever the agent sets": "0.2",
        "response format": "json_object",
    }


def test_a_difference_names_the_parts_that_differ() -> None:
    differing = {change.part: change.words for change in changes(BEFORE, AFTER)}
    assert differing["instructions"] == "in the place of the agent's -> after the agent's (+1 -1 lines)"
    assert differing["temperature whatever the agent sets"] == "1.0 -> 0.2"
    assert differing["model"] == "added: openai/small"
    assert differing["tool refund"] == "describes the tool, order -> hidden from the model (+0 -2 lines)"


def test_a_difference_of_texts_is_by_lines() -> None:
    instructions = next(change for change in changes(BEFORE, AFTER) if change.part == "instructions")
    assert instructions.diff[3:] == (" Be kind.", "-Be brief.", "+Be right.")


def test_what_is_gone_is_removed() -> None:
    assert {change.words.split(" (")[0] for change in changes(BEFORE, NO_BUNDLE)} == {"removed"}
    assert changes(BEFORE, BEFORE) == []


def test_a_line_end_is_a_difference() -> None:
    one, other = (Bundle(instructions=Instructions(text=text)) for text in ("Hi", "Hi\n"))
    assert changes(one, other)[0].words == "in the place of the agent's (only line ends differ)"
