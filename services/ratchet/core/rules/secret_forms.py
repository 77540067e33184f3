"""The forms of secrets and personal data in text, and the names of members that hold them.

Every pattern takes time linear in the text: runs are consumed possessively, or are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Form:
    """One form of secret. The secret is the group of a match that matched last."""

    kind: str
    hints: tuple[str, ...]
    """Lower-case texts one of which stands in every match; none for numbers."""
    pattern: re.Pattern[str]
    accept: Callable[[str], bool] = bool

    def replaced_in(self, text: str, placeholder: Callable[[str], str]) -> str:
        """`text` with a placeholder, made for the kind, in the place of every secret that is accepted."""

        def replaced(match: re.Match[str]) -> str:
            group = match.lastgroup or "secret"
            if not self.accept(match[group]):
                return match[0]
            start, end = match.start(group) - match.start(), match.end(group) - match.start()
            return match[0][:start] + placeholder(self.kind) + match[0][end:]

        return self.pattern.sub(replaced, text)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_token(text: str) -> bool:
    """Prose that follows a word such as `bearer` has neither digits nor length."""
    return len(text) >= 8 and (_has_digit(text) or len(text) >= 24)


_ISSUERS = re.compile(
    r"4(?:\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"  # American Express, Diners
    r"|(?:6011\d\d|64[4-9]\d{3}|65\d{4})\d{10}|35(?:2[89]|[3-8]\d)\d{12}"  # Discover, JCB
)


def is_card(text: str) -> bool:
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


def _assigned(kind: str, hints: tuple[str, ...], name: str, accept: Callable[[str], bool]) -> Form:
    """The rule for `name = value` in text, code, urls and broken JSON."""
    equals = r"""\\{0,3}["']?[ \t]{0,4}(?::=|=>|==?|:)[ \t]{0,4}"""
    pattern = re.compile(f"{name}{equals}(?:{'|'.join(_ASSIGNED_VALUES)})", re.IGNORECASE)
    return Form(kind, hints, pattern, accept)


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
FORMS = [
    Form(
        "private_key",
        ("private key",),
        re.compile(
            r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?!-----END)[\s\S])*+(?:-----END [A-Z ]{0,60}-----)?)"
        ),
    ),
    Form(
        "password",
        ("://",),
        re.compile(rf"""://[^\s/:@"']{{0,128}}:{_FRESH}(?P<secret>[^\s/@"']{{1,256}})@"""),
    ),
    _assigned(
        "password",
        ("passw", "passphrase", "pwd"),
        r"(?:passw(?:or)?d|passphrase|\bpwd)[\w-]{0,20}",
        lambda text: any(map(str.isalnum, text)),
    ),
    Form("token", ("authorization",), _AUTHORIZATION),
    Form(
        "token",
        ("bearer",),
        re.compile(r"\bbearer[ \t]{1,4}(?P<secret>[A-Za-z0-9._~+/=-]{8,}+)", re.IGNORECASE),
        _is_token,
    ),
    Form("token", ("eyj",), re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+)")),
    Form("api_key", _API_KEY_HINTS, _API_KEYS, _has_digit),
    _assigned(
        "api_key",
        ("key", "token", "secret"),
        r"(?:(?:api|secret|private)[_-]?(?:access[_-]?)?key|(?:access|auth|refresh)[_-]?token|client[_-]?secret)",
        _is_token,
    ),
    Form(
        "email",
        ("@",),
        re.compile(r"(?<![\w.%+-])(?!git@|(?i:no-?reply)@)(?P<secret>[\w.%+-]++@(?:[\w-]++\.)+[^\W\d_]{2,})"),
    ),
    Form(
        "card",
        (),
        re.compile(
            r"(?<![\w.-])(?P<secret>\d{13,19}|\d{4}([ -])\d{4}\2\d{4}\2\d{4}|\d{4}([ -])\d{6}\3\d{5})(?![\w-]|\.\d)"
        ),
        is_card,
    ),
    Form(
        "phone",
        ("+",),
        re.compile(r"(?<![\w+.])(?P<secret>\+\d[\d ().-]{7,20}\d)(?!\w)"),
        lambda text: 10 <= sum(map(str.isdigit, text)) <= 15,  # E.164 allows 15; fewer than ten may be a sum or a date
    ),
    Form(
        "phone",
        (),
        re.compile(r"(?<![\w.-])(?P<secret>(?:\(\d{3}\) ?\d{3}-|\d{3}([.-])\d{3}\2)\d{4})(?![\w-])"),
    ),
]

_HINTS = sorted({hint for form in FORMS for hint in form.hints})
_SHORTEST = 5
"""`pwd=x`, `a@b.de`: nothing shorter is a secret by its form."""
_NUMBER = re.compile(r"[0-9]\d\d(?:\d{10}|\d[ -]\d{4}|[.-]\d{3}|\) ?\d{3}-)")
"""Stands in every number that a form takes, and in few dates, ids and figures. It begins with a set, which is searched
three times as fast as a class or a repeat."""

_PASSWORD_NAME = re.compile(r".*(?:password|passwd|passphrase)|pwd")
_SECRET_NAME = re.compile(
    r".*(?:apikey|secretkey|secretaccesskey|privatekey|accesstoken|authtoken|refreshtoken|clientsecret)"
    r"|secret|bearertoken|sessiontoken|idtoken|(?:proxy)?authorization|(?:set)?cookie"
)


def relevant_forms(text: str) -> list[Form]:
    """The forms that can match: most texts are short and hold no hint at all."""
    if len(text) < _SHORTEST:
        return []
    lower = text.lower()
    hints = [hint for hint in _HINTS if hint in lower]
    has_number = _NUMBER.search(text) is not None
    if not hints and not has_number:
        return []
    return [form for form in FORMS if (any(hint in hints for hint in form.hints) if form.hints else has_number)]


@lru_cache(4096)
def is_clean_name(name: str) -> bool:
    """Whether no form can match the name of a member; the names of a message repeat."""
    return not relevant_forms(name)


@lru_cache(4096)
def kind_by_name(name: str) -> str | None:
    """The kind of secret that a member of this name holds, in any form; None for any other name."""
    letters = re.sub(r"[\W_]", "", name[-64:]).lower()
    if _PASSWORD_NAME.fullmatch(letters):
        return "password"
    return "secret" if _SECRET_NAME.fullmatch(letters) else None
