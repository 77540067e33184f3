"""Texts that people and agents write: when two are the same to their readers, how they are shown, what names a
trajectory, or a user.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
import uuid

from ratchet.bus.message import named_id

MOST_MARKS = 30
"""Combining marks after one letter that count: the limit of Unicode's stream-safe text. Longer runs take quadratic time
to be put in order, and no language has them."""


def same_form(text: str) -> str:
    """`text` in one form of letters (NFKC), without letter case, each run of white space as one space."""
    if text.isascii():
        return " ".join(text.casefold().split())
    kept: list[str] = []
    marks = 0
    for letter in text:
        marks = marks + 1 if unicodedata.combining(letter) else 0
        if marks <= MOST_MARKS:
            kept.append(letter)
    return " ".join(unicodedata.normalize("NFKC", "".join(kept)).casefold().split())


MARKS = "\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f"
"""Characters that change the order or the look of the text around them."""
_UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{MARKS}\ud800-\udfff]")
"""Control characters, which a terminal obeys, and marks; without line ends and tabs."""


def shown(text: str) -> str:
    """`text` for a terminal: agents' and users' text is data, so its control characters are escaped."""

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return _UNSAFE.sub(escaped, text)


def one_line(text: str, longest: int) -> str:
    """On one line without what cannot be seen: no control characters, no marks that turn the direction of writing.

    A longer one ends with `…`.
    """
    shown = "".join(" " if unicodedata.category(mark)[0] in "CZ" else mark for mark in text[: 4 * longest])
    line = " ".join(shown.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


NAME_CHARACTERS = 200
"""Longest name of a trajectory, run, thread, session or conversation."""


def is_name(text: str) -> bool:
    """Whether a text can be a trajectory's name."""
    return 0 < len(text) <= NAME_CHARACTERS and text.isprintable()


def id_of_name(name: str, key: str = "") -> str:
    """The id of the first trajectory of a name, which counts for one key if that is given; a UUID is the id itself."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return named_id("trajectory", key, name) if key else named_id("trajectory", name)


def user_ref(key: str | None, user: str | None) -> str | None:
    """Keyed hash of an end user's name: equal users stay equal, and without the key are unknown; None without either.

    Opting out and unlearning find a user's data by it, whichever way it came.
    """
    if key is None or user is None:
        return None
    return hmac.new(key.encode(), user.encode(), hashlib.sha256).hexdigest()


USER_REF = re.compile(r"[0-9a-f]{64}")
"""What `user_ref` makes; other producers may have other hashes."""
