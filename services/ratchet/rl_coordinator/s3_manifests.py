"""Reads the manifests of snapshots as far as a lineage needs them, of every format."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ratchet.kernel.errors import Rejected
from ratchet.kernel.objects import Objects
from ratchet.messages.base import JsonObject, Value

_List = list[str]


class Contents(Value, frozen=True, kw_only=True):
    """What a snapshot was made of. Members that its format does not have are empty."""

    kind: str
    rows: int = 0
    format: str = "trajectories"
    created_at: datetime | None = None
    reward_function: str | None = None
    reward_transform: str | None = None
    filters: JsonObject = msgspec.field(default_factory=dict[str, Any])
    left_out: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    parent_policy: str | None = None
    trajectories: _List = msgspec.field(default_factory=_List)
    preferences: _List = msgspec.field(default_factory=_List)
    raters: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class Manifests:
    """Manifests by digest. Blocking: run it in a thread."""

    def __init__(self, objects: Objects, bucket: str) -> None:
        self._objects = objects
        self._bucket = bucket

    def uri_of(self, digest: str) -> str:
        """Where the snapshot with this digest is."""
        return f"s3://{self._bucket}/snapshots/{digest}.json"

    def contents(self, uri: str, digest: str) -> Contents:
        """A verified manifest. Raises `NotFound`, `DigestMismatch`, `Rejected` or `ObjectsUnavailable`."""
        body = self._objects.get(uri, digest)
        try:
            found = msgspec.json.decode(body, type=Contents)
        except msgspec.DecodeError as error:
            raise Rejected(f"{uri} is not a snapshot manifest: {error}") from error
        if found.kind != "snapshot":
            raise Rejected(f"{uri} is a {found.kind!r} manifest, not a snapshot")
        return found
