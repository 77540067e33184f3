"""Redaction of JSON: values under names that tell of secrets, and what the search notices in each text.

Text that is itself JSON is read and stays JSON. Typed instants and numbers stay what they are: digits are a card only
in text and inside members that agents fill freely (`FREE`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from ratchet.core.errors import Rejected
from ratchet.core.rules.redaction.checks import is_card
from ratchet.core.rules.redaction.detectors import active
from ratchet.core.rules.redaction.finders import Span
from ratchet.core.rules.redaction.names import Named, named, names_an_id
from ratchet.core.rules.redaction.search import Detector, spans_in
from ratchet.core.rules.redaction.values import PLACEHOLDER, accepts

M = TypeVar("M", bound=msgspec.Struct)
Json = Any
"""Parsed JSON. `Any` because redaction works on every document."""

MAX_DEPTH = 100
"""Deepest nesting that is searched, JSON inside text included; agents' messages have less than ten levels."""
MAX_PASSES = 5
"""A placeholder can uncover a neighbour, so a text is searched until a pass takes nothing out; usually the second."""
MAX_SECRETS = 5_000
"""Secrets of one kind in one text: a text of secrets has no content worth the seconds that a million of them take."""
SHORTEST = 4
"""Characters of the shortest text that holds a secret by its form: `a@b.de`, a name and its value."""
REMEMBERED = 32
"""Characters of the longest text that is searched once and remembered while it is clean; an id of 36 never repeats."""
_UUID = re.compile("(?=[0-9-]*[a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""An id as programs make them, alone in a text: its digits are no number of a person's, for letters stand beside them,
and no mark consists of such letters. Every message has several, which never repeat."""
FREE = frozenset(
    {"content", "labels", "memory_state", "messages", "output", "raw_data", "response", "tool_args", "tools"}
)
"""Members of our messages under which agents may write anything; a schema types all other numbers."""
_MEDIA = re.compile(r"data:(?:image|audio|video)/[\w.+-]{1,64};base64,[A-Za-z0-9+/]{1024,}={0,2}")
"""A picture or a sound as text: its letters spell nothing, and a search of a million of them takes .3 s. A short one is
searched: it may be a secret that only looks like one."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """The value without secrets, and how many of each kind were taken out."""

    value: Json
    counts: dict[str, int] = field(default_factory=dict[str, int])


def redact(value: Json, detectors: Sequence[Detector] | None = None) -> Redacted:
    """`value` with placeholders for secrets and personal data. Raises `Rejected` when it is not JSON or is nested too
    deeply.

    `detectors` search each text after the rules: those that the setting names, unless others are given.
    """
    counts: Counter[str] = Counter()
    redacted = _redact(value, _Search(counts, active().finders if detectors is None else detectors), MAX_DEPTH)
    return Redacted(redacted, dict(counts))


def redact_message(message: M) -> tuple[M, dict[str, int]]:
    """A message as it may be published, and how many of each kind were taken out. Raises `Rejected`."""
    redacted = redact(msgspec.to_builtins(message, builtin_types=(datetime,)))
    if not redacted.counts:
        return message, {}
    try:
        return msgspec.convert(redacted.value, type(message)), redacted.counts
    except msgspec.ValidationError as error:
        raise Rejected(f"cannot redact: {type(message).__name__} is not one any more without its secrets") from error


@dataclass(frozen=True, slots=True)
class _Search:
    """The secrets that were taken out so far, of a message or of one text of it."""

    counts: Counter[str]
    detectors: Sequence[Detector]
    in_text: bool = False
    """Whether this is JSON that a text spells: texts in it are part of that text, and its numbers are digits."""

    def placeholder(self, kind: str) -> str:
        """Takes the place of a secret, which is counted. Raises `Rejected` when a text holds too many."""
        self.counts[kind] += 1
        if self.in_text and self.counts[kind] > MAX_SECRETS:
            raise Rejected(f"cannot redact: more than {MAX_SECRETS} secrets in one text")
        return f"[REDACTED:{kind}]"


def _redact(value: Json, search: _Search, depth: int, *, free: bool = False) -> Json:
    """`value` with placeholders. `free`: no schema types its numbers."""
    if depth <= 0:
        raise Rejected(f"cannot redact: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if len(value) < SHORTEST or (value[:5] == "data:" and _MEDIA.fullmatch(value)):
            return value
        return _spelled(value, search, depth) if search.in_text else _text(value, search)
    if value is None or isinstance(value, bool | float | datetime):
        return value
    if isinstance(value, int):
        looks_like_card = (free or search.in_text) and 10**12 <= value < 10**19 and is_card(str(value))
        return search.placeholder("card") if looks_like_card else value
    if isinstance(value, list | tuple):
        return _redact_list(list(cast("Sequence[Json]", value)), search, depth, free=free)
    if isinstance(value, dict):
        return _redact_object(cast("dict[Json, Json]", value), search, depth, free=free)
    raise Rejected(f"cannot redact: {type(value).__name__} is not JSON")


def _redact_object(members: dict[Json, Json], search: _Search, depth: int, *, free: bool) -> dict[str, Json]:
    redacted: dict[str, Json] = {}
    paired = _pair(members) if "value" in members or "val" in members else None
    for name, value in members.items():
        if not isinstance(name, str):
            raise Rejected(f"cannot redact: a member is named by {type(name).__name__}, not by text")
        clean, meaning, is_id = _of_name(name)
        key = plain = name if clean else _redact(name, search, depth)
        number = 1
        while key in redacted:  # numbered, so that no member is lost
            number += 1
            key = f"{plain} {number}"
        if paired is not None and name == paired[0]:
            meaning = paired[1]
        inside = free or name in FREE
        if inside and not free:
            value = msgspec.to_builtins(value)  # noqa: PLW2901 - instants that agents put there are text, also as names
        if meaning is not None:
            redacted[key] = _hide(value, meaning, search, depth - 1, free=inside)
        elif is_id and _is_number(value):
            redacted[key] = value
        else:
            redacted[key] = _redact(value, search, depth - 1, free=inside)
    return redacted


@lru_cache(4096)
def _is_clean(text: str) -> bool:
    """Whether a short text holds no secret and no JSON: names of members, models and tools repeat in messages."""
    return not text.lstrip().startswith(("{", "[")) and not spans_in(text)


def _is_number(value: Json) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdigit())


@lru_cache(8192)
def _of_name(name: str) -> tuple[bool, Named | None, bool]:
    """Of the name of a member: whether it is no secret itself, what its value is, and whether that is an id."""
    return _is_clean(name), named(name), names_an_id(name)


NAMING = ("name", "key", "header", "field", "variable", "param", "parameter", "env", "label")
VALUES = ("value", "val")


def _pair(members: dict[Json, Json]) -> tuple[str, Named] | None:
    """Of `{"name": "password", "value": X}`, the member that holds the value, and what the name says of it."""
    for holder in VALUES:
        if holder in members:
            names = (members.get(naming) for naming in NAMING)
            meaning = next(filter(None, (named(name) for name in names if isinstance(name, str))), None)
            if meaning is not None:
                return holder, meaning
    return None


def _redact_list(items: list[Json], search: _Search, depth: int, *, free: bool) -> list[Json]:
    """A list; in one of pairs, of a command's options, or of raw headers, a name tells of the text that follows it."""
    redacted: list[Json] = []
    pairs = bool(items) and _is_pair(items[0]) and all(map(_is_pair, items))
    meaning: Named | None = None
    for item in items:
        if pairs:
            name, value = item
            meant = named(name)
            inner = _hide(value, meant, search, depth - 2, free=True) if meant else None
            redacted.append([name, inner] if meant else _redact(item, search, depth - 1, free=free))
            continue
        if meaning is not None and isinstance(item, str):
            redacted.append(_hide(item, meaning, search, depth - 1, free=free))
            meaning = None
            continue
        redacted.append(_redact(item, search, depth - 1, free=free))
        names_next = isinstance(item, str) and item[:1] in _OPTION_BEGINS and _OPTION.fullmatch(item)
        meaning = named(item) if names_next else None
    return redacted


_OPTION_BEGINS = frozenset("-aApPcCsSxX")
_OPTION = re.compile(
    r"--?[A-Za-z][\w.-]{1,40}|(?i:proxy-)?(?i:authorization|(?:set-)?cookie|x-[\w-]{1,40}(?:key|token))"
)


def _is_pair(item: Json) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)


_SCHEMA_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_SCHEMA_MEMBERS = frozenset({"properties", "$ref", "anyOf", "allOf", "oneOf"})
_SCHEMA_VALUES = ("default", "const", "example", "examples", "enum")


def _hide(value: Json, meaning: Named, search: _Search, depth: int, *, free: bool) -> Json:
    """A value under a name that tells of a secret: texts and numbers go, also further inside; a tool's schema stays."""
    if depth <= 0:
        raise Rejected(f"cannot redact: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return _hidden_text(value, meaning, search, depth)
    if isinstance(value, int | float) and not isinstance(value, bool):
        secret = meaning.certain and (not meaning.digits or len(str(value)) >= meaning.digits)
        return search.placeholder(meaning.kind) if secret else value
    if isinstance(value, list | tuple):
        return [_hide(item, meaning, search, depth - 1, free=free) for item in cast("Sequence[Json]", value)]
    if not isinstance(value, dict) or not meaning.certain:
        return _redact(value, search, depth, free=True)
    members = cast("dict[Json, Json]", value)
    if _is_schema(members):
        rest = _redact_object({n: v for n, v in members.items() if n not in _SCHEMA_VALUES}, search, depth, free=True)
        shown = {n: _hide(v, meaning, search, depth - 1, free=True) for n, v in members.items() if n in _SCHEMA_VALUES}
        return {name: (shown | rest)[name] for name in (*rest, *shown)}
    hidden: dict[str, Json] = {}
    for name, inner in members.items():
        key = name if isinstance(name, str) and _of_name(name)[0] else str(_redact(name, search, depth))
        hidden[key] = _hide(inner, meaning, search, depth - 1, free=True)
    return hidden


def _is_schema(members: dict[Json, Json]) -> bool:
    """Whether these describe a value, as a tool's parameters do, and are none."""
    kind = members.get("type")
    named_type = isinstance(kind, list) or (isinstance(kind, str) and kind in _SCHEMA_TYPES)
    return named_type or not _SCHEMA_MEMBERS.isdisjoint(members)


def _hidden_text(value: str, meaning: Named, search: _Search, depth: int) -> Json:
    if meaning.certain and not meaning.digits:
        spelled = value.lstrip()[:1] in {"{", "["}
        if not value or PLACEHOLDER.fullmatch(value):
            return value
        return _redact(value, search, depth) if spelled and _is_json(value) else search.placeholder(meaning.kind)
    return search.placeholder(meaning.kind) if accepts(meaning, value) else _redact(value, search, depth)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return False
    return True


_BEFORE_JSON = frozenset("{[ \t\r\n")


def _text(text: str, search: _Search) -> str:
    """A text of a message; one in which the search does not end is a placeholder, and its message goes on."""
    if len(text) <= REMEMBERED and not search.detectors and _is_clean(text):
        return text
    if len(text) == 36 and not search.detectors and _UUID.fullmatch(text):
        return text
    if text[0] not in _BEFORE_JSON and not spans_in(text, search.detectors):
        return text  # most texts
    inside = _Search(Counter(), search.detectors, in_text=True)
    try:
        redacted = _spelled(text, inside, MAX_DEPTH)
    except Rejected:
        return search.placeholder("unsearchable")
    if inside.counts:
        search.counts.update(inside.counts)
    return redacted


def _spelled(text: str, search: _Search, depth: int) -> str:
    """A text that may spell JSON, which then stays JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return _plain(text, search)
    if "\\" not in text and not any(map(_tells, _NAMES.findall(text))):  # what looks like a secret is all that is one
        trial = _Search(Counter(), search.detectors, in_text=True)
        redacted = _plain(text, trial, _within_json)
        if not trial.counts or _is_json(redacted):
            search.counts.update(trial.counts)
            return redacted
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return _plain(text, search)
    before = search.counts.total()
    redacted = _redact(document, search, depth - 1)
    if search.counts.total() == before:
        return text
    separators = (", ", ": ") if re.search(r'": ', text) else (",", ":")
    spelled = json.dumps(redacted, ensure_ascii=text.isascii(), separators=separators)
    try:
        spelled.encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can spell it, and nothing else can hold it
        return json.dumps(redacted, separators=separators)
    return spelled


def _within_json(text: str, start: int, end: int, placeholder: str) -> str:
    """What takes the place of a span: text in text, and text for a number."""
    is_number = text[max(0, start - 2) : start].strip()[-1:] in {":", ",", "["} and text[end : end + 1] in {
        ",",
        "]",
        "}",
    }
    return f'"{placeholder}"' if is_number else placeholder


_NAMES = re.compile(r'"([^"]{1,200})"[ \t\r\n]*[:,\]]')
"""Names of members, and texts of lists: an option of a command among them tells of the next one."""


def _tells(name: str) -> bool:
    return named(name) is not None


def _without_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice: reading it would drop a value unseen")
    return members


def _plain(text: str, search: _Search, within: Callable[[str, int, int, str], str] | None = None) -> str:
    """A text without its secrets. `within` makes what takes the place of a span."""
    names = within is None
    spans = spans_in(text, search.detectors, names=names)
    for _ in range(MAX_PASSES):
        if not spans:
            return text
        pieces: list[str] = []
        places: list[int] = []
        place = length = 0
        for start, end, kind in spans:
            placeholder = search.placeholder(kind)
            pieces += text[place:start], within(text, start, end, placeholder) if within else placeholder
            length += len(pieces[-2]) + len(pieces[-1])
            places.append(length)
            place = end
        text = "".join((*pieces, text[place:]))
        spans = _spans_around(text, places, search, names=names)
    raise Rejected(f"cannot redact: still finding secrets after {MAX_PASSES} passes")


AROUND = 320
"""Characters beside a placeholder that are searched again."""


def _spans_around(text: str, places: Sequence[int], search: _Search, *, names: bool) -> list[Span]:
    """What placeholders that end at these places have uncovered."""
    if len(text) <= 2 * AROUND or search.detectors:
        return spans_in(text, search.detectors, names=names)
    spans: list[Span] = []
    begin = end = 0
    for place in [*places, len(text) + 2 * AROUND]:
        if place - AROUND > end:
            spans += [
                (begin + start, begin + stop, kind) for start, stop, kind in spans_in(text[begin:end], names=names)
            ]
            begin = place - AROUND
        end = place + AROUND
    return spans


def redacted(text: str) -> str:
    """A text without secrets and personal data; one that cannot be searched to its end is a placeholder."""
    return str(redact(text).value)


LONGEST = 2000
"""Characters of one text of a log line."""


def masked(text: str) -> str:
    """A text that may stand in a log: without secrets that are known by their form, at most `LONGEST` characters."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    return str(redact(cut, ()).value)
