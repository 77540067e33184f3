"""Which changes of a schema break readers or writers of the other version."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.bus.compatibility import Break, breaks

OLD: Any = {
    "$id": "urn:ratchet:schema:thing.v1",
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "size": {"type": "integer", "minimum": 0, "default": 0},
        "labels": {"type": "object", "additionalProperties": True},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "scores": {"type": "object", "additionalProperties": {"type": "number"}},
        "value": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    },
    "$defs": {
        "part": {"type": "object", "additionalProperties": False, "properties": {"text": {"type": "string"}}},
    },
}

Change = Callable[[Any], object]
"""Edits the properties, the definitions under `$defs` and the required members of a schema in place."""


def changed(edit: Change) -> list[Break]:
    new = copy.deepcopy(OLD)
    edit(new)
    return breaks(OLD, new)


def properties(new: Any) -> Any:
    return new["properties"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda new: None,
        lambda new: properties(new).update(later={"type": "string"}),
        lambda new: properties(new)["kind"]["enum"].append("c"),
        lambda new: (properties(new)["kind"].pop("enum"), properties(new)["kind"].update(pattern="^[a-z]$")),
        lambda new: new["$defs"]["part"]["properties"].update(later={"type": "string"}),
        lambda new: properties(new)["id"].update(description="An id.", examples=["x"]),
        lambda new: new["$defs"].update(other={"type": "string"}),
    ],
)
def test_optional_members_enum_values_and_words_may_be_added(edit: Change) -> None:
    assert changed(edit) == []


@pytest.mark.parametrize(
    ("edit", "path", "what"),
    [
        (lambda new: new["required"].append("kind"), "/kind", "became required"),
        (lambda new: new["required"].clear(), "/id", "became optional"),
        (lambda new: properties(new).pop("size"), "/size", "was removed"),
        (lambda new: properties(new)["kind"]["enum"].remove("b"), "/kind", "no longer lists b"),
        (lambda new: properties(new)["size"].update(type="number"), "/size", "takes number"),
        (lambda new: properties(new)["size"].update(minimum=1), "/size", "minimum 0 became 1"),
        (lambda new: properties(new)["size"].pop("minimum"), "/size", "minimum 0 became none"),
        (lambda new: properties(new)["size"].update(default=1), "/size", "default 0 became 1"),
        (lambda new: properties(new)["id"].pop("format"), "/id", "format uuid became none"),
        (lambda new: properties(new)["labels"].update(properties={"a": {}}), "/labels", "gives a meaning to a"),
        (
            lambda new: new["$defs"]["part"]["properties"]["text"].update(type="integer"),
            "/parts/[]/text",
            "no longer takes string",
        ),
        (lambda new: properties(new)["scores"].update(additionalProperties=True), "/scores/{}", "was rewritten"),
        (lambda new: properties(new)["value"]["oneOf"].pop(), "/value", "has 1 alternatives instead of 2"),
        (lambda new: properties(new)["value"]["oneOf"][1].update(maximum=1), "/value", "maximum none became 1"),
        (lambda new: properties(new)["kind"].pop("enum"), "/kind", "no longer lists its values"),
        (
            lambda new: (properties(new)["kind"].pop("enum"), properties(new)["kind"].update(pattern="^a$")),
            "/kind",
            "pattern none became ^a$",
        ),
        (lambda new: properties(new)["id"].update(enum=["a"]), "/id", "takes only listed values"),
        (lambda new: properties(new)["id"].update(anyOf=[{"minLength": 3}]), "/id", "anyOf none became a condition"),
        (lambda new: properties(new)["labels"].update({"not": {"required": ["a"]}}), "/labels", "not none became"),
        (lambda new: properties(new)["labels"].update(maxProperties=3), "/labels", "maxProperties none became 3"),
        (lambda new: new.update({"if": {"required": ["kind"]}}), "", "if none became a condition"),
    ],
)
def test_every_other_change_is_named_with_its_place(edit: Change, path: str, what: str) -> None:
    first = changed(edit)[0]
    assert (first.path, first.what[: len(what)]) == (path, what)


def test_more_places_at_the_end_of_a_row_are_fine_and_fewer_are_not() -> None:
    row = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "minItems": 1}
    longer = row | {"prefixItems": [*row["prefixItems"], {"type": "boolean"}]}
    other = row | {"prefixItems": [{"type": "string"}, {"type": "string"}]}
    assert breaks(row, longer) == []
    assert [one.what for one in breaks(longer, row)] == ["has 2 places instead of 3"]
    assert [one.path for one in breaks(row, other)] == ["/[1]", "/[1]"]
    assert [one.what for one in breaks(row | {"items": False}, longer | {"items": False})]
