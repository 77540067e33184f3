"""The structs of the contract as the schemas of an OpenAPI document; the texts below their members describe these."""

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
    """The schemas of structs and of all structs in them, by name; their members without descriptions."""
    schemas = msgspec.json.schema_components(kinds, ref_template=REFERENCE)[1]
    for schema in schemas.values():
        if "enum" in schema:
            schema["type"] = "string"
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    return schemas


def components(kinds: Sequence[type[msgspec.Struct]]) -> dict[str, Schema]:
    """The same with the text below each member, read from the source, as its description: for documents."""
    schemas = plain_components(kinds)
    for kind in {part for info in multi_type_info(kinds) for part in _structs(info)}:
        schema = schemas[kind.__name__]
        texts = member_words(kind)
        words = {field.encode_name: texts.get(field.name) for field in msgspec.structs.fields(kind)}
        for name, member in schema.get("properties", {}).items():
            if words[name] is not None:
                member["description"] = words[name]
            if member.get("default", ...) is None:  # leaving it out means the same
                del member["default"]
    return schemas


@cache
def member_words(kind: type) -> Mapping[str, str]:
    """The text below each member of a class, by member; a class may describe an inherited member anew."""
    words: dict[str, str] = {}
    for owner in (base for base in reversed(kind.__mro__) if base.__module__.startswith("ratchet.")):
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(statement, ast.ClassDef)  # noqa: S101 - it is the source of a class
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
    match info:
        case StructType():
            parts = [field.type for field in info.fields]
        case UnionType():
            parts = list(info.types)
        case ListType():
            parts = [info.item_type]
        case DictType():
            parts = [info.value_type]
        case Metadata():
            parts = [info.type]
        case _:
            parts = []
    for part in parts:
        yield from _structs(part, seen)
