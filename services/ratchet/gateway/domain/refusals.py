"""A server's own sentence about a refusal, as agents and turns may have it: short, on one line, without secrets.

Servers quote keys in it, whole or with stars, of any vendor's dialect: so everything that may be one is left out.
"""

from __future__ import annotations

import re

from ratchet.core.errors import Rejected
from ratchet.core.rules.redaction import redact

QUOTED = 300
"""Most characters of it."""
READ = 4_000
"""More of an error is not read: it may be a page, or an echo of the prompt."""
SECRET = "[REDACTED:key]"  # noqa: S105 - the placeholder

_KEY = re.compile(
    r"[^\s\"'`]*\*{2,}[^\s\"'`]*"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|\b(?:sk|pk|key|api|tok|token)[-_][\w+/=-]{6,}"
    r"|(?<![\w+/=])(?=[\w+/=]*\d)(?=[\w+/=]*[A-Za-z])[\w+/=]{20,}(?![\w+/=])"
)
"""Keys in part, as UUIDs, by their beginning, or as long runs of letters and digits. Names of models have hyphens, dots
and colons within each twenty characters."""


def sentence_of(text: str) -> str:
    """What a server wrote, in at most `QUOTED` characters and without what may be a key; empty where it has none."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:READ]).split())
    try:
        safe = str(redact(line).value)
    except Rejected:
        return ""
    safe = _KEY.sub(SECRET, safe)
    return safe if len(safe) <= QUOTED else f"{safe[: QUOTED - 1]}…"
