"""Schemas are written from structs: every bound and rule of a struct stands in its schema, and both take the same."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import Meta

from ratchet.bus.message import JsonObject, Value, encode
from ratchet.canary_deployer.domain.rollout import STATISTICS, Rollout
from ratchet.core.contract.values import NULLABLE, OPAQUE, Count, Role, Uuid, listed
from tests.support.contract_files import ALL_SCHEMAS, CONTRACTS, SCHEMAS, fast, fast_open
from tests.support.schema_values import values
from tools.contract_schemas import main, schema_of, types_of_schemas, written

TYPES = types_of_schemas()


class Line(Value, frozen=True, kw_only=True):
    amount: Count


class Receipt(msgspec.Struct, frozen=True):
    note: str | None


class Order(Value, frozen=True, kw_only=True):
    """An order."""

    RULES: ClassVar[JsonObject] = {"if": {"required": ["paid"]}, "then": {"required": ["receipt"]}}

    order_id: Uuid
    role: Role
    at: datetime
    state: Annotated[str, listed("open", "closed")]
    first: Line
    lines: Annotated[list[Line], Meta(min_length=1)]
    content: str | JsonObject
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    paid: bool = False
    receipt: Receipt | None = None
    reason: Annotated[str | None, NULLABLE] = None
    state_of_ours: Annotated[Line | None, OPAQUE] = None


def test_a_schema_states_all_that_its_struct_states() -> None:
    line = {"$ref": "#/$defs/Line"}
    assert schema_of("order.v1", Order) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ratchet:schema:order.v1",
        "title": "Order",
        "description": "An order.",
        "type": "object",
        "additionalProperties": False,
        "required": ["order_id", "role", "at", "state", "first", "lines", "content"],
        "properties": {
            "order_id": {"type": "string", "format": "uuid"},
            "role": {"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"},
            "at": {"type": "string", "format": "date-time"},
            "state": {"type": "string", "enum": ["open", "closed"]},
            "first": line,
            "lines": {"type": "array", "items": line, "minItems": 1},
            "content": {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": True}]},
            "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5},
            "paid": {"type": "boolean", "default": False},
            "receipt": {
                "type": "object",
                "additionalProperties": False,
                "required": ["note"],
                "properties": {"note": {"type": ["string", "null"]}},
            },
            "reason": {"type": ["string", "null"]},
            "state_of_ours": {"type": "object", "additionalProperties": True},
        },
        "if": {"required": ["paid"]},
        "then": {"required": ["receipt"]},
        "$defs": {
            "Line": {
                "type": "object",
                "additionalProperties": False,
                "required": ["amount"],
                "properties": {"amount": {"type": "integer", "minimum": 0}},
            }
        },
    }


def test_a_schema_of_its_own_is_referred_to_by_its_id() -> None:
    schema = schema_of("order.v1", Order, {Line: "line.v1"})
    assert schema["properties"]["first"] == {"$ref": "urn:ratchet:schema:line.v1"}
    assert "$defs" not in schema


def test_schemas_in_the_tree_are_those_of_the_structs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    assert TYPES.keys() == ALL_SCHEMAS.keys()


def test_a_written_schema_is_the_same_json_in_short_lines() -> None:
    schema = ALL_SCHEMAS["trajectory.v1"]
    assert msgspec.json.decode(written(schema)) == schema
    lines = written({"a": [1, 2], "b": {"c": "x" * 100, "d": {}}}).splitlines()
    assert lines == ["{", '  "a": [1, 2],', '  "b": {', f'    "c": "{"x" * 100}",', '    "d": {}', "  }", "}"]


@cache
def documents(name: str) -> st.SearchStrategy[Any]:
    """Strict documents of a schema. Built once: building costs more than drawing."""
    return values(ALL_SCHEMAS[name], ALL_SCHEMAS[name]).filter(fast(name).is_valid)


@pytest.mark.parametrize("name", sorted(ALL_SCHEMAS))
@settings(max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_strict_document_survives_its_type(name: str, data: st.DataObject) -> None:
    document = data.draw(documents(name))
    if TYPES[name] is Rollout:  # others see objects where it keeps its own statistics, and texts where messages
        document = {member: part for member, part in document.items() if member not in {*STATISTICS, "outbox"}}
    value = msgspec.json.decode(msgspec.json.encode(document), type=TYPES[name])
    body = msgspec.json.encode(value)
    assert fast(name).is_valid(msgspec.json.decode(body))
    assert fast_open(name).is_valid(document)
    assert msgspec.json.decode(body, type=TYPES[name]) == value
    if name in SCHEMAS:
        assert CONTRACTS.read(value.subject, encode(value)) == (value, 0)
