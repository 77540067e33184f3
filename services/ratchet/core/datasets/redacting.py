"""A data set without secrets and personal data: records of JSON lines, as exports and logs hold them.

Token ids decode to what they spell: a record with a secret whose tokens stand beside it is left out, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ratchet.core.errors import Rejected
from ratchet.core.rules.redaction import redact

Json = Any
"""Parsed JSON. `Any` because records have many forms."""
TOKENS = frozenset({"prompt_token_ids", "output_token_ids", "token_ids", "input_ids", "completion_ids", "prompt_ids"})
"""Members that hold token ids."""


@dataclass(slots=True)
class RedactionSummary:
    """What became of a data set's records."""

    records: int = 0
    """That were written."""
    changed: int = 0
    """Of them, those with a placeholder."""
    left_out: int = 0
    """Held a secret and the token ids that spell it."""
    redactions: Counter[str] = field(default_factory=Counter[str])
    """Placeholders by kind."""


def redacted_records(lines: Iterable[bytes], summary: RedactionSummary) -> Iterator[bytes]:
    """Records without secrets, each a line; counts them in `summary`. Raises `Rejected`, which names the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line)
            safe = redact(_apart(record))
        except (msgspec.DecodeError, Rejected) as error:
            raise Rejected(f"line {number}: {error}") from error
        if safe.counts and _has_tokens(record):
            summary.left_out += 1
            continue
        summary.records += 1
        summary.changed += bool(safe.counts)
        summary.redactions.update(safe.counts)
        yield (msgspec.json.encode(safe.value) if safe.counts else line.rstrip(b"\r\n")) + b"\n"


def _apart(value: Json) -> Json:
    """The record without its token ids, which are thousands of numbers and no text."""
    if isinstance(value, dict):
        members = cast("Mapping[str, Json]", value)
        return {name: _apart(inner) for name, inner in members.items() if name not in TOKENS}
    return [*map(_apart, cast("list[Json]", value))] if isinstance(value, list) else value


def _has_tokens(value: Json) -> bool:
    if isinstance(value, dict):
        members = cast("Mapping[str, Json]", value)
        return any((name in TOKENS and bool(inner)) or _has_tokens(inner) for name, inner in members.items())
    return isinstance(value, list) and any(map(_has_tokens, cast("list[Json]", value)))
