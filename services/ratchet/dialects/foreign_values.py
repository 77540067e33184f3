"""Values in records of other systems, read leniently: what a reader cannot read is None, or nothing."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import cast

from ratchet.core.contract import JsonObject

FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""A time outside is no time of a run: it counts as unknown."""
MILLISECONDS = 1e11
"""Numbers from here on count milliseconds since the epoch, smaller ones seconds."""
MAX_ESCAPES = 100_000
"""Most backslashes of a body in which halves of characters are looked for: a tenth of a second, while agents wait."""
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(rb"%s%s|(?P<half>%s|%s)|\\." % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)
"""An escape in a JSON text: a pair of surrogates, half of one, any other."""


def instant_of(value: object) -> datetime | None:
    """An instant as formats write it: ISO text, UTC where it has no zone, or a number since the epoch; else None."""
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            instant = datetime.fromtimestamp(value / 1000 if abs(value) >= MILLISECONDS else value, UTC)
        elif isinstance(value, str):
            instant = datetime.fromisoformat(value.strip())
        elif isinstance(value, datetime):
            instant = value
        else:
            return None
        instant = (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return instant if FIRST <= instant < LAST else None


def number_of(value: object) -> float | None:
    """A finite number (or truth value) as a float; None for anything else."""
    if not isinstance(value, bool | int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count_of(value: object) -> int | None:
    """A number of something, of a size that columns hold; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and 0 <= number < 2**53 else None


def cost_of(value: object) -> float | None:
    """A number of at least 0, also as decimal text; None for anything else."""
    try:
        number = number_of(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None
    return number if number is not None and number >= 0 else None


def object_of(value: object) -> JsonObject:
    """An object, also one that a text spells; an empty one for anything else."""
    parsed = parsed_json(value)
    return cast("JsonObject", parsed) if isinstance(parsed, dict) else {}


def list_of(value: object) -> list[object]:
    """A list, also one that a text spells; an empty one for anything else."""
    parsed = parsed_json(value)
    return cast("list[object]", parsed) if isinstance(parsed, list) else []


def objects_of(value: object) -> list[JsonObject]:
    """The objects of a list, also of one that a text spells."""
    return [cast("JsonObject", item) for item in list_of(value) if isinstance(item, dict)]


def text_or_none(value: object) -> str | None:
    """A text that says something; None for anything else."""
    return value if isinstance(value, str) and value.strip() else None


def id_of(value: object) -> str | None:
    """An id: a text or a whole number; None for anything else."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else text_or_none(value)


def parsed_json(value: object) -> object:
    """What a text spells as JSON object or list; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def with_whole_characters(text: bytes, most: int = MAX_ESCAPES) -> bytes:
    """A JSON text with U+FFFD for each half of a surrogate pair: JSON can spell one, where a program cut a text in two,
    and nothing else can hold it. As it is where it has more than `most` escapes to look through."""
    if text.count(b"\\") > most:
        return text
    return _ESCAPES.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], text)
