"""Whether a call is one that BFCL accepts: the rules of its checker of syntax trees, for Python's single calls.

A parameter has a type and a list of accepted values; an empty string in that list says that it may be left out. Texts
are compared without case, spaces and some punctuation. What is no JSON object, or names a parameter twice, is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratchet.bus.message import JsonObject

TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
"""BFCL's names."""
OMITTED = ""
"""Among the accepted values: the parameter may be left out."""
_LOOSE = re.compile(r"[ ,./\-_*^]")

Accepted = Mapping[str, Sequence[Any]]
"""By parameter. `Any`: JSON."""


def read_arguments(text: str) -> JsonObject | None:
    """The arguments of a call; None when they are no JSON object, or one that says something twice."""
    try:
        read = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None  # pyright: ignore[reportUnknownVariableType] - JSON


def is_accepted(arguments: JsonObject, parameters: JsonObject, accepted: Accepted) -> bool:
    """Whether arguments match. `parameters`: as BFCL describes them."""
    described: Mapping[str, JsonObject] = parameters["properties"]
    if any(name not in arguments for name in parameters["required"]):
        return False
    if any(name not in described or name not in accepted for name in arguments):
        return False
    if any(name not in arguments and OMITTED not in values for name, values in accepted.items()):
        return False
    return all(_fits(value, described[name], accepted[name]) for name, value in arguments.items())


def _once(pairs: list[tuple[str, Any]]) -> JsonObject:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def _fits(value: Any, described: JsonObject, accepted: Sequence[Any]) -> bool:
    kind = TYPES[described["type"]]
    if described["type"] == "float" and type(value) is int:
        value = _as_float(value)
    inner = TYPES[described["items"]["type"]] if kind is list else None
    known = next((type(right) for right in accepted if right != OMITTED), None)
    if type(value) is not kind:  # BFCL takes a value of the accepted ones' own type too
        return known is type(value) and value in accepted
    if inner is None and known not in {None, kind}:  # the accepted values are not of the described type
        return value in accepted
    if inner is not None and not any(_all_of(value, right, inner) for right in accepted):
        return False
    return _equals(value, inner, accepted)


def _equals(value: Any, inner: type | None, accepted: Sequence[Any]) -> bool:
    """Whether a value of the right type is an accepted one. `inner`: the type of a list's elements."""
    if isinstance(value, dict):
        return any(_object_fits(cast("JsonObject", value), right) for right in accepted if right != OMITTED)
    if inner is dict:
        return any(_objects_fit(value, right) for right in accepted if right != OMITTED)
    known = [[] if isinstance(value, list) and right == OMITTED else _each_loose(right) for right in accepted]
    return _each_loose(value) in known


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _all_of(value: Sequence[Any], accepted: Any, inner: type) -> bool:
    """Whether the elements have the type that they should have, or that of an accepted list's."""
    if not isinstance(accepted, list):
        return True
    first = next((type(right) for right in accepted if right != OMITTED), None)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
    return all(type(element) is inner or type(element) is first for element in value)


def _objects_fit(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    return len(value) == len(accepted) and all(
        isinstance(element, dict) and _object_fits(element, known)  # pyright: ignore[reportUnknownArgumentType] - JSON
        for element, known in zip(value, accepted, strict=True)
    )


def _object_fits(value: JsonObject, accepted: Accepted) -> bool:
    if any(name not in accepted for name in value):
        return False
    if any(name not in value and OMITTED not in values for name, values in accepted.items()):
        return False
    return all(_loose(member) in [_loose(known) for known in accepted[name]] for name, member in value.items())


def _each_loose(value: Any) -> Any:
    """A value, or the elements of a list, as they are compared."""
    return [_loose(element) for element in cast("list[Any]", value)] if isinstance(value, list) else _loose(value)


def _loose(value: Any) -> Any:
    """A text as it is compared; any other value as it is."""
    return _LOOSE.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
