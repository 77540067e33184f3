"""Old readers take new messages, and new readers old ones, for every released version."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest

from ratchet.kernel import compatibility
from ratchet.kernel.contracts import Contracts, load_schema, open_view
from tests.support.contract_files import ROOT, SCHEMAS, Example, examples

RELEASED = sorted(path.name for path in (ROOT / "released").iterdir())


def breaks(reader: Any, messages: list[Example]) -> list[str]:
    """Which messages the open view of the schema `reader` does not take."""
    view = jsonschema_rs.Draft202012Validator(open_view(reader), validate_formats=True)
    return [str(message) for message in messages if not view.is_valid(message.document)]


@pytest.mark.parametrize("version", RELEASED)
def test_released_readers_take_the_messages_of_today(version: str):
    root = ROOT / "released" / version
    for topic in Contracts.load(root).topics.values():
        assert breaks(load_schema(root, topic.schema), examples("valid", topic.schema)) == []


@pytest.mark.parametrize("version", RELEASED)
def test_readers_of_today_take_released_messages(version: str):
    root = ROOT / "released" / version
    for topic in Contracts.load(root).topics.values():
        assert breaks(SCHEMAS[topic.schema], examples("valid", topic.schema, root)) == []


@pytest.mark.parametrize("version", RELEASED)
def test_no_released_schema_was_changed_in_a_way_that_breaks_readers_or_writers(version: str):
    root = ROOT / "released" / version
    released = {topic.schema: load_schema(root, topic.schema) for topic in Contracts.load(root).topics.values()}
    assert {name: found for name, old in released.items() if (found := compatibility.breaks(old, SCHEMAS[name]))} == {}


@pytest.mark.parametrize("version", RELEASED)
def test_released_subjects_are_still_served(version: str):
    today = Contracts.load()
    for topic in Contracts.load(ROOT / "released" / version).topics.values():
        assert set(topic.subjects) <= set(today.topics[topic.name].subjects)


def test_an_added_optional_member_and_an_added_enum_value_are_compatible():
    new = copy.deepcopy(SCHEMAS["alert.v1"])
    new["properties"]["url"] = {"type": "string"}
    new["properties"]["severity"]["enum"].append("page")
    written = [
        Example("alert.v1", e.name, {**e.document, "severity": "page", "url": "https://x.example/1"})
        for e in examples("valid", "alert.v1")
    ]
    assert all(jsonschema_rs.Draft202012Validator(new).is_valid(message.document) for message in written)
    assert breaks(SCHEMAS["alert.v1"], written) == []
    assert breaks(new, examples("valid", "alert.v1")) == []


def test_a_new_required_member_a_renamed_and_a_retyped_one_are_noticed():
    old = examples("valid", "alert.v1")
    required = copy.deepcopy(SCHEMAS["alert.v1"])
    required["required"].append("url")
    retyped = copy.deepcopy(SCHEMAS["alert.v1"])
    retyped["properties"]["labels"]["type"] = "array"
    assert len(breaks(required, old)) == len(old)
    assert breaks(retyped, old) == ["alert.v1-edge-values", "alert.v1-full"]
    renamed = [Example("alert.v1", "renamed", {**old[0].document, "summary": None})]
    assert breaks(SCHEMAS["alert.v1"], renamed) == ["alert.v1-renamed"]
