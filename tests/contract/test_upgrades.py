"""Two versions of one topic beside each other: readers of the new one get the old one upgraded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ratchet.bus.contracts import Contracts, Upgrade, older_versions, upgrade_path
from ratchet.core.contract import MESSAGES, Feedback
from ratchet.core.errors import ConfigError, InvalidMessage, UnknownSubject
from ratchet.core.service.contracts import UPGRADES
from tests.support.contract_files import CONTRACTS, ROOT, SCHEMAS, SUMMARIES, example, with_member
from tests.support.second_version import V1, V2, FeedbackV2, contracts

BOTH = contracts()
CHAIN = {"a.v1": Upgrade("a.v2", lambda body: body), "a.v2": Upgrade("a.v3", lambda body: body)}


def body(**changes: Any) -> bytes:
    """Feedback of the role `helpdesk` in the first version."""
    document = {**example("feedback.v1", "rating"), "role": "helpdesk", **changes}
    return msgspec.json.encode(document)


def test_a_reader_of_the_second_version_gets_the_first_one_upgraded() -> None:
    reading = BOTH.read_as(f"{V1}.helpdesk", body(value=4), {V2})
    assert isinstance(reading.message, FeedbackV2)
    assert (reading.message.score, reading.message.role, reading.unknown) == (0.8, "helpdesk", 0)
    assert msgspec.json.decode(reading.body, type=FeedbackV2) == reading.message


def test_the_event_stays_the_same_one() -> None:
    old, _ = BOTH.read(f"{V1}.helpdesk", body())
    assert BOTH.read_as(f"{V1}.helpdesk", body(), {V2}).message.event_id == old.event_id


@pytest.mark.parametrize("topics", [(), (V1,), (V1, V2), ("agent.rl.alert.v1",)])
def test_other_readers_get_the_first_version_as_it_is(topics: tuple[str, ...]) -> None:
    reading = BOTH.read_as(f"{V1}.helpdesk", body(), topics)
    assert isinstance(reading.message, Feedback)
    assert reading.body == body()


def test_only_readers_of_the_second_version_alone_ask_the_broker_for_both() -> None:
    first, second = [V1, f"{V1}.*"], [V2, f"{V2}.*"]
    assert BOTH.filters([V2]) == [*second, *first]
    assert BOTH.filters([V1]) == first
    assert BOTH.filters([V1, V2]) == [*first, *second]


def test_an_older_release_does_not_know_the_second_version() -> None:
    with pytest.raises(UnknownSubject):
        CONTRACTS.topic_of(V2)


def test_a_body_that_cannot_be_upgraded_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidMessage, match=r"cannot be upgraded to agent\.rl\.feedback\.v2: KeyError"):
        BOTH.read_as(f"{V1}.helpdesk", body(kind="comment", value="nice"), {V2})


def test_an_upgrade_that_breaks_the_newer_schema_is_refused_with_its_place() -> None:
    wrong = Contracts(
        document_of_both(), schemas_of_both(), {**MESSAGES, V2: FeedbackV2}, {V1: Upgrade(V2, lambda old: old)}
    )
    with pytest.raises(InvalidMessage, match="score"):
        wrong.read_as(f"{V1}.helpdesk", body(), {V2})


def test_the_role_must_fit_the_subject_after_an_upgrade_too() -> None:
    with pytest.raises(InvalidMessage, match="belongs to another subject"):
        BOTH.read_as(f"{V1}.billing", body(), {V2})


def test_an_older_message_must_keep_its_own_schema_first() -> None:
    broken = with_member(json.loads(body()), "trajectory_id", "no-uuid")
    with pytest.raises(InvalidMessage, match="/trajectory_id"):
        BOTH.read_as(f"{V1}.helpdesk", msgspec.json.encode(broken), {V2})


def document_of_both() -> Any:
    document = json.loads((ROOT / "topics.json").read_text())
    document["topics"][V2] = {**document["topics"][V1], "subjects": [V2, f"{V2}.<role>"], "schema": "feedback.v2"}
    document["streams"]["RL_FEEDBACK"]["subjects"] += [V2, f"{V2}.*"]
    return document


def schemas_of_both() -> Any:
    return {**SCHEMAS, **SUMMARIES, "feedback.v2": {"type": "object", "required": ["score"]}}


@pytest.mark.parametrize(
    ("steps", "circle"),
    [({V1: V2, V2: V1}, f"{V1}, {V2}, {V1}"), ({V1: V1}, f"{V1}, {V1}")],
)
def test_upgrades_in_a_circle_are_refused(steps: dict[str, str], circle: str) -> None:
    upgrades = {older: Upgrade(newer, lambda old: old) for older, newer in steps.items()}
    with pytest.raises(ConfigError, match=f"upgrades go in a circle: {circle}"):
        Contracts(document_of_both(), schemas_of_both(), {**MESSAGES, V2: FeedbackV2}, upgrades)


def test_two_versions_in_different_streams_are_refused() -> None:
    document = document_of_both()
    document["topics"][V2]["stream"] = "RL_ALERTS"
    document["streams"]["RL_ALERTS"]["subjects"] += [V2, f"{V2}.*"]
    with pytest.raises(ConfigError, match="different streams"):
        Contracts(document, schemas_of_both(), {**MESSAGES, V2: FeedbackV2}, {V1: Upgrade(V2, lambda old: old)})


@pytest.mark.parametrize(
    ("topic", "topics", "steps"),
    [
        ("a.v1", {"a.v3"}, ["a.v2", "a.v3"]),
        ("a.v1", {"a.v2", "a.v3"}, ["a.v2"]),
        ("a.v2", {"a.v3"}, ["a.v3"]),
        ("a.v3", {"a.v3"}, []),
        ("a.v3", {"a.v1"}, []),
        ("b.v1", {"a.v3"}, []),
    ],
)
def test_upgrades_follow_one_another(topic: str, topics: set[str], steps: list[str]) -> None:
    assert [step.to for step in upgrade_path(CHAIN, topic, topics)] == steps


def test_older_versions_of_a_topic_are_listed_newest_first() -> None:
    assert list(older_versions(CHAIN, "a.v3")) == ["a.v2", "a.v1"]


def test_every_upgrade_of_the_product_joins_two_of_its_topics() -> None:
    assert all({older, upgrade.to} <= set(CONTRACTS.topics) for older, upgrade in UPGRADES.items())
