"""The folder `contracts/` as documents: what processes store for each other beside messages, and what was released."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.message import decode

Json = Any
"""Part of a JSON document."""


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of value in a bucket, of document or row in the object store, or of file, as `topics.json` has it."""

    where: str
    """Such as `bucket prices, key <country>`, `object exports/<sha256>.json`, `file report.json` or `webhook bill`."""
    schema: str
    description: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]


def stored_kinds(directory: Path) -> list[StoredKind]:
    """Every kind of stored value of the contracts in `directory`, in the order of `topics.json`."""
    document = decode((directory / "topics.json").read_bytes())
    entries: list[tuple[str, Json]] = []
    for name, bucket in document["buckets"].items():
        for key, value in bucket.get("keys", {}).items():
            entries.append((f"bucket {name}, key {key}", {**value, "writers": bucket["writers"]}))
    for name, entry in document.get("objects", {}).items():
        if "schema" in entry:
            entries.append((f"object {name}", entry))
        for form, schema in entry.get("rows", {}).items():
            entries.append((f"object {name}, rows of the format {form}", {**entry, "schema": schema}))
    entries += [(f"file {name}", entry) for name, entry in document.get("files", {}).items()]
    entries += [(f"webhook {name}", entry) for name, entry in document.get("webhooks", {}).items()]
    return [
        StoredKind(
            where, entry["schema"], entry["description"], tuple(entry["writers"]), tuple(entry.get("readers", ()))
        )
        for where, entry in entries
    ]


class ReleasedTopic(msgspec.Struct, frozen=True):
    """Where a kind of message was published, and the names of the schemas of its body and its summary."""

    subjects: list[str]
    schema: str
    summary: str | None = None


class Release(msgspec.Struct, frozen=True):
    """The contracts of a release, reduced to what later ones have to stay compatible with."""

    topics: dict[str, ReleasedTopic]
    stored: dict[str, str]
    """Where something is stored -> the name of its schema."""
    schemas: dict[str, Json]
    """By name, without titles and descriptions."""
    examples: dict[str, dict[str, Json]]
    """Messages and stored values of that release: by schema, then by name."""


def releases(directory: Path) -> dict[str, Release]:
    """Every release below the contracts in `directory`, by its version."""
    files = sorted((directory / "released").glob("*.json"))
    return {file.stem: decode(file.read_bytes(), Release) for file in files}
