"""Checks what running services stored against the contracts: every value of a bucket, every manifest, every row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.snapshot import ROWS
from ratchet.core.datasets.parquet import read_rows
from ratchet.core.stores.objects import Objects
from tests.support.contract_files import STORED, fast

PARAMETERS = {
    "role": "[a-z0-9_-]+",
    "version": "[0-9]+",
    "number": "[0-9]+",
    "projection": "[a-z-]+",
    "uuid": "[0-9a-f-]{36}",
}
"""The pattern of each parameter of a key; every other parameter is one token."""


async def check_buckets(bus: Bus, *names: str) -> set[str]:
    """Check every value that others read against the schema of its key; returns the schemas that were met."""
    met: set[str] = set()
    for name in names:
        for key, entry in (await Bucket(bus, name, msgspec.Raw).items()).items():
            schema = schema_of(name, key)
            if schema is None:
                continue
            hold(schema, msgspec.json.decode(entry.value), f"{name}/{key}")
            met.add(schema)
    return met


def check_objects(objects: Objects, *prefixes: str) -> set[str]:
    """Check every manifest below some prefixes, and the rows of every snapshot; returns the schemas that were met."""
    schemas = {
        one.where.removeprefix("object ").partition("/")[0]: one.schema for one in STORED if ".json" in one.where
    }
    met: set[str] = set()
    for prefix in prefixes:
        for uri in objects.list(prefix):
            if uri.endswith(".json"):
                manifest = msgspec.json.decode(objects.get(uri))
                hold(schemas[prefix], manifest, uri)
                met |= {schemas[prefix], *(row_schema for row_schema in _rows(objects, manifest))}
    return met


def schema_of(bucket: str, key: str) -> str | None:
    """The schema of a key: at most one pattern of its bucket fits it; None for a value that only its writer reads."""
    fitting = [
        one.schema
        for one in STORED
        if (match := re.fullmatch(r"bucket (\S+), key (\S+)", one.where))
        and match[1] == bucket
        and _pattern(match[2]).fullmatch(key)
    ]
    assert len(fitting) <= 1, f"{bucket}/{key} is described {len(fitting)} times"
    return fitting[0] if fitting else None


def hold(schema: str, document: Any, where: str) -> None:
    """Fail unless the strict view of a schema takes a document."""
    assert [f"{error.instance_path}: {error.message}" for error in fast(schema).iter_errors(document)] == [], where


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(
        "".join(
            PARAMETERS.get(part[1:-1], r"[^.]+") if part.startswith("<") else re.escape(part)
            for part in re.split(r"(<\w+>)", key)
        )
    )


def _rows(objects: Objects, manifest: dict[str, Any]) -> Iterator[str]:
    """Check every row of a snapshot and yield its schema; other manifests have no rows."""
    if manifest.get("kind") != "snapshot":
        return
    form = manifest.get("format", "trajectories")
    schema = next(one.schema for one in STORED if one.where.endswith(f"rows of the format {form}"))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.parquet"
        if not objects.exists(manifest["parquet"]["uri"]):  # erased; the manifest stays
            return
        objects.get_file(manifest["parquet"]["uri"], file, manifest["parquet"]["sha256"])
        for row in read_rows(file, ROWS[form]):
            hold(schema, msgspec.to_builtins(row), manifest["parquet"]["uri"])
            yield schema
