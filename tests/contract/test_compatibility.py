"""Old readers take new messages, and new readers old ones, for every released version."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from ratchet.bus import compatibility
from ratchet.bus.schemas import open_view
from ratchet.core.contract.directory import Release, releases
from tests.support.contract_files import ALL_SCHEMAS, CONTRACTS, ROOT, SCHEMAS, STORED, Example, examples
from tools.record_release import recorded, without_words

RELEASES = releases(ROOT)


def breaks(reader: Any, messages: list[Example]) -> list[str]:
    """The messages that the open view of the schema `reader` refuses."""
    view = jsonschema_rs.Draft202012Validator(open_view(reader), validate_formats=True)
    return [str(message) for message in messages if not view.is_valid(message.document)]


@pytest.mark.parametrize("version", RELEASES)
def test_released_readers_take_the_messages_of_today(version: str) -> None:
    for name, schema in RELEASES[version].schemas.items():
        assert breaks(schema, examples("valid", name)) == []


@pytest.mark.parametrize("version", RELEASES)
def test_readers_of_today_take_released_messages(version: str) -> None:
    for name, messages in RELEASES[version].examples.items():
        assert messages
        assert breaks(ALL_SCHEMAS[name], [Example(name, of, document) for of, document in messages.items()]) == []


@pytest.mark.parametrize("version", RELEASES)
def test_no_released_schema_was_changed_in_a_way_that_breaks_readers_or_writers(version: str) -> None:
    released = RELEASES[version].schemas
    assert {
        name: breaking for name, old in released.items() if (breaking := compatibility.breaks(old, ALL_SCHEMAS[name]))
    } == {}


@pytest.mark.parametrize("version", RELEASES)
def test_released_subjects_are_still_served(version: str) -> None:
    for name, topic in RELEASES[version].topics.items():
        assert set(topic.subjects) <= set(CONTRACTS.topics[name].subjects)
        assert topic.summary in (None, CONTRACTS.topics[name].summary)


@pytest.mark.parametrize("version", RELEASES)
def test_stored_values_keep_their_places_and_schemas(version: str) -> None:
    today = {one.where: one.schema for one in STORED}
    assert RELEASES[version].stored.items() <= today.items()


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_is_complete(version: str) -> None:
    release = RELEASES[version]
    bodies = {topic.schema for topic in release.topics.values()}
    headers = {topic.summary for topic in release.topics.values() if topic.summary is not None}
    named = bodies | headers | {*release.stored.values()}
    assert named == release.schemas.keys() == release.examples.keys()


def test_a_release_recorded_today_holds_every_rule_and_no_word() -> None:
    release = msgspec.json.decode(recorded(ROOT), type=Release)
    assert release.topics.keys() == CONTRACTS.topics.keys()
    assert release.topics["agent.rl.turn.v1"].summary == "turn.summary.v1"
    assert release.stored == {one.where: one.schema for one in STORED}
    for name, schema in ALL_SCHEMAS.items():
        kept = release.schemas[name]
        assert compatibility.breaks(schema, kept) == compatibility.breaks(kept, schema) == []
        assert "description" not in kept
        assert release.examples[name] == {one.name: one.document for one in examples("valid", name)}


def test_a_member_that_is_named_like_a_word_is_recorded() -> None:
    schema = {"title": "A", "properties": {"title": {"type": "string", "description": "B"}}, "enum": [{"title": 1}]}
    assert without_words(schema) == {"properties": {"title": {"type": "string"}}, "enum": [{"title": 1}]}


def test_an_added_optional_member_and_an_added_enum_value_are_compatible() -> None:
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


def test_a_new_required_member_a_renamed_and_a_retyped_one_are_noticed() -> None:
    old = examples("valid", "alert.v1")
    required = copy.deepcopy(SCHEMAS["alert.v1"])
    required["required"].append("url")
    retyped = copy.deepcopy(SCHEMAS["alert.v1"])
    retyped["properties"]["labels"]["type"] = "array"
    assert len(breaks(required, old)) == len(old)
    assert breaks(retyped, old) == ["alert.v1-edge-values", "alert.v1-full"]
    renamed = [Example("alert.v1", "renamed", {**old[0].document, "summary": None})]
    assert breaks(SCHEMAS["alert.v1"], renamed) == ["alert.v1-renamed"]
