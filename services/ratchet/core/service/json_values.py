"""How many values a JSON text holds, counted before it is decoded: one of three bytes takes sixty in memory.

The bounds are what a conversation as long as today's longest contexts needs: a prompt of a million token ids, or a
hundred thousand messages. Within them the longest steps of decoding take .2 s of processor time.
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
_ESCAPES = 8_000_000
"""Most backslashes of a text whose strings are looked for: .13 s of processor time."""
_MARKS = b',:{["'
_OTHERS = bytes(set(range(256)) - set(_MARKS))
_TOO_MANY = (
    f"the body holds too many values: at most {ITEMS} in all, {CONTAINERS} objects and lists, and {MEMBERS} members;"
    " send less of the history"
)


def count_values(text: bytes) -> int:
    """About how many values a text holds; 0 for one that is too short for too many. Raises `BadRequest`.

    Text has commas and braces, too: what its strings hold is left out where it makes a difference.
    """
    if len(text) <= CONTAINERS:
        return 0
    marks = text.translate(None, _OTHERS)
    if _are_too_many(marks):
        marks = _outside_strings(text, marks)
        if _are_too_many(marks):
            raise BadRequest(_TOO_MANY, code="too_many_values")
    return marks.count(b",") + marks.count(b"{") + marks.count(b"[")


def _are_too_many(marks: bytes) -> bool:
    containers = marks.count(b"{") + marks.count(b"[")
    return marks.count(b",") > ITEMS or containers > CONTAINERS or marks.count(b":") > MEMBERS


def _outside_strings(text: bytes, marks: bytes) -> bytes:
    """Those of its marks that are not within strings; all of them where finding that out would take too long."""
    if text.count(b"\\") > _ESCAPES:
        return marks
    marks = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    if marks.count(b'"') > 2 * (ITEMS + MEMBERS):
        return marks
    return b"".join(marks.split(b'"')[::2])
