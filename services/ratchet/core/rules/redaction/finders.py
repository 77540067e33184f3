"""How a kind of secret is found at the place of its mark: by a pattern, by a package's rule, by a check of digits.

Every pattern takes time linear in the text: runs are bounded, or consumed possessively.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

from ratchet.core.rules.redaction import checks

Span = tuple[int, int, str]
"""Start, end, kind."""
Find = Callable[[str, int], "Span | None"]
"""From a text and the place of a mark, the span of the secret there."""


def at(kind: str, pattern: str, accept: Callable[[str], bool] = bool, flags: re.RegexFlag = re.NOFLAG) -> Find:
    """A find for a pattern that begins at the mark. The secret is its group `secret`, or all."""
    compiled = re.compile(pattern, flags)

    def find(text: str, place: int) -> Span | None:
        match = compiled.match(text, place)
        if match is None:
            return None
        group = "secret" if "secret" in compiled.groupindex else 0
        return (*match.span(group), kind) if accept(match[group]) else None

    return find


def of_package(*rules: str, back: int = 0) -> Find:
    """A find for rules of detect-secrets, `module.Class`, that match from the mark, or `back` characters before it."""

    def find(text: str, place: int) -> Span | None:
        for pattern in _patterns(rules):
            for start in {max(0, place - back), max(0, place - back - 1)}:  # some begin with what stands before
                match = pattern.match(text, start)
                if match is not None:
                    return (*match.span(), "api_key")
        return None

    return find


@cache
def _patterns(rules: tuple[str, ...]) -> list[re.Pattern[str]]:
    patterns: list[re.Pattern[str]] = []
    for rule in rules:
        module, _, name = rule.partition(".")
        patterns += getattr(import_module(f"detect_secrets.plugins.{module}"), name).denylist
    return patterns


_LOCAL = re.compile(r"[\w.%+-]{1,64}\Z")
_DOMAIN = re.compile(r"@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}")
_NO_PERSON = re.compile(r"(?:git|(?i:no-?reply)|[\d.]+)\Z")


def email(text: str, place: int) -> Span | None:
    local, domain = _LOCAL.search(text, max(0, place - 64), place), _DOMAIN.match(text, place)
    if local is None or domain is None or _NO_PERSON.match(local[0]):
        return None
    return (local.start(), domain.end(), "email")


_CALLABLE = re.compile(r"(?:\+|\(?0|\(?\d)[\d ().\-/\u00a0]{6,22}\d")
_US = re.compile(r"\(\d{3}\) ?\d{3}[-.]\d{4}(?!\d)|(?:1[-.])?\d{3}([.-])\d{3}\1\d{4}(?!\d)")
_PHONE_WORD = re.compile(
    r"[pPmMcCtTfFwWsS☎📞](?:(?<=[☎📞])|(?<=[pP])(?i:hone)|(?<![A-Za-z].)(?:(?<=[mM])(?i:obile)|(?<=[cC])(?i:ell|all)"
    r"|(?<=[tT])(?i:el|éléphone)|(?<=[fF])(?i:ax)|(?<=[wW])(?i:hatsapp)|(?<=[sS])(?i:ms)))"
)


def phone(text: str, place: int) -> Span | None:
    """With `+`; as in the United States; at home with a leading 0; or after a word for a phone."""
    american = _US.match(text, place)
    if american is not None and text[place - 1 : place] not in {"-", "."}:
        return (*american.span(), "phone")
    for before in ("(", "+"):
        place -= text[place - 1 : place] == before
    if (american := _US.match(text, place)) is not None:
        return (*american.span(), "phone")
    match = _CALLABLE.match(text, place)
    if match is None or not _is_written_so(text, match):
        return None
    if match[0].startswith("(") and ")" not in match[0]:  # the parenthesis is not the number's
        place += 1
    number = text[place : match.end()]
    return (place, match.end(), "phone") if checks.is_phone(number) else None


def _is_written_so(text: str, match: re.Match[str]) -> bool:
    """Whether people write a phone number so: not one that is an IP address, a fraction, a date or an id."""
    number, place = match[0], match.start()
    digits = sum(map(str.isdigit, number))
    if not 8 <= digits <= 15 or re.search(r"[.,]\d\Z", number) or _ADDRESS.match(number):
        return False
    if number[0] == "+":
        return digits >= 9
    if number.lstrip("(")[0] == "0":
        return digits >= 9 and _SPACED.match(number) is not None
    return not text[place - 1 : place].isalpha() and _PHONE_WORD.search(text, max(0, place - 32), place) is not None


_ADDRESS = re.compile(r"\(?\d{1,3}(?:\.\d{1,3}){3}\Z")
_SPACED = re.compile(r"(?!0\d[-/.]\d\d[-/.]\d{2,4})\(?0\d{1,5}[ ./()-]")
"""As people write a number at home, and no date."""


def url_password(text: str, place: int) -> Span | None:
    match = _IN_URL.match(text, place)
    if match is None or match["secret"].startswith(("[REDACTED:", "${", "{", "<", "$", "%s", "***")):
        return None
    return (*match.span("secret"), "password")


_IN_URL = re.compile(r"""://[^\s/:@"']{0,128}:(?P<secret>[^\s/@"']{1,256})@""")
PEM = (
    r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----END)[\s\S])*+(?:-----END [A-Z0-9 ]{0,60}-----)?)"
)
