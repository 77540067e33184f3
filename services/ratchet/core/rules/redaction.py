"""Redaction: secrets and personal data become placeholders before anything is written down.

    redact({"args": '{"mail": "mia@example.com"}'})
    -> Redacted(value={"args": '{"mail": "[REDACTED:email]"}'}, counts={"email": 1})

By name: values of members such as `password`, `api_key`, `Authorization`. By form: e-mail addresses, API
keys of known vendors, bearer tokens, JSON web tokens, private keys, `password=...`, credentials in urls, phone numbers
written as such, payment card numbers (issuer's prefix and length, Luhn's check digit). Text that is itself JSON is read
and stays JSON. Redacting twice changes nothing more.

Typed numbers stay numbers. Digits are a card only in text and inside members that agents fill freely (`FREE`).

It fails closed: a value that cannot be searched raises, and the caller publishes nothing. A text in which the search
does not end (nested too deeply, too many secrets, secrets that uncover others) becomes one placeholder, so that no text
decides whether its neighbours are published.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from ratchet.core.errors import Rejected
from ratchet.core.rules.secret_forms import is_card, is_clean_name, kind_by_name, relevant_forms

M = TypeVar("M", bound=msgspec.Struct)
Json = Any
"""Parsed JSON. `Any` because redaction works on every document."""

MAX_DEPTH = 100
"""Deepest nesting that is searched, JSON inside text included; agents' messages have less than ten levels."""
MAX_PASSES = 5
"""A placeholder can uncover a neighbour, so a text is searched until a pass takes nothing out; usually the second."""
MAX_SECRETS = 5_000
"""Secrets of one kind in one text: a text of secrets has no content worth the seconds that a million of them take."""
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


def redact(value: Json) -> Redacted:
    """`value` with placeholders for secrets and personal data. Raises `Rejected` when it is not JSON or is nested too
    deeply."""
    counts: Counter[str] = Counter()
    redacted = _redact(value, _Search(counts), MAX_DEPTH)
    return Redacted(redacted, dict(counts))


def redact_message(message: M) -> tuple[M, dict[str, int]]:
    """A message as it may be published, and how many of each kind were taken out. Raises `Rejected`."""
    redacted = redact(msgspec.to_builtins(message))
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
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        if (value.startswith("data:") and _MEDIA.fullmatch(value)) or _is_clean(value):
            return value
        return _spelled(value, search, depth) if search.in_text else _text(value, search, _spelled)
    if isinstance(value, int):
        looks_like_card = (free or search.in_text) and 10**12 <= value < 10**19 and is_card(str(value))
        return search.placeholder("card") if looks_like_card else value
    if isinstance(value, list):
        return [_redact(item, search, depth - 1, free=free) for item in cast("list[Json]", value)]
    if isinstance(value, dict):
        return _redact_object(cast("dict[Json, Json]", value), search, depth, free=free)
    raise Rejected(f"cannot redact: {type(value).__name__} is not JSON")


def _redact_object(members: dict[Json, Json], search: _Search, depth: int, *, free: bool) -> dict[str, Json]:
    redacted: dict[str, Json] = {}
    for name, value in members.items():
        if not isinstance(name, str):
            raise Rejected(f"cannot redact: a member is named by {type(name).__name__}, not by text")
        key = plain = name
        if not is_clean_name(name):
            key = plain = _plain(name, search, depth) if search.in_text else _text(name, search, _plain)
        number = 1
        while key in redacted:  # numbered, so that no member is lost
            number += 1
            key = f"{plain} {number}"
        kind, inside = kind_by_name(name), free or name in FREE
        redacted[key] = (
            _hide(value, kind, search, depth - 1) if kind else _redact(value, search, depth - 1, free=inside)
        )
    return redacted


def _hide(value: Json, kind: str, search: _Search, depth: int) -> Json:
    """A secret by name: texts and numbers go, also in a list; an object is not itself the secret (a tool's schema)."""
    if isinstance(value, list) and depth > 0:
        return [_hide(item, kind, search, depth - 1) for item in cast("list[Json]", value)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_text = isinstance(value, str) and value != "" and not _PLACEHOLDER.fullmatch(value)
    return search.placeholder(kind) if is_number or is_text else _redact(value, search, depth, free=True)


_PLACEHOLDER = re.compile(r"\[REDACTED:[a-z_]+\]")


def _is_clean(text: str) -> bool:
    """Most texts: they spell no JSON, and no form can match."""
    return not text.lstrip().startswith(("{", "[")) and not relevant_forms(text)


def _text(text: str, search: _Search, redact: Callable[[str, _Search, int], str]) -> str:
    """A text of a message; one in which the search does not end is a placeholder, and its message goes on."""
    inside = _Search(Counter(), in_text=True)
    try:
        redacted = redact(text, inside, MAX_DEPTH)
    except Rejected:
        return search.placeholder("unsearchable")
    search.counts.update(inside.counts)
    return redacted


def _spelled(text: str, search: _Search, depth: int) -> str:
    """A text that may spell JSON, which then stays JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return _plain(text, search, depth)
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return _plain(text, search, depth)
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


def _without_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice: reading it would drop a value unseen")
    return members


def _plain(text: str, search: _Search, _depth: int) -> str:
    for _ in range(MAX_PASSES):
        before = text
        for form in relevant_forms(text):
            text = form.replaced_in(text, search.placeholder)
        if text == before:
            return text
    raise Rejected(f"cannot redact: still finding secrets after {MAX_PASSES} passes")


def redacted(text: str) -> str:
    """A text without secrets and personal data; one that cannot be searched to its end is a placeholder."""
    return str(redact(text).value)


LONGEST = 2000
"""Characters of one text of a log line."""


def masked(text: str) -> str:
    """A text that may stand in a log: without secrets that are known by their form, at most `LONGEST` characters."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    return redacted(cut)
