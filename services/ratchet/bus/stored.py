"""What processes leave for each other beside messages, as `topics.json` has it: values in key-value buckets, documents
and files of rows in the object store; each with its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any
"""Part of a JSON document."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A kind of value, and where it is stored."""

    where: str
    """Such as `bucket prices, key <country>` or `object exports/<sha256>.json`."""
    schema: str
    description: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    """None: its writers alone."""
    private: bool
    """Only its writers may rely on it: it is compatible with their own earlier versions only."""


def stored_values(directory: Path) -> list[Stored]:
    """Every kind of stored value of the contracts in `directory`, in the order of `topics.json`."""
    document = json.loads((directory / "topics.json").read_text())
    return [*_in_buckets(document["buckets"]), *_in_objects(document.get("objects", {}))]


def _in_buckets(buckets: Json) -> Iterator[Stored]:
    for name, bucket in buckets.items():
        for key, value in bucket.get("keys", {}).items():
            yield _stored(f"bucket {name}, key {key}", {**value, "writers": bucket["writers"]})


def _in_objects(objects: Json) -> Iterator[Stored]:
    for name, entry in objects.items():
        if "schema" in entry:
            yield _stored(f"object {name}", entry)
        for form, schema in entry.get("rows", {}).items():
            yield _stored(f"object {name}, rows of the format {form}", {**entry, "schema": schema})


def _stored(where: str, entry: Json) -> Stored:
    private = entry.get("private", False)
    writers, readers = tuple(entry["writers"]), tuple(entry.get("readers", ()))
    return Stored(where, entry["schema"], entry["description"], writers, readers, private)
