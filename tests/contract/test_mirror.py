"""Every type matches its schema: names, required members, types, defaults, all the way down."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import inspect

from ratchet.canary_deployer.domain.rollout import STATISTICS
from ratchet.core.contract import encode
from tests.support.contract_files import ALL_SCHEMAS, CONTRACTS, SCHEMAS, fast, fast_open
from tests.support.contract_types import TYPES
from tests.support.schema_values import resolved, values

each_schema = pytest.mark.parametrize("name", sorted(ALL_SCHEMAS))

OPAQUE = {f".{name}" for name in STATISTICS}
"""Members of `rollout.v1` whose shape is that of the running version: the schema says only that they are objects."""

SCALARS: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.EnumType: "string",
    inspect.BytesType: "string",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.DateTimeType: "instant",
}


LISTS = (inspect.ListType, inspect.VarTupleType)
RECORDS = (inspect.StructType, inspect.DataclassType)

Member = tuple[bool, Any, frozenset[str]]
"""Whether it is required, its default, its types."""


def members_of_type(kind: Any, path: str = "") -> dict[str, Member]:
    """Every member of a type by path. `null` is left out of the types, because `None` means absent."""
    if isinstance(kind, LISTS):
        return members_of_type(kind.item_type, path + "[]")
    if isinstance(kind, inspect.DictType):
        return members_of_type(kind.value_type, path + "{}")
    if isinstance(kind, inspect.UnionType):
        return {key: member for part in kind.types for key, member in members_of_type(part, path).items()}
    if not isinstance(kind, RECORDS):
        return {}
    members: dict[str, Member] = {}
    for place_in, field in enumerate(kind.fields):
        place = f"{path}.{place_in if is_tuple(kind) else field.encode_name}"
        default = None if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default)
        members[place] = (field.required, [] if default == () else default, names_of_type(field.type))
        members |= members_of_type(field.type, place)
    return members


def is_tuple(kind: Any) -> bool:
    """Whether its members have places instead of names."""
    return isinstance(kind, inspect.StructType) and kind.array_like


def names_of_type(kind: Any) -> frozenset[str]:
    """The JSON types that a Python type holds."""
    if isinstance(kind, inspect.UnionType):
        parts = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        return frozenset().union(*(names_of_type(part) for part in parts))
    if isinstance(kind, LISTS):
        return frozenset(f"array of {name}" for name in names_of_type(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return frozenset(f"map of {name}" for name in names_of_type(kind.value_type))
    if isinstance(kind, RECORDS):
        return frozenset({"tuple" if is_tuple(kind) else "record"})
    return frozenset({"anything"} if isinstance(kind, inspect.AnyType) else {SCALARS[type(kind)]})


def members_of_schema(schema: Any, root: Any, path: str = "") -> dict[str, Member]:
    """Every member of a schema by path, as `members_of_type` gives them."""
    schema, root = resolved(schema, root)
    members: dict[str, Member] = {}
    for part in schema.get("oneOf", []):
        members |= members_of_schema(part, root, path)
    for number, part in enumerate(schema.get("prefixItems", [])):
        place = f"{path}.{number}"
        members[place] = (number < schema["minItems"], part.get("default"), names_of_schema(part, root))
    if "array" in types_of(schema) and "items" in schema:
        members |= members_of_schema(schema["items"], root, path + "[]")
    if isinstance(schema.get("additionalProperties"), dict):
        return members_of_schema(schema["additionalProperties"], root, path + "{}")
    for name, part in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        members[place] = (name in schema.get("required", []), part.get("default"), names_of_schema(part, root))
        members |= members_of_schema(part, root, place)
    return members


def names_of_schema(schema: Any, root: Any) -> frozenset[str]:
    """The JSON types that a schema takes."""
    schema, root = resolved(schema, root)
    if "oneOf" in schema:
        return frozenset().union(*(names_of_schema(branch, root) for branch in schema["oneOf"]))
    kinds = types_of(schema)
    return frozenset().union(*(_names_of_kind(kind, schema, root) for kind in kinds if kind != "null"))


def types_of(schema: Any) -> list[str]:
    """The JSON types that a schema names."""
    named = schema.get("type", [])
    return named if isinstance(named, list) else [named]


def _names_of_kind(kind: str, schema: Any, root: Any) -> frozenset[str]:
    if kind == "array" and "prefixItems" in schema:
        return frozenset({"tuple"})
    if kind == "array":
        return frozenset(f"array of {name}" for name in names_of_schema(schema["items"], root))
    if kind == "object":
        others = schema.get("additionalProperties", True)
        values_of = {"anything"} if others is True else names_of_schema(others, root) if others else {}
        return frozenset(f"map of {name}" for name in values_of) or frozenset({"record"})
    return frozenset({"instant" if schema.get("format") == "date-time" else kind})


@each_schema
def test_a_type_has_the_members_of_its_schema(name: str) -> None:
    schema, kind = ALL_SCHEMAS[name], inspect.type_info(TYPES[name])
    typed, described = members_of_type(kind), members_of_schema(schema, schema)
    if name == "rollout.v1":
        typed = {path: member for path, member in typed.items() if not any(path.startswith(one) for one in OPAQUE)}
        described = {path: member for path, member in described.items() if path not in OPAQUE}
    assert typed == described, f"schema and type differ: contracts/schemas/**/{name}.schema.json and {kind}"
    assert names_of_type(kind) == names_of_schema(schema, schema)


def test_every_schema_has_a_type_and_every_type_a_schema() -> None:
    assert TYPES.keys() == ALL_SCHEMAS.keys()


@cache
def documents(name: str) -> st.SearchStrategy[Any]:
    """Strict documents of a schema. Built once: building costs more than drawing."""
    return values(ALL_SCHEMAS[name], ALL_SCHEMAS[name]).filter(fast(name).is_valid)


@each_schema
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_strict_document_survives_its_type(name: str, data: st.DataObject) -> None:
    document = data.draw(documents(name))
    if name == "rollout.v1":
        document = {member: part for member, part in document.items() if member not in STATISTICS}
    value = msgspec.json.decode(msgspec.json.encode(document), type=TYPES[name])
    body = msgspec.json.encode(value)
    assert fast(name).is_valid(msgspec.json.decode(body))
    assert fast_open(name).is_valid(document)
    assert msgspec.json.decode(body, type=TYPES[name]) == value
    if name in SCHEMAS:
        assert CONTRACTS.read(value.subject, encode(value)) == (value, 0)
