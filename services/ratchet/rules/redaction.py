"""Redaction: secrets and personal data become placeholders before anything is written down.

    Redactor().redact({"args": '{"mail": "mia@example.com"}'})
    -> Redacted(value={"args": '{"mail": "[REDACTED:email]"}'}, counts={"email": 1})

Found by name: values of members such as `password`, `api_key`, `Authorization`. Found by form: e-mail addresses, API
keys of known vendors, bearer tokens, JSON web tokens, private keys, `password=...`, credentials in urls, phone numbers
written as such, payment card numbers (issuer's prefix and length, Luhn's check digit). Text that is itself JSON is read
and stays JSON. Redacting twice changes nothing more.

Typed numbers stay numbers. Only inside members that hold what agents like (`FREE`), and in text, are digits a card.

It fails closed: a value that cannot be searched raises, and the caller publishes nothing. A text in which the search
does not end (nested too deeply, too many secrets, secrets that uncover others) becomes one placeholder, so that no text
decides whether its neighbours are published. Every pattern takes time linear in the text: runs are consumed
possessively, or are bounded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import msgspec

from ratchet.errors import Rejected

M = TypeVar("M", bound=msgspec.Struct)
Json = Any
"""Parsed JSON. `Any` because redaction works on every document."""

MAX_DEPTH = 100
"""Deepest nesting that is searched, JSON inside text included; agents' messages have less than ten levels."""
MAX_PASSES = 5
"""A placeholder can uncover a neighbour, so a text is searched until nothing is found; two passes are the rule."""
MAX_FOUND = 5_000
"""Secrets of one kind in one text: a text of secrets has no content worth the seconds that a million of them take."""
FREE = frozenset(
    {"content", "labels", "memory_state", "messages", "output", "raw_data", "response", "tool_args", "tools"}
)
"""Members of our messages under which anything may stand; all other numbers are those of a schema."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """What is left, and how many of each kind were taken out."""

    value: Json
    counts: dict[str, int] = field(default_factory=dict[str, int])


class Redactor:
    """Replaces secrets and personal data in JSON values. Has no state."""

    def redact(self, value: Json) -> Redacted:
        """`value` with placeholders. Raises `Rejected` when it is not JSON or is nested too deeply."""
        counts: Counter[str] = Counter()
        redacted = _redact(value, _Search(counts), MAX_DEPTH)
        return Redacted(redacted, dict(counts))


def redact_message(redactor: Redactor, message: M) -> tuple[M, dict[str, int]]:
    """A message as it may be published, and how many of each kind were taken out. Raises `Rejected`."""
    redacted = redactor.redact(msgspec.to_builtins(message))
    if not redacted.counts:
        return message, {}
    try:
        return msgspec.convert(redacted.value, type(message)), redacted.counts
    except msgspec.ValidationError as error:
        raise Rejected(f"cannot redact: {type(message).__name__} is none any more without its secrets") from error


@dataclass(frozen=True, slots=True)
class _Rule:
    """One form of secret: the group of every accepted match that is last to match is replaced."""

    kind: str
    hints: tuple[str, ...]
    """Lower-case texts one of which stands in every match; none for numbers."""
    pattern: re.Pattern[str]
    accept: Callable[[str], bool] = bool


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_value(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _is_token(text: str) -> bool:
    """Prose that follows a word such as `bearer` has neither digits nor length."""
    return len(text) >= 8 and (_has_digit(text) or len(text) >= 24)


def _is_phone(text: str) -> bool:
    """E.164 allows 15 digits; less than ten may be a sum or a date."""
    return 10 <= sum(character.isdigit() for character in text) <= 15


_ISSUERS = re.compile(
    r"4(?:\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"  # American Express, Diners
    r"|(?:6011\d\d|64[4-9]\d{3}|65\d{4})\d{10}|35(?:2[89]|[3-8]\d)\d{12}"  # Discover, JCB
)


def _is_card_number(value: int) -> bool:
    return 10**12 <= value < 10**19 and _is_card(str(value))


def _is_card(text: str) -> bool:
    """An issuer's prefix and length, and ISO/IEC 7812's check digit."""
    digits = re.sub(r"[ -]", "", text)
    if not _ISSUERS.fullmatch(digits):
        return False
    weighted = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in weighted) % 10 == 0


_FRESH = r"(?!\[REDACTED:)"
_ASSIGNED_VALUES = (
    rf"""\\{{1,3}}["']{_FRESH}(?P<escaped>[^"'\\]++)""",
    rf'"{_FRESH}(?P<double>(?:[^"\\]|\\.)++)',
    rf"'{_FRESH}(?P<single>(?:[^'\\\n]|\\.)++)",
    rf"""(?!["'\\]){_FRESH}(?P<bare>[^\s"',;&<>]++)""",
)
"""A value after `name =`: in escaped quotes, in quotes of either kind, bare."""


def _assigned(kind: str, hints: tuple[str, ...], name: str, accept: Callable[[str], bool]) -> _Rule:
    """The rule for `name = value` in text, code, urls and broken JSON."""
    equals = r"""\\{0,3}["']?[ \t]{0,4}(?::=|=>|==?|:)[ \t]{0,4}"""
    pattern = re.compile(f"{name}{equals}(?:{'|'.join(_ASSIGNED_VALUES)})", re.IGNORECASE)
    return _Rule(kind, hints, pattern, accept)


_API_KEYS = re.compile(
    r"(?<![A-Za-z0-9_-])(?P<secret>sk-[\w-]{16,}+|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])|gh[oprsu]_[A-Za-z0-9]{20,}+"
    r"|github_pat_\w{20,}+|glpat-[\w-]{16,}+|xox[abeoprs]-[\w-]{10,}+|AIza[\w-]{35}|hf_[A-Za-z0-9]{20,}+"
    r"|gsk_[A-Za-z0-9]{20,}+|npm_[A-Za-z0-9]{30,}+|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+)"
)
_API_KEY_HINTS = ("sk-", "akia", "asia", "gh", "glpat-", "xox", "aiza", "hf_", "gsk_", "npm_", "k_live_", "k_test_")
_AUTHORIZATION = re.compile(
    r"""authorization\\{0,3}["']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}["']?(?:basic|digest|token|apikey)[ \t]{1,4}"""
    rf"""{_FRESH}(?P<secret>[^\s"',\\]{{4,}}+)""",
    re.IGNORECASE,
)
_RULES = [
    _Rule(
        "private_key",
        ("private key",),
        re.compile(
            r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?!-----END)[\s\S])*+(?:-----END [A-Z ]{0,60}-----)?)"
        ),
    ),
    _Rule(
        "password",
        ("://",),
        re.compile(rf"""://[^\s/:@"']{{0,128}}:{_FRESH}(?P<secret>[^\s/@"']{{1,256}})@"""),
    ),
    _assigned("password", ("passw", "passphrase", "pwd"), r"(?:passw(?:or)?d|passphrase|\bpwd)[\w-]{0,20}", _is_value),
    _Rule("token", ("authorization",), _AUTHORIZATION),
    _Rule(
        "token",
        ("bearer",),
        re.compile(r"\bbearer[ \t]{1,4}(?P<secret>[A-Za-z0-9._~+/=-]{8,}+)", re.IGNORECASE),
        _is_token,
    ),
    _Rule("token", ("eyj",), re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+)")),
    _Rule("api_key", _API_KEY_HINTS, _API_KEYS, _has_digit),
    _assigned(
        "api_key",
        ("key", "token", "secret"),
        r"(?:(?:api|secret|private)[_-]?(?:access[_-]?)?key|(?:access|auth|refresh)[_-]?token|client[_-]?secret)",
        _is_token,
    ),
    _Rule(
        "email",
        ("@",),
        re.compile(r"(?<![\w.%+-])(?!git@)(?P<secret>[\w.%+-]++@(?:[\w-]++\.)+[^\W\d_]{2,})"),
    ),
    _Rule(
        "card",
        (),
        re.compile(
            r"(?<![\w.-])(?P<secret>\d{13,19}|\d{4}([ -])\d{4}\2\d{4}\2\d{4}|\d{4}([ -])\d{6}\3\d{5})(?![\w-]|\.\d)"
        ),
        _is_card,
    ),
    _Rule("phone", ("+",), re.compile(r"(?<![\w+.])(?P<secret>\+\d[\d ().-]{7,20}\d)(?!\w)"), _is_phone),
    _Rule(
        "phone",
        (),
        re.compile(r"(?<![\w.-])(?P<secret>(?:\(\d{3}\) ?\d{3}-|\d{3}([.-])\d{3}\2)\d{4})(?![\w-])"),
    ),
]

_HINTS = sorted({hint for rule in _RULES for hint in rule.hints})
_SHORTEST = 5
"""`pwd=x`, `a@b.de`: nothing shorter is a secret by its form."""
_NUMBER = re.compile(r"[0-9]{3}")

_PASSWORD_NAME = re.compile(r".*(?:password|passwd|passphrase)|pwd")
_SECRET_NAME = re.compile(
    r".*(?:apikey|secretkey|secretaccesskey|privatekey|accesstoken|authtoken|refreshtoken|clientsecret)"
    r"|secret|bearertoken|sessiontoken|idtoken|(?:proxy)?authorization|(?:set)?cookie"
)


@dataclass(frozen=True, slots=True)
class _Search:
    """What was taken out so far, of a message or of one text of it."""

    counts: Counter[str]
    in_text: bool = False
    """Whether this is JSON that a text spells: texts in it are part of that text, and its numbers are digits."""

    def placeholder(self, kind: str) -> str:
        """Takes the place of a secret, which is counted. Raises `Rejected` when a text holds too many."""
        self.counts[kind] += 1
        if self.in_text and self.counts[kind] > MAX_FOUND:
            raise Rejected(f"cannot redact: more than {MAX_FOUND} secrets in one text")
        return f"[REDACTED:{kind}]"


def _redact(value: Json, search: _Search, depth: int, *, free: bool = False) -> Json:
    """`value` with placeholders. `free`: no schema types its numbers."""
    if depth <= 0:
        raise Rejected(f"cannot redact: nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        return _spelled(value, search, depth) if search.in_text else _text(value, search, _spelled)
    if isinstance(value, int):
        return search.placeholder("card") if (free or search.in_text) and _is_card_number(value) else value
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
        key = _unused(_plain(name, search, depth) if search.in_text else _text(name, search, _plain), redacted)
        kind, inside = _kind_by_name(name), free or name in FREE
        redacted[key] = (
            _hide(value, kind, search, depth - 1) if kind else _redact(value, search, depth - 1, free=inside)
        )
    return redacted


def _unused(name: str, taken: dict[str, Json]) -> str:
    """`name`, numbered if another member already has it: no member is lost."""
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name} {number}"
    return unused


@lru_cache(4096)
def _kind_by_name(name: str) -> str | None:
    """What the value of a member of this name is, whatever it looks like."""
    letters = re.sub(r"[\W_]", "", name[-64:]).lower()
    if _PASSWORD_NAME.fullmatch(letters):
        return "password"
    return "secret" if _SECRET_NAME.fullmatch(letters) else None


def _hide(value: Json, kind: str, search: _Search, depth: int) -> Json:
    """A secret by name: texts and numbers go, also in a list; an object is not itself the secret (a tool's schema)."""
    if isinstance(value, list) and depth > 0:
        return [_hide(item, kind, search, depth - 1) for item in cast("list[Json]", value)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_text = isinstance(value, str) and value != "" and not _PLACEHOLDER.fullmatch(value)
    return search.placeholder(kind) if is_number or is_text else _redact(value, search, depth, free=True)


_PLACEHOLDER = re.compile(r"\[REDACTED:[a-z_]+\]")


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
    document = _document(text)
    if document is None:
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


class _RepeatedName(ValueError):
    """JSON in which a name stands twice: reading it would drop a value unseen."""


def _document(text: str) -> Json:
    """The object or list that `text` spells, None where it spells none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return None


def _without_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _RepeatedName
    return members


def _plain(text: str, search: _Search, _depth: int) -> str:
    for _ in range(MAX_PASSES):
        before = text
        for rule in _relevant(text):
            text = rule.pattern.sub(partial(_replaced, rule, search), text)
        if text == before:
            return text
    raise Rejected(f"cannot redact: still finding secrets after {MAX_PASSES} passes")


def _relevant(text: str) -> list[_Rule]:
    """The rules that can match: most texts are short and hold no hint at all."""
    if len(text) < _SHORTEST:
        return []
    lower = text.lower()
    hints = [hint for hint in _HINTS if hint in lower]
    has_number = _NUMBER.search(text) is not None
    if not hints and not has_number:
        return []
    return [rule for rule in _RULES if (any(hint in hints for hint in rule.hints) if rule.hints else has_number)]


def _replaced(rule: _Rule, search: _Search, match: re.Match[str]) -> str:
    group = match.lastgroup or "secret"
    secret = match[group]
    if not rule.accept(secret):
        return match[0]
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:start] + search.placeholder(rule.kind) + match[0][end:]


LONGEST = 2000
"""Characters of one text of a log line."""
_BY_FORM = Redactor()


def masked(text: str) -> str:
    """A text that may stand in a log: without secrets that are known by their form, at most `LONGEST` characters."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    try:
        return str(_BY_FORM.redact(cut).value)
    except Rejected:
        return "[not shown]"
