"""The schema of the history: the statements of `deploy/clickhouse/schema.sql`, what tells it from another, and the way
from an earlier one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path

from ratchet.core.resources import resource_dir

_STATEMENT_END = re.compile(r";\s*(?:\n|$)")
_NAME = re.compile(r"(?:CREATE|DROP) (?:TABLE|VIEW|DATABASE) IF (?:NOT )?EXISTS (\w+)")


def schema_statements() -> dict[str, str]:
    """By the name of a table or view: the statement that makes it, harmless where it exists."""
    script = (resource_dir("deploy") / "clickhouse" / "schema.sql").read_text()
    return {_NAME.findall(statement)[0]: statement for statement in statements(script)}


def schema_digest() -> str:
    """What tells one schema from another; comments and blank lines do not count."""
    return digest_of(schema_statements())


def digest_of(made: Mapping[str, str]) -> str:
    """The digest of a schema of these statements."""
    return sha256("\n".join(made.values()).encode()).hexdigest()[:12]


def upgrade_statements(stored: Collection[str], steps: Path | None = None) -> list[str] | None:
    """What brings tables to this schema, harmless where it was done; None where one of the schemas is unknown.

    `stored`: the digests of the schema that made them, and of those that upgrades which were cut off led to. `steps`:
    the folder of steps, `deploy/clickhouse/upgrades`, of which each leads to the next.
    """
    folder = steps or resource_dir("deploy") / "clickhouse" / "upgrades"
    files = sorted(folder.glob("*.sql"), key=lambda file: int(file.stem.partition("-")[0]))
    begins = {file.stem.partition("-")[2]: place for place, file in enumerate(files)} | {schema_digest(): len(files)}
    if not begins.keys() >= set(stored):
        return None
    first = min((begins[digest] for digest in stored), default=len(files))
    return [statement for file in files[first:] for statement in statements(file.read_text())]


def replicated(statement: str, cluster: str | None) -> str:
    """A statement that makes or removes something, for a database on one server, or on all replicas of a cluster.

    ClickHouse Keeper knows a table by the id that all replicas give it (the server's `default_replica_path`). What
    alters a table reaches its replicas by itself.
    """
    if cluster is None:
        return statement
    everywhere = _NAME.sub(rf"\g<0> ON CLUSTER '{cluster}'", statement, count=1)
    return everywhere.replace("ENGINE = Replacing", "ENGINE = ReplicatedReplacing").replace(
        "non_replicated_deduplication_window", "replicated_deduplication_window"
    )


def statements(script: str) -> list[str]:
    """The statements of an SQL script, without comment lines."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in _STATEMENT_END.split(code) if part.strip()]
