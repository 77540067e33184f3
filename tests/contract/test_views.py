"""The open view: consumers of today take messages of newer producers, and still refuse broken ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.bus.schemas import open_view
from ratchet.core.contract import MESSAGES, GatewayNotes
from ratchet.core.errors import InvalidMessage, UnknownSubject
from tests.support.contract_files import (
    ALL_SCHEMAS,
    CONTRACTS,
    SCHEMAS,
    TOPIC_OF,
    example,
    examples,
    fast,
    fast_open,
    with_member,
)

OPENED = {"enum", "additionalProperties"}

each_schema = pytest.mark.parametrize("schema", sorted(ALL_SCHEMAS))
each_message = pytest.mark.parametrize("schema", sorted(SCHEMAS))


def subject_of(schema: str, document: Any) -> str:
    """The subject the document belongs to."""
    return msgspec.convert(document, MESSAGES[TOPIC_OF[schema].name]).subject


@each_schema
def test_the_open_view_lets_only_unknown_members_and_enum_values_pass(schema: str) -> None:
    broken = examples("invalid", schema)
    passed = {one.name for one in broken if fast_open(schema).is_valid(one.document)}
    assert passed == {one.name for one in broken if one.rule in OPENED}


@each_message
def test_unknown_members_are_ignored_and_counted(schema: str) -> None:
    document = example(schema)
    subject = subject_of(schema, document)
    message, unknown = CONTRACTS.read(subject, msgspec.json.encode(document))
    assert unknown == 0
    later = with_member(with_member(document, "added_in_1_1", {"any": "thing"}), "added_in_1_2", None)
    assert not fast(schema).is_valid(later)
    assert CONTRACTS.read(subject, msgspec.json.encode(later)) == (message, 2)


def test_unknown_members_are_counted_at_every_depth() -> None:
    document = example("trajectory.v1")
    document["turns"][0]["action"]["confidence"] = 0.3
    document["turns"][2]["result"]["retries"] = 1
    document["metadata"]["provider"] = "another provider"
    document["metadata"]["region"] = "eu"
    assert CONTRACTS.read("agent.rl.trajectory.v1.helpdesk", msgspec.json.encode(document))[1] == 4


def test_member_that_older_programs_wrote_and_none_set_since_is_ignored() -> None:
    document = with_member(example("model.deployed.v1"), "validation_results.human_eval_score", 0.87)
    assert CONTRACTS.read(subject_of("model.deployed.v1", document), msgspec.json.encode(document))[1] == 1


def test_members_of_free_form_objects_are_not_unknown() -> None:
    document = example("trajectory.v1")
    document["turns"][0]["action"]["tool_args"]["never_seen"] = 1
    document["labels"]["never_seen"] = 1
    assert CONTRACTS.read("agent.rl.trajectory.v1.helpdesk", msgspec.json.encode(document))[1] == 0


def test_an_unknown_enum_value_reaches_the_consumer() -> None:
    document = with_member(example("reward.v1", "minimal"), "reward_type", "shaped")
    message, unknown = CONTRACTS.read("agent.rl.reward.v1", msgspec.json.encode(document))
    assert (message.reward_type, unknown) == ("shaped", 0)


def test_feedback_of_an_unknown_kind_may_carry_any_value() -> None:
    document = with_member(example("feedback.v1"), "kind", "emoji")
    for value in (True, 3, "🙂"):
        body = msgspec.json.encode(with_member(document, "value", value))
        assert CONTRACTS.read("agent.rl.feedback.v1.helpdesk", body)[0].value == value


def test_conditions_hold_in_the_open_view_too() -> None:
    failed = example("training.status.v1", "failed")
    del failed["error"]
    with pytest.raises(InvalidMessage, match="error"):
        CONTRACTS.read("agent.rl.training.status.v1", msgspec.json.encode(failed))


def test_a_condition_is_not_opened() -> None:
    schema = {
        "if": {"properties": {"a": {"enum": [1]}}},
        "then": {"properties": {"b": {"enum": [1], "type": "integer"}}},
    }
    assert open_view(schema) == {"if": schema["if"], "then": {"properties": {"b": {"type": "integer"}}}}


def test_value_that_the_typed_mirror_cannot_hold_is_refused_with_its_place() -> None:
    document = with_member(example("trajectory.v1"), "turns.1.turn_id", 2.0)
    with pytest.raises(InvalidMessage) as refused:
        CONTRACTS.read("agent.rl.trajectory.v1.helpdesk", msgspec.json.encode(document))
    assert refused.value.path == "/turns/1/turn_id"


def test_a_message_on_the_subject_of_another_role_is_refused() -> None:
    body = msgspec.json.encode(example("feedback.v1"))
    for subject in ("agent.rl.feedback.v1", "agent.rl.feedback.v1.other", "agent.rl.feedback.v1.default"):
        with pytest.raises(InvalidMessage, match="belongs to another subject"):
            CONTRACTS.read(subject, body)


def test_a_message_that_breaks_its_schema_is_not_encoded() -> None:
    message = msgspec.convert(example("reward.v1"), MESSAGES[TOPIC_OF["reward.v1"].name])
    with pytest.raises(InvalidMessage) as refused:
        CONTRACTS.check_strict(msgspec.structs.replace(message, total_reward=float("nan")))
    assert refused.value.path == "/total_reward"


def test_a_topic_without_a_schema_is_held_to_its_type() -> None:
    notes = GatewayNotes(process="0" * 32)
    assert CONTRACTS.read(GatewayNotes.TOPIC, CONTRACTS.check_strict(notes)) == (notes, 0)
    with pytest.raises(InvalidMessage, match="matching regex"):
        CONTRACTS.check_strict(msgspec.structs.replace(notes, process="secret"))
    with pytest.raises(InvalidMessage) as refused:
        CONTRACTS.read(GatewayNotes.TOPIC, b'{"process": "secret"}')
    assert (refused.value.path, "secret" in str(refused.value)) == ("/process", False)


def test_a_message_of_no_role_of_ours_has_no_subject() -> None:
    message = msgspec.convert(example("reward.v1"), MESSAGES[TOPIC_OF["reward.v1"].name])
    with pytest.raises(UnknownSubject):
        CONTRACTS.check_strict(msgspec.structs.replace(message, role="Help Desk"))


def test_reasons_do_not_repeat_the_content_of_the_message() -> None:
    document = with_member(example("feedback.v1"), "trajectory_id", "hunter2")
    with pytest.raises(InvalidMessage) as refused:
        CONTRACTS.check_strict_json("agent.rl.feedback.v1", msgspec.json.encode(document))
    assert "hunter2" not in str(refused.value)
    assert (refused.value.path, refused.value.reason) == ("/trajectory_id", 'value is not a "uuid"')
