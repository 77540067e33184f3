"""How many values a JSON text holds, counted before it is decoded: one of three bytes takes sixty in memory.

The bounds leave room for a million numbers, or for a hundred thousand small objects. Within them the longest steps of
decoding take .2 s of processor time.
"""

from __future__ import annotations

from ratchet.core.errors import BadRequest

ITEMS = 1_000_000
"""Most values beside the first one of their object or list."""
CONTAINERS = 250_000
"""Most objects and lists."""
MEMBERS = 250_000
"""Most members of all objects."""
VALUE_BYTES = 64
"""About what a small value takes in memory."""
BEGINNING = 4 * 1024 * 1024
"""Bytes at the beginning of a longer text that are counted first."""
_ESCAPES = 8_000_000
"""Most backslashes of a text whose strings are looked for: .13 s of processor time."""
_MARKS = b',:{["'
_OTHERS = bytes(set(range(256)) - set(_MARKS))


def count_values(text: bytes, times: int = 1) -> int:
    """About how many values a text holds; 0 for one that is too short for too many.

    Text has commas and braces, too: what its strings hold is left out where it makes a difference. Raises `BadRequest`
    for more than `times` the bounds.
    """
    if len(text) <= CONTAINERS:
        return 0
    if len(text) > BEGINNING:  # a bomb is known by its beginning
        count_values(text[:BEGINNING], times)
    marks = text.translate(None, _OTHERS)
    if _are_too_many(marks, times):
        marks = _outside_strings(text, marks)
        if _are_too_many(marks, times):
            raise BadRequest(
                f"the body holds too many values: at most {ITEMS * times} in all, {CONTAINERS * times} objects and"
                f" lists, and {MEMBERS * times} members; send less",
                code="too_many_values",
            )
    return marks.count(b",") + marks.count(b"{") + marks.count(b"[")


def _are_too_many(marks: bytes, times: int) -> bool:
    containers = marks.count(b"{") + marks.count(b"[")
    most = (ITEMS * times, CONTAINERS * times, MEMBERS * times)
    return any(
        count > bound for count, bound in zip((marks.count(b","), containers, marks.count(b":")), most, strict=True)
    )


def _outside_strings(text: bytes, marks: bytes) -> bytes:
    """Those of its marks that are not within strings; all of them where finding that out would take too long."""
    if text.count(b"\\") > _ESCAPES:
        return marks
    marks = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    if marks.count(b'"') > 2 * (ITEMS + MEMBERS):
        return marks
    return b"".join(marks.split(b'"')[::2])
