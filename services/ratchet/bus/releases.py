"""The contracts as they were released, reduced to what compatibility is checked against: `released/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

Json = Any
"""A JSON document."""


class ReleasedTopic(msgspec.Struct, frozen=True):
    """Where a kind of message was published, and the name of its schema."""

    subjects: list[str]
    schema: str


class Release(msgspec.Struct, frozen=True):
    """What later contracts have to stay compatible with."""

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
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Release) for file in files}
