"""An object store in memory, with the part of `stores.objects.Objects` that artifacts and archives need."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from ratchet.core.errors import DigestMismatch, NotFound
from ratchet.core.stores.listing import StoredObject
from ratchet.core.stores.objects import ObjectRef


class MemoryBlobs:
    """Content-addressed blobs; `blobs` may be changed to damage one."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, blob: bytes, prefix: str, suffix: str = "") -> ObjectRef:
        digest = hashlib.sha256(blob).hexdigest()
        uri = f"s3://test/{prefix}/{digest}{suffix}"
        self.blobs[uri] = blob
        return ObjectRef(uri, digest, len(blob))

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef:
        return self.put(path.read_bytes(), prefix, suffix)

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        if uri not in self.blobs:
            raise NotFound(f"no such object: {uri}")
        if sha256 is not None and hashlib.sha256(self.blobs[uri]).hexdigest() != sha256:
            raise DigestMismatch(f"{uri} does not have sha256 {sha256}")
        return self.blobs[uri]

    def find(self, prefix: str) -> list[str]:
        return sorted(uri for uri in self.blobs if uri.startswith(f"s3://test/{prefix}"))

    def objects(self, prefix: str) -> list[StoredObject]:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return [StoredObject(uri, len(self.blobs[uri]), at) for uri in self.find(prefix)]

    def get_part(self, uri: str, begin: int, size: int) -> bytes:
        return self.get(uri)[begin : begin + size]

    def remove(self, uri: str) -> None:
        self.blobs.pop(uri, None)

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None:
        blob = self.get(uri, sha256)
        if size is not None and len(blob) != size:
            raise DigestMismatch(f"{uri} has {len(blob)} bytes, its manifest says {size}")
        path.write_bytes(blob)
