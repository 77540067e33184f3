"""Both views of a schema quote no message, and the open one takes what the strict one takes, whatever the keywords."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ratchet.bus.schemas import SCHEMA_ID, Json, Schema, load_schema, open_view
from ratchet.core.errors import ConfigError, InvalidMessage, Rejected

SECRET = "sk-hunter2"
NODE = {"properties": {"child": {"$ref": "#/$defs/node"}, "kind": {"enum": ["x"]}}, "additionalProperties": False}


def closed(name: str) -> Json:
    return {"properties": {name: {}}, "required": [name], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {}}, "additionalProperties": False}, "1 unknown members are not allowed"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, "1 unknown members are not allowed"),
        ({"propertyNames": {"pattern": "^[a-z]$"}}, 'a member\'s name is refused: value does not match "^[a-z]$"'),
        ({"propertyNames": {"enum": ["a"]}}, 'a member\'s name is refused: value is not one of "a"'),
        ({"additionalProperties": {"type": "string"}}, 'value is not of type "string"'),
    ],
)
def test_a_reason_names_no_member_that_the_sender_named(schema: Json, reason: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        Schema(schema).check_strict({SECRET: 1})
    assert refused.value.reason == reason
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"definitions": {"d": {"enum": ["x"]}}, "properties": {"a": {"$ref": "#/definitions/d"}}}, {"a": "new"}),
        ({"properties": {"a": {"contains": {"enum": ["x"]}}}}, {"a": ["new"]}),
        ({"propertyNames": {"enum": ["x"]}}, {"new": 1}),
        ({"dependentSchemas": {"a": {"properties": {"b": {"enum": ["x"]}}}}}, {"a": 1, "b": "new"}),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1, "new": 2}),
        ({"properties": {"a": {"oneOf": [{"enum": ["x"]}, {"enum": ["y"]}]}}}, {"a": "new"}),
        ({"oneOf": [closed("a"), closed("b")]}, {"a": 1, "new": 2}),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, {"child": {"child": {"kind": "new", "more": 1}}}),
    ],
)
def test_no_closed_part_stays_closed_in_the_open_view(schema: Json, document: Any) -> None:
    views = Schema(schema)
    with pytest.raises(InvalidMessage):
        views.check_strict(document)
    views.check_open(document)


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"properties": {"a": {"oneOf": [{"enum": ["x"]}, {"enum": ["y"]}]}}}, {"a": "x"}),
        ({"oneOf": [closed("a"), closed("b")], "allOf": [{"required": ["b"]}]}, {"b": 1}),
        ({"not": {"enum": ["x"]}}, "y"),
        ({"not": {"properties": {"a": {"enum": ["x"]}}}}, {"a": "y"}),
        ({"if": {"properties": {"a": {"enum": ["x"]}}}, "then": {"required": ["b"]}}, {"a": "y"}),
    ],
)
def test_the_open_view_refuses_nothing_that_the_strict_one_takes(schema: Json, document: Any) -> None:
    Schema(schema).check_strict(document)
    assert jsonschema_rs.Draft202012Validator(open_view(schema)).is_valid(document)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"contains": {"enum": ["x"]}, "maxContains": 1}, "cannot keep `maxContains`"),
        ({"$defs": {"d": {"enum": ["x"]}}, "not": {"$ref": "#/$defs/d"}}, "`not` refers to another schema"),
        ({"items": {"if": {"anyOf": [{"$dynamicRef": "#d"}]}}, "$defs": {"d": {"$dynamicAnchor": "d"}}}, "`if` refers"),
        ({"parts": {"d": {"enum": ["x"]}}, "items": {"$ref": "#/parts/d"}}, "#/parts/d leads where"),
        ({"if": {"enum": ["x"]}, "items": {"$ref": "#/if"}}, "#/if leads where"),
        ({"oneOf": [{"enum": ["x"]}], "items": {"$ref": "#/oneOf/0"}}, "not a JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_opened_is_refused_in_words(schema: Json, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        Schema(schema)
    assert reason in str(refused.value)


def test_members_may_be_named_like_keywords() -> None:
    properties = {name: {"type": "integer"} for name in ("if", "not", "maxContains", "oneOf", "$ref", "enum")}
    assert Schema({"properties": properties, "additionalProperties": False}).check_open({"if": 1, "new": 2}) == 1


@pytest.mark.parametrize(
    ("references", "circle"),
    [({"a.v1": "a.v1"}, "a.v1, a.v1"), ({"a.v1": "b.v1", "b.v1": "c.v1", "c.v1": "b.v1"}, "a.v1, b.v1, c.v1, b.v1")],
)
def test_schemas_that_refer_to_one_another_are_refused(tmp_path: Path, references: dict[str, str], circle: str) -> None:
    (tmp_path / "schemas").mkdir()
    for name, other in references.items():
        schema = {"$id": SCHEMA_ID + name, "properties": {"x": {"$ref": SCHEMA_ID + other}}}
        (tmp_path / "schemas" / f"{name}.schema.json").write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match=f"in a circle: {circle}"):
        load_schema(tmp_path, "a.v1")
