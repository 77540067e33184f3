"""The schema of the history: the statements of `deploy/clickhouse/schema.sql`, and what tells it from another."""

from __future__ import annotations

import re
from hashlib import sha256

from ratchet.core.resources import resource_dir

_STATEMENT_END = re.compile(r";\s*(?:\n|$)")


def schema_statements() -> list[str]:
    """The statements that make the tables and views, each harmless where what it makes exists."""
    return statements((resource_dir("deploy") / "clickhouse" / "schema.sql").read_text())


def schema_digest() -> str:
    """What tells one schema from another; comments and blank lines do not count."""
    return sha256("\n".join(schema_statements()).encode()).hexdigest()[:12]


def statements(script: str) -> list[str]:
    """The statements of an SQL script, without comment lines."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in _STATEMENT_END.split(code) if part.strip()]
