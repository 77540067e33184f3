"""Whether one schema may follow another within a major version. Pure.

The rule: every strict message of each must pass the open view of the other. What is part here breaks it, or may: for
the keywords that our schemas use, a schema with no finding keeps the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = Any
"""Part of a schema."""

LOOKED_INTO = {"properties", "items", "prefixItems", "additionalProperties", "oneOf", "$defs"}
"""Keywords that hold the schemas of parts, which are compared one by one."""
_COMPARED = LOOKED_INTO | {"type", "enum", "required"}
"""Keywords whose values may change in some ways. All others must stay: narrower, old messages are refused; wider, old
readers refuse new messages."""
WORDS = {"title", "description", "examples", "deprecated", "$comment", "$id", "$schema"}
"""Keywords that refuse nothing."""


@dataclass(frozen=True, slots=True)
class Break:
    """One change that a reader or writer of the other version would notice."""

    path: str
    """The member, such as `/lines/[]/price`; empty for the whole message."""
    what: str


@dataclass(frozen=True, slots=True)
class _Node:
    """A schema and the document that its references are looked up in."""

    schema: Json
    root: Json

    def child(self, schema: Json) -> _Node:
        """A part of this schema, its reference followed."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return _Node(schema, self.root)
        name, _, pointer = schema["$ref"].rpartition(":")[2].partition("#")
        part = root = self.root["$defs"][name] if name else self.root
        for key in pointer.split("/")[1:]:
            part = part[key]
        return _Node(part, root).child(part)

    def types(self) -> set[str]:
        """The JSON types it names, every integer being a number; empty when it names none."""
        named = self.schema.get("type", [])
        types = {named} if isinstance(named, str) else set(named)
        return types | {"integer"} if "number" in types else types


def breaks(old: Json, new: Json) -> list[Break]:
    """Every change from `old` to `new` that breaks the rule."""
    return list(_compared(_Node(old, old), _Node(new, new), ""))


def _compared(old: _Node, new: _Node, path: str) -> Iterator[Break]:
    if not isinstance(old.schema, dict) or not isinstance(new.schema, dict):
        if old.schema != new.schema:
            yield Break(path, "was rewritten")
        return
    was, now = old.types(), new.types()
    if was - now:
        yield Break(path, f"no longer takes {', '.join(sorted(was - now))}")
    if now - was:
        yield Break(path, f"takes {', '.join(sorted(now - was))}, which older readers refuse")
    generalised = {"pattern"} if "pattern" not in old.schema and _is_generalised(old, new) else set[str]()
    for keyword in sorted((old.schema.keys() | new.schema.keys()) - _COMPARED - WORDS - generalised):
        if old.schema.get(keyword) != new.schema.get(keyword):
            yield Break(path, f"{keyword} {_shown(old, keyword)} became {_shown(new, keyword)}")
    yield from _values(old, new, path)
    yield from _members(old, new, path)
    yield from _parts(old, new, path)


def _shown(node: _Node, keyword: str) -> str:
    value = node.schema.get(keyword)
    return "none" if value is None else "a condition" if isinstance(value, (dict, list)) else str(value)


def _values(old: _Node, new: _Node, path: str) -> Iterator[Break]:
    """Listed values. More of them, or a pattern that takes them, are fine: readers take those they do not know."""
    was, now = old.schema.get("enum"), new.schema.get("enum")
    if (was is None) != (now is None):
        if not _is_generalised(old, new):
            yield Break(path, "takes only listed values" if was is None else "no longer lists its values")
        return
    gone = [value for value in was or [] if value not in (now or [])]
    if gone:
        yield Break(path, f"no longer lists {', '.join(map(str, gone))}")


def _is_generalised(old: _Node, new: _Node) -> bool:
    """Whether a list of values became a pattern that takes all of them."""
    pattern = new.schema.get("pattern")
    if "enum" not in old.schema or "enum" in new.schema or pattern is None:
        return False
    return all(isinstance(value, str) and re.search(pattern, value) for value in old.schema["enum"])


def _members(old: _Node, new: _Node, path: str) -> Iterator[Break]:
    was, now = old.schema.get("properties", {}), new.schema.get("properties", {})
    required, requires = set(old.schema.get("required", [])), set(new.schema.get("required", []))
    for name in sorted(was.keys() - now.keys()):
        yield Break(f"{path}/{name}", "was removed")
    for name in sorted(requires - required):
        yield Break(f"{path}/{name}", "became required")
    for name in sorted((required - requires) & now.keys()):
        yield Break(f"{path}/{name}", "became optional, and older readers need it")
    if now.keys() - was.keys() and old.schema.get("additionalProperties", True) is not False:
        names = ", ".join(sorted(now.keys() - was.keys()))
        yield Break(path, f"gives a meaning to {names}, which were anybody's to use")
    for name in sorted(was.keys() & now.keys()):
        yield from _compared(old.child(was[name]), new.child(now[name]), f"{path}/{name}")


def _parts(old: _Node, new: _Node, path: str) -> Iterator[Break]:
    """Elements of arrays, values of maps, alternatives."""
    for keyword, step in (("items", "[]"), ("additionalProperties", "{}")):
        was, now = old.schema.get(keyword), new.schema.get(keyword)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _compared(old.child(was), new.child(now), f"{path}/{step}")
        elif isinstance(was, dict) or isinstance(now, dict):
            yield Break(f"{path}/{step}", "was rewritten")
    was, now = old.schema.get("prefixItems", []), new.schema.get("prefixItems", [])
    if len(now) < len(was) or (len(now) > len(was) and "items" in old.schema):  # more at the end is fine
        yield Break(path, f"has {len(now)} places instead of {len(was)}")
    for place, (before, after) in enumerate(zip(was, now, strict=False)):
        yield from _compared(old.child(before), new.child(after), f"{path}/[{place}]")
    was, now = old.schema.get("oneOf", []), new.schema.get("oneOf", [])
    if len(was) != len(now):
        yield Break(path, f"has {len(now)} alternatives instead of {len(was)}")
    for before, after in zip(was, now, strict=False):
        yield from _compared(old.child(before), new.child(after), path)
