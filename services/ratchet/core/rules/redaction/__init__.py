"""Redaction: secrets and personal data become placeholders before anything is written down.

    redact({"args": '{"mail": "mia@example.com"}'})
    -> Redacted(value={"args": '{"mail": "[REDACTED:email]"}'}, counts={"email": 1})

| file | holds |
|---|---|
| `kinds.py` | the table: every kind once, with its marks, how it is found, an example |
| `names.py`, `values.py` | names that tell of secrets, and values beside them in text |
| `finders.py`, `checks.py` | patterns and rules of packages at a mark; check digits, issuers, chance |
| `search.py` | one text: one pass over all marks, rules where they stand, other spellings |
| `walking.py` | JSON, and JSON inside text |
| `detectors.py` | detectors that a setting adds; the digest of all rules |

Redacting twice changes nothing more. It fails closed: a value that cannot be searched raises, and the caller publishes
nothing. A text in which the search does not end (nested too deeply, too many secrets, secrets that uncover others)
becomes one placeholder, so that no text decides whether its neighbours are published.
"""

from ratchet.core.rules.redaction.detectors import rules_digest
from ratchet.core.rules.redaction.walking import (
    LONGEST,
    MAX_DEPTH,
    MAX_SECRETS,
    Redacted,
    masked,
    redact,
    redact_message,
    redacted,
)

__all__ = [
    "LONGEST",
    "MAX_DEPTH",
    "MAX_SECRETS",
    "Redacted",
    "masked",
    "redact",
    "redact_message",
    "redacted",
    "rules_digest",
]
