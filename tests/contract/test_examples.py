"""Every published example is valid or invalid as its directory and name promise, by two validators."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.core.contract import MESSAGES, encode
from ratchet.core.errors import InvalidMessage
from tests.support.contract_files import (
    ALL_SCHEMAS,
    CONTRACTS,
    SCHEMAS,
    TOPIC_OF,
    example,
    examples,
    fast,
    oracle,
    subschemas,
)
from tools.contract_schemas import types_of_schemas

TYPES = types_of_schemas()

each_schema = pytest.mark.parametrize("schema", sorted(ALL_SCHEMAS))
each_message = pytest.mark.parametrize("schema", sorted(SCHEMAS))

ELSEWHERE = {
    "turn.v1": {"error"},
    "policy.manifest.v1": {"bundle"},
    "bundle.v1": {"planner"},
    "feedback.v1": {"parent_trajectory_id"},
    "notification.v1": {"report"},
}
"""Members that stand in another example: what failed has no answer, a bundle no weights, a planner nothing else, a
judgement no parent, a report no alerts."""
CONSTRAINTS = {
    *("type", "required", "additionalProperties", "oneOf", "enum", "format", "pattern"),
    *("minLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def _location(error: Any) -> list[str | int]:
    """Where an error is; a missing or an unknown member counts as the place."""
    path = list(error.instance_path)
    if error.kind.name == "required":
        path.append(error.kind.property)
    if error.kind.name == "additionalProperties":
        path.extend(error.kind.unexpected)
    return path


@each_schema
def test_valid_examples_are_valid(schema: str) -> None:
    for one in examples("valid", schema):
        assert list(fast(schema).iter_errors(one.document)) == [], one
        assert list(oracle(schema).iter_errors(one.document)) == [], one


@each_schema
def test_invalid_examples_break_exactly_the_rule_in_their_name(schema: str) -> None:
    for one in examples("invalid", schema):
        errors = list(fast(schema).iter_errors(one.document))
        assert [(_location(error), error.kind.name) for error in errors] == [(one.at, one.rule)], one
        assert [error.validator for error in oracle(schema).iter_errors(one.document)] == [one.rule], one


@each_schema
def test_valid_examples_survive_their_type(schema: str) -> None:
    for valid in examples("valid", schema):
        value = msgspec.json.decode(msgspec.json.encode(valid.document), type=TYPES[schema])
        body = msgspec.json.encode(value)
        assert fast(schema).is_valid(msgspec.json.decode(body)), valid
        assert msgspec.json.decode(body, type=TYPES[schema]) == value, valid


@each_message
def test_valid_messages_pass_the_edge_and_come_back(schema: str) -> None:
    topic = TOPIC_OF[schema]
    for one in examples("valid", schema):
        message = CONTRACTS.check_strict_json(topic.name, msgspec.json.encode(one.document))
        assert type(message) is MESSAGES[topic.name]
        assert CONTRACTS.read(message.subject, CONTRACTS.check_strict(message)) == (message, 0), one


@each_message
def test_invalid_examples_are_refused_at_the_edge_with_the_place(schema: str) -> None:
    embedded = [part for part in SCHEMAS[schema].get("$defs", {}).values() if "$schema" in part]
    parts = [part for one in (SCHEMAS[schema], *embedded) for _, part in subschemas(one)]
    named = {name for part in parts for name in part.get("properties", {})}
    for one in examples("invalid", schema):
        with pytest.raises(InvalidMessage) as refused:
            CONTRACTS.check_strict_json(TOPIC_OF[schema].name, msgspec.json.encode(one.document))
        about_member = one.rule in {"required", "additionalProperties"}
        place = one.at[:-1] if about_member else one.at
        # A sender may choose any name, also a secret one, and the place of an error stands in logs.
        shown = [part if isinstance(part, int) or part in named else "*" for part in place]
        assert refused.value.path == "".join(f"/{part}" for part in shown), one


@each_schema
def test_examples_cover_every_kind_of_constraint(schema: str) -> None:
    checked = [part for path, part in subschemas(ALL_SCHEMAS[schema]) if "/oneOf/" not in path]
    used = {keyword for part in checked for keyword in part} & CONSTRAINTS
    assert used <= {one.rule for one in examples("invalid", schema)}


@each_schema
def test_there_is_a_minimal_and_a_full_example(schema: str) -> None:
    documents = {one.name: one.document for one in examples("valid", schema)}
    (described,) = [
        part for part in (ALL_SCHEMAS[schema], *ALL_SCHEMAS[schema].get("oneOf", [])) if "properties" in part
    ] or [None]
    if described is None:
        assert {"minimal", "full"} <= documents.keys()
        return
    assert set(documents["minimal"]) == set(described.get("required", []))
    assert set(documents["full"]) == set(described["properties"]) - ELSEWHERE.get(schema, set())


def test_encoding_leaves_out_default_values() -> None:
    body = msgspec.json.encode(example("trajectory.v1", "minimal"))
    message = CONTRACTS.check_strict_json("agent.rl.trajectory.v1", body)
    assert b'"role"' not in encode(message)
