"""Old readers take new messages, and new readers old ones, for every released version."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from ratchet.bus import compatibility
from ratchet.bus.schemas import open_view
from ratchet.core.contract.directory import Release, ReleasedTopic, releases
from tests.support.contract_files import ALL_SCHEMAS, CONTRACTS, ROOT, STORED, TOPIC_OF, Example, examples
from tests.support.pages import ROOT as REPOSITORY
from tests.support.released import recorded_versions
from tools.record_release import record, recorded, without_words
from tools.release import notes

RECORDED = msgspec.json.decode(recorded(ROOT), type=Release)
"""The contracts of today, as if they had been released."""


def breaks(reader: Any, messages: list[Example]) -> list[str]:
    """The messages that the open view of the schema `reader` refuses."""
    view = jsonschema_rs.Draft202012Validator(open_view(reader), validate_formats=True)
    return [str(message) for message in messages if not view.is_valid(message.document)]


def faults(release: Release) -> list[str]:
    """What the contracts of today break of a release."""
    named = {topic.schema for topic in release.topics.values()} | {*release.stored.values()}
    named |= {topic.summary for topic in release.topics.values() if topic.summary is not None}
    if not named == release.schemas.keys() == release.examples.keys():
        return ["the release is not complete"]
    problems: list[str] = []
    for name, old in release.schemas.items():
        if name not in ALL_SCHEMAS:
            problems.append(f"{name} is gone")
            continue
        released = [Example(name, of, document) for of, document in release.examples[name].items()]
        problems += [f"{name}{change.path} {change.what}" for change in compatibility.breaks(old, ALL_SCHEMAS[name])]
        problems += [f"a reader of the release refuses {message}" for message in breaks(old, examples("valid", name))]
        problems += [f"a reader of today refuses {message}" for message in breaks(ALL_SCHEMAS[name], released)]
    for name, topic in release.topics.items():
        today = CONTRACTS.topics.get(name)
        if (
            today is None
            or not set(topic.subjects) <= set(today.subjects)
            or topic.summary not in (None, today.summary)
        ):
            problems.append(f"{name} is not served as it was")
    places = {kind.where: kind.schema for kind in STORED}
    return problems + [
        f"{where} holds something else" for where in release.stored if places.get(where) != release.stored[where]
    ]


def test_contracts_keep_what_was_released() -> None:
    assert {version: faults(release) for version, release in releases(ROOT).items() if faults(release)} == {}


@pytest.mark.parametrize("version", [version for version in recorded_versions() if not notes(REPOSITORY, version)])
def test_record_of_a_version_without_a_date_is_that_of_today(version: str) -> None:
    changed = [
        folder for folder, text in record().items() if (REPOSITORY / folder / f"{version}.json").read_text() != text
    ]
    assert changed == [], f"record it anew, for it is not released yet: python -m tools.record_release {version}"


def test_faults_are_none_of_a_release_of_today() -> None:
    assert faults(RECORDED) == []


def changed(schema: str, **members: Any) -> Release:
    """A made-up release whose `schema` had other members than today's."""
    return msgspec.structs.replace(
        RECORDED, schemas={**RECORDED.schemas, schema: {**RECORDED.schemas[schema], **members}}
    )


ALERT = RECORDED.schemas["alert.v1"]
MADE_UP = {
    "member_is_gone": (
        changed("alert.v1", properties={**ALERT["properties"], "pager": {"type": "string"}}),
        "alert.v1/pager was removed",
    ),
    "member_became_required": (
        changed("alert.v1", required=ALERT["required"][1:]),
        f"alert.v1/{ALERT['required'][0]} became required",
    ),
    "reader_refuses_what_is_written": (
        changed("alert.v1", required=[*ALERT["required"], "pager"]),
        "a reader of the release refuses alert.v1-minimal",
    ),
    "reader_of_today_refuses_what_was_written": (
        msgspec.structs.replace(RECORDED, examples={**RECORDED.examples, "alert.v1": {"old": {"summary": 1}}}),
        "a reader of today refuses alert.v1-old",
    ),
    "subject_is_not_served": (
        msgspec.structs.replace(
            RECORDED, topics={**RECORDED.topics, "agent.rl.alert.v1": ReleasedTopic(["x.v1"], "alert.v1")}
        ),
        "agent.rl.alert.v1 is not served as it was",
    ),
    "stored_value_moved": (
        msgspec.structs.replace(RECORDED, stored={**RECORDED.stored, "bucket old, key <role>": "alert.v1"}),
        "bucket old, key <role> holds something else",
    ),
    "release_is_not_complete": (msgspec.structs.replace(RECORDED, examples={}), "the release is not complete"),
}


@pytest.mark.parametrize("case", MADE_UP)
def test_faults_names_what_breaks_a_made_up_release(case: str) -> None:
    release, fault = MADE_UP[case]
    assert fault in faults(release)


def test_a_release_recorded_today_holds_every_rule_and_no_word() -> None:
    release = RECORDED
    assert release.topics.keys() == {topic.name for topic in TOPIC_OF.values()}
    assert release.topics["agent.rl.turn.v1"].summary == "turn.summary.v1"
    assert release.stored == {one.where: one.schema for one in STORED}
    for name, schema in ALL_SCHEMAS.items():
        kept = release.schemas[name]
        assert compatibility.breaks(schema, kept) == compatibility.breaks(kept, schema) == []
        assert "description" not in kept
        assert release.examples[name] == {example.name: example.document for example in examples("valid", name)}


def test_a_member_that_is_named_like_a_word_is_recorded() -> None:
    schema = {"title": "A", "properties": {"title": {"type": "string", "description": "B"}}, "enum": [{"title": 1}]}
    assert without_words(schema) == {"properties": {"title": {"type": "string"}}, "enum": [{"title": 1}]}
