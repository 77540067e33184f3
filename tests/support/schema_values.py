"""Random JSON that a schema takes, for property tests: it knows the keywords that our schemas use and no others."""

from __future__ import annotations

import string
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

SAFE_INTEGER = 2**53

texts = st.text(max_size=12)
leaves = st.none() | st.booleans() | st.integers(-SAFE_INTEGER, SAFE_INTEGER) | texts
free_objects = st.dictionaries(texts, leaves | st.lists(leaves, max_size=2), max_size=3)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC) | offsets)

FORMATS: dict[str, st.SearchStrategy[str]] = {
    "uuid": st.uuids().map(str),
    "date-time": instants.map(datetime.isoformat),
    "uri": st.text(string.ascii_lowercase + string.digits, min_size=1).map("s3://ratchet/{}".format),
}


def resolved(schema: Any, root: Any) -> tuple[Any, Any]:
    """`schema`, or what it refers to, and the document in which that stands."""
    if "$ref" not in schema:
        return schema, root
    name, _, pointer = schema["$ref"].rpartition(":")[2].partition("#")
    target = root = root["$defs"][name] if name else root
    for key in pointer.split("/")[1:]:
        target = target[key]
    return resolved(target, root)


def values(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    """JSON documents of `schema`; references are looked up in `root`.

    What a condition may require is always there; the caller sorts out what breaks a condition all the same.
    """
    schema, root = resolved(schema, root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "oneOf" in schema:
        return st.one_of([values(branch, root) for branch in schema["oneOf"]])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_of_type(kind, schema, root) for kind in kinds])


def _of_type(kind: str, schema: Any, root: Any) -> st.SearchStrategy[Any]:
    makers = {"object": _objects, "array": _arrays, "string": _strings, "number": _numbers, "integer": _integers}
    if kind in makers:
        return makers[kind](schema, root)
    return st.none() if kind == "null" else st.booleans()


def _objects(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    members = {name: values(part, root) for name, part in schema.get("properties", {}).items()}
    required = {*schema.get("required", []), *schema.get("then", {}).get("required", [])}
    fixed = st.fixed_dictionaries(
        {name: members[name] for name in members if name in required},
        optional={name: members[name] for name in members if name not in required},
    )
    others = schema.get("additionalProperties", True)
    if others is False:
        return fixed
    more = free_objects if others is True else st.dictionaries(texts, values(others, root), max_size=2)
    return st.builds(lambda extra, known: {**extra, **known}, more, fixed)


def _arrays(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(values(part, root) for part in schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    return st.lists(values(schema["items"], root), min_size=least, max_size=schema.get("maxItems", least + 2))


def _strings(schema: Any, _: Any) -> st.SearchStrategy[Any]:
    if schema.get("contentEncoding") == "base64":
        return st.binary(max_size=16).map(lambda raw: b64encode(raw).decode())
    if "format" in schema:
        return FORMATS[schema["format"]]
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].removesuffix("$") + r"\Z", alphabet=st.characters(codec="ascii"))
    return st.text(min_size=schema.get("minLength", 0), max_size=20)


def _numbers(schema: Any, _: Any) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    return st.floats(
        min_value=schema.get("exclusiveMinimum", low),
        max_value=schema.get("exclusiveMaximum", high),
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False,
    )


def _integers(schema: Any, _: Any) -> st.SearchStrategy[Any]:
    return st.integers(schema.get("minimum", -SAFE_INTEGER), SAFE_INTEGER)
