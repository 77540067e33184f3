"""The structs of the contract as the schemas of an OpenAPI document, with the words that stand below their members."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.inspect import (
    DictType,
    ListType,
    Metadata,
    StructType,
    Type,
    UnionType,
    multi_type_info,
)

Schema = Any
"""Part of an OpenAPI document."""

REFERENCE = "#/components/schemas/{name}"


def reference(kind: type[msgspec.Struct]) -> Schema:
    """The schema of `kind`, by name."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def plain_components(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, Schema]:
    """The schemas of structs and of everything in them, by name; their members without words."""
    schemas = msgspec.json.schema_components(kinds, ref_template=REFERENCE)[1]
    for schema in schemas.values():
        if "enum" in schema:
            schema["type"] = "string"
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    return schemas


def components(kinds: Sequence[type[msgspec.Struct]]) -> dict[str, Schema]:
    """The same with the words below each member, which are read from the source: for documents."""
    schemas = plain_components(kinds)
    for kind in {part for info in multi_type_info(kinds) for part in _structs(info)}:
        schema = schemas[kind.__name__]
        words = member_words(kind)
        for name, member in schema.get("properties", {}).items():
            if name in words:
                member["description"] = words[name]
            if member.get("default", ...) is None:  # absent says as much
                del member["default"]
    return schemas


@cache
def member_words(kind: type) -> Mapping[str, str]:
    """What the text below each member of a class says; a class may say more of an inherited member."""
    words: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("ratchet."):
            words |= _own_words(owner)
    return words


def _own_words(kind: type) -> Mapping[str, str]:
    (statement,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(statement, ast.ClassDef)  # noqa: S101 - it is the source of a class
    words: dict[str, str] = {}
    for member, text in zip(statement.body, statement.body[1:], strict=False):
        target = member.target if isinstance(member, ast.AnnAssign) else None
        if isinstance(member, ast.Assign):
            target = member.targets[0]
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr):
            words[target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return words


def _structs(info: Type, seen: set[type] | None = None) -> Iterator[type[msgspec.Struct]]:
    """Every struct in a type."""
    seen = set() if seen is None else seen
    if isinstance(info, StructType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        yield info.cls
    for part in _parts(info):
        yield from _structs(part, seen)


def _parts(info: Type) -> list[Type]:
    if isinstance(info, StructType):
        return [field.type for field in info.fields]
    if isinstance(info, UnionType):
        return list(info.types)
    if isinstance(info, ListType):
        return [info.item_type]
    if isinstance(info, DictType):
        return [info.value_type]
    return [info.type] if isinstance(info, Metadata) else []
