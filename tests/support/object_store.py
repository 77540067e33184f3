"""An object store in memory whose clock, failures and rival writers a test decides, for sweeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta

from ratchet.core.errors import NotFound, ObjectsUnavailable
from ratchet.core.stores.listing import StoredObject

BEGIN = datetime.fromisoformat("2026-11-21T12:00:00+00:00")


class MemoryStore:
    """The part of `stores.objects.Objects` that a sweep needs."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, datetime]] = {}
        self.trash: dict[str, tuple[bytes, datetime]] = {}
        self.clock = BEGIN
        self.failing: str | None = None
        """The prefix that cannot be listed or written."""
        self.unlisted: set[str] = set()
        """Uris that listings lack, as of a store whose listing is late."""
        self.before_moving: Callable[[str], None] = lambda _: None

    def later(self, **passed: float) -> None:
        """Let time pass by the store's clock."""
        self.clock += timedelta(**passed)

    def add(self, folder: str, content: object, suffix: str = ".json") -> str:
        """Store a document or bytes; returns the uri."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        uri = f"s3://test/{folder}/{hashlib.sha256(body).hexdigest()}{suffix}"
        self.blobs[uri] = (body, self.clock)
        return uri

    def write(self, blob: bytes, key: str) -> None:
        if self.failing is not None and key.startswith(self.failing):
            raise ObjectsUnavailable("the store does not answer")
        self.blobs[f"s3://test/{key}"] = (blob, self.clock)

    def touch(self, uri: str) -> None:
        """Write the object again."""
        self.blobs[uri] = (self.blobs[uri][0], self.clock)

    def objects(self, prefix: str) -> list[StoredObject]:
        if self.failing is not None and prefix.startswith(self.failing):
            raise ObjectsUnavailable("the listing broke off")
        below = {uri: kept for uri, kept in self.blobs.items() if uri.startswith(f"s3://test/{prefix}")}
        return _listed({uri: kept for uri, kept in below.items() if uri not in self.unlisted})

    def aside(self) -> list[StoredObject]:
        return _listed(self.trash)

    def get(self, uri: str) -> bytes:
        if uri not in self.blobs and not self.take_back(uri):
            raise NotFound(uri)
        return self.blobs[uri][0]

    def get_aside(self, uri: str) -> bytes:
        return self.trash[uri][0]

    def now(self) -> datetime:
        return self.clock

    def set_aside(self, listed: StoredObject) -> bool:
        self.before_moving(listed.uri)
        if listed.uri not in self.blobs or self.blobs[listed.uri][1] != listed.at:
            return False
        self.trash[listed.uri] = (self.blobs.pop(listed.uri)[0], self.clock)
        return True

    def take_back(self, uri: str) -> bool:
        if uri not in self.trash:
            return False
        self.blobs[uri] = (self.trash[uri][0], self.clock)
        return True

    def remove_aside(self, listed: StoredObject) -> bool:
        if listed.uri not in self.trash or self.trash[listed.uri][1] != listed.at:
            return False
        del self.trash[listed.uri]
        return True


def _listed(objects: dict[str, tuple[bytes, datetime]]) -> list[StoredObject]:
    return [StoredObject(uri, len(body), at) for uri, (body, at) in sorted(objects.items())]
