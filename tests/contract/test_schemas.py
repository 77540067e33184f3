"""The schemas themselves: valid, closed, described, and free of constructs that the open view does not know."""

from __future__ import annotations

import json

import jsonschema
import pytest

from ratchet.bus.schemas import with_references
from ratchet.core.contract import MESSAGES, GatewayNotes
from ratchet.core.errors import ConfigError
from tests.support.contract_files import ALL_SCHEMAS, ROOT, SCHEMAS, STORED, SUMMARIES, subschemas

KEYWORDS = {
    *("$schema", "$id", "$defs", "$ref", "title", "description", "default", "examples", "contentEncoding"),
    *("type", "properties", "required", "additionalProperties", "items", "oneOf", "allOf", "if", "then", "enum"),
    *("const", "format", "pattern", "minLength", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}

each_schema = pytest.mark.parametrize("name", sorted(ALL_SCHEMAS))


def test_every_message_type_has_a_schema_and_every_schema_a_message_type() -> None:
    files = {file.name for file in (ROOT / "schemas" / "agent-rl").iterdir()}
    assert files == {f"{name}.schema.json" for name in SCHEMAS}
    assert {f"agent.rl.{name}" for name in SCHEMAS} == set(MESSAGES) - {GatewayNotes.TOPIC}


@pytest.mark.parametrize(
    ("folder", "places"),
    [
        ("state", "bucket "),
        ("manifests", "object "),
        ("rows", "object snapshots/<sha256>.parquet"),
        ("files", "file "),
        ("webhooks", "webhook "),
    ],
)
def test_every_schema_of_a_stored_value_is_in_the_folder_of_its_kind(folder: str, places: str) -> None:
    named = {
        one.schema for one in STORED if one.where.startswith(places) and (folder == "rows") == ("rows" in one.where)
    }
    assert {file.name for file in (ROOT / "schemas" / folder).iterdir()} == {f"{name}.schema.json" for name in named}


def test_every_schema_of_a_header_is_a_topics_summary() -> None:
    assert {file.name for file in (ROOT / "schemas" / "headers").iterdir()} == {
        f"{summary}.schema.json" for summary in SUMMARIES
    }


@each_schema
def test_a_schema_is_valid_and_named_after_its_file(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(ALL_SCHEMAS[name])
    assert ALL_SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert ALL_SCHEMAS[name]["$id"] == f"urn:ratchet:schema:{name}"


@each_schema
def test_only_keywords_that_the_open_view_knows_are_used(name: str) -> None:
    for path, schema in subschemas(ALL_SCHEMAS[name]):
        assert set(schema) <= KEYWORDS, path


@each_schema
def test_objects_declare_whether_they_are_closed(name: str) -> None:
    for path, schema in subschemas(ALL_SCHEMAS[name]):
        if "properties" in schema and "/then" not in path and "/if" not in path:
            assert "additionalProperties" in schema, path
            assert schema.get("type") in ("object", ["object", "null"]), path


@each_schema
def test_required_members_exist(name: str) -> None:
    for path, schema in subschemas(ALL_SCHEMAS[name]):
        if "properties" in schema:
            assert set(schema.get("required", [])) <= set(schema["properties"]), path


@each_schema
def test_enums_and_formats_keep_a_type_when_they_are_opened(name: str) -> None:
    for path, schema in subschemas(ALL_SCHEMAS[name]):
        if {"enum", "format", "pattern"} & set(schema):
            assert "type" in schema, path


def test_definitions_of_one_name_are_the_same_everywhere() -> None:
    seen: dict[str, object] = {}
    for document in ALL_SCHEMAS.values():
        for name, definition in document.get("$defs", {}).items():
            assert seen.setdefault(name, definition) == definition, name


def test_a_dispatch_refers_to_the_request_and_is_read_with_it() -> None:
    file = json.loads((ROOT / "schemas/agent-rl/training.dispatch.v1.schema.json").read_text())
    assert file["properties"]["request"]["$ref"] == "urn:ratchet:schema:training.request.v1"
    assert "$defs" not in file
    assert SCHEMAS["training.dispatch.v1"] == {**file, "$defs": {"training.request.v1": SCHEMAS["training.request.v1"]}}


def test_a_reference_to_no_schema_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no schema training\.wish\.v1"):
        with_references(ROOT, {"items": [{"$ref": "urn:ratchet:schema:training.wish.v1"}]})
