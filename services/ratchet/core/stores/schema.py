"""The schema of the history: the statements of `deploy/clickhouse/schema.sql`, and what tells it from another."""

from __future__ import annotations

import re
from hashlib import sha256

from ratchet.core.resources import resource_dir

_STATEMENT_END = re.compile(r";\s*(?:\n|$)")
_NAME = re.compile(r"CREATE (?:TABLE|VIEW|DATABASE) IF NOT EXISTS (\w+)")


def schema_statements() -> dict[str, str]:
    """By the name of a table or view: the statement that makes it, harmless where it exists."""
    script = (resource_dir("deploy") / "clickhouse" / "schema.sql").read_text()
    return {_NAME.findall(statement)[0]: statement for statement in statements(script)}


def replicated(statement: str, cluster: str | None) -> str:
    """A statement that makes something, for a database that lies on one server, or on all replicas of a cluster.

    ClickHouse Keeper knows a table by the id that all replicas give it (the server's `default_replica_path`).
    """
    if cluster is None:
        return statement
    everywhere = _NAME.sub(rf"\g<0> ON CLUSTER '{cluster}'", statement, count=1)
    return everywhere.replace("ENGINE = Replacing", "ENGINE = ReplicatedReplacing").replace(
        "non_replicated_deduplication_window", "replicated_deduplication_window"
    )


def schema_digest() -> str:
    """What tells one schema from another; comments and blank lines do not count."""
    return sha256("\n".join(schema_statements().values()).encode()).hexdigest()[:12]


def statements(script: str) -> list[str]:
    """The statements of an SQL script, without comment lines."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in _STATEMENT_END.split(code) if part.strip()]
