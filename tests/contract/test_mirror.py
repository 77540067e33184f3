"""The typed messages and the schemas say the same: names, required members, types, defaults, all the way down."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ratchet.contract import MESSAGES, encode
from tests.support.contract_files import CONTRACTS, SCHEMAS, TOPIC_OF, fast
from tests.support.schema_values import resolved, values

each_schema = pytest.mark.parametrize("name", sorted(SCHEMAS))

SCALARS: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.DateTimeType: "instant",
}


Member = tuple[bool, Any, frozenset[str]]
"""Whether it is required, its default, its types."""


def members_of_type(kind: Any, path: str = "") -> dict[str, Member]:
    """Every member of a message type by path. `null` is left out of the types, because `None` means absent."""
    if isinstance(kind, inspect.ListType):
        return members_of_type(kind.item_type, path + "[]")
    if isinstance(kind, inspect.DictType):
        return members_of_type(kind.value_type, path + "{}")
    if isinstance(kind, inspect.UnionType):
        return {key: member for part in kind.types for key, member in members_of_type(part, path).items()}
    if not isinstance(kind, inspect.StructType):
        return {}
    members: dict[str, Member] = {}
    for field in kind.fields:
        place = f"{path}.{field.encode_name}"
        default = None if field.default is msgspec.NODEFAULT else field.default
        members[place] = (field.required, default, names_of_type(field.type))
        members |= members_of_type(field.type, place)
    return members


def names_of_type(kind: Any) -> frozenset[str]:
    """The JSON types that a Python type holds."""
    if isinstance(kind, inspect.UnionType):
        parts = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        return frozenset().union(*(names_of_type(part) for part in parts))
    if isinstance(kind, inspect.ListType):
        return frozenset(f"array of {name}" for name in names_of_type(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return frozenset(f"map of {name}" for name in names_of_type(kind.value_type))
    if isinstance(kind, inspect.StructType):
        return frozenset({"record"})
    return frozenset({"anything"} if isinstance(kind, inspect.AnyType) else {SCALARS[type(kind)]})


def members_of_schema(schema: Any, root: Any, path: str = "") -> dict[str, Member]:
    """The same of a schema."""
    schema, root = resolved(schema, root)
    members: dict[str, Member] = {}
    if schema.get("type") == "array":
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
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return frozenset().union(*(_names_of_kind(kind, schema, root) for kind in kinds if kind != "null"))


def _names_of_kind(kind: str, schema: Any, root: Any) -> frozenset[str]:
    if kind == "array":
        return frozenset(f"array of {name}" for name in names_of_schema(schema["items"], root))
    if kind == "object":
        others = schema.get("additionalProperties", True)
        values_of = {"anything"} if others is True else names_of_schema(others, root) if others else {}
        return frozenset(f"map of {name}" for name in values_of) or frozenset({"record"})
    return frozenset({"instant" if schema.get("format") == "date-time" else kind})


@each_schema
def test_the_typed_message_has_the_members_of_its_schema(name: str):
    typed = members_of_type(inspect.type_info(MESSAGES[TOPIC_OF[name].name]))
    assert typed == members_of_schema(SCHEMAS[name], SCHEMAS[name])


@cache
def messages(name: str) -> st.SearchStrategy[Any]:
    """Strict messages of a schema. Built once: building costs more than drawing."""
    return values(SCHEMAS[name], SCHEMAS[name]).filter(fast(name).is_valid)


@each_schema
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_strict_message_survives_the_typed_mirror(name: str, data: st.DataObject):
    document = data.draw(messages(name))
    message = msgspec.json.decode(msgspec.json.encode(document), type=MESSAGES[TOPIC_OF[name].name])
    body = encode(message)
    assert fast(name).is_valid(msgspec.json.decode(body))
    assert CONTRACTS.read(message.subject, body) == (message, 0)
