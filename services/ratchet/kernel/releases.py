"""The contracts as they were released, reduced to what compatibility is checked against: `contracts/released`."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.kernel.resources import resource_dir

Json = Any
"""A JSON document."""


class ReleasedTopic(msgspec.Struct, frozen=True):
    """Where a kind of message was published, and the name of its schema."""

    subjects: list[str]
    schema: str


class Release(msgspec.Struct, frozen=True):
    """What later contracts have to stay compatible with."""

    topics: dict[str, ReleasedTopic]
    schemas: dict[str, Json]
    """By name, without titles and descriptions."""
    examples: dict[str, dict[str, Json]]
    """Messages of that release: by schema, then by name."""


def releases() -> dict[str, Release]:
    """Every release by its version."""
    files = sorted((resource_dir("contracts") / "released").glob("*.json"))
    return {file.stem: msgspec.json.decode(file.read_bytes(), type=Release) for file in files}
