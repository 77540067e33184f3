"""Snapshots in the object store: a Parquet file and a manifest, named by their digests, never changed."""

from __future__ import annotations

import io
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ratchet.bus.message import decode, encode
from ratchet.core.contract.snapshot import (
    LABELS,
    ROWS,
    SNAPSHOT,
    TRAJECTORIES,
    ParquetFile,
    SnapshotHeader,
    SnapshotManifest,
    TaskSets,
)
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.datasets.domain.reward_groups import RewardTally
from ratchet.core.datasets.domain.rows import RowOrigin, SnapshotRow, tries_in
from ratchet.core.datasets.domain.selection import Consumed
from ratchet.core.datasets.parquet import RowWriter
from ratchet.core.errors import Rejected
from ratchet.core.stores.policies import BlobStore

if TYPE_CHECKING:
    from ratchet.core.stores.objects import Objects

PREFIX = "snapshots"


class SnapshotWriter:
    """Writes rows to a local file, then publishes it. For use in a `with` block; blocking: run it in a thread."""

    def __init__(self, objects: BlobStore, form: str) -> None:
        """`form`: the format of the rows."""
        self._objects = objects
        self._form = form
        self._directory = tempfile.TemporaryDirectory(prefix="ratchet-snapshot-")
        self._path = Path(self._directory.name) / "rows.parquet"
        self._writer = RowWriter(self._path, ROWS[form])
        self._written: list[RowOrigin] = []
        self._tally = RewardTally()

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._directory.cleanup()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return len(self._written)

    def add(self, rows: Sequence[SnapshotRow]) -> None:
        """Append rows as one row group."""
        if rows:
            self._writer.add([row.row for row in rows])
            self._written.extend(row.origin for row in rows)
            self._tally.update(tries_in(rows))

    def publish(self, header: SnapshotHeader, left_out: dict[str, int], tasks: TaskSets | None = None) -> SnapshotRef:
        """Store the file, then the manifest: a snapshot is visible only when it is complete."""
        self._writer.close()
        file = self._objects.put_file(self._path, PREFIX, ".parquet")
        manifest = SnapshotManifest(
            **msgspec.structs.asdict(header),
            left_out=left_out,
            trajectories=list(dict.fromkeys(trajectory for row in self._written for trajectory in row.trajectories)),
            rows=self.rows,
            parquet=ParquetFile(uri=file.uri, sha256=file.sha256, size=file.size),
            format=self._form,
            preferences=[preference for row in self._written for preference in row.preferences] or None,
            raters=Counter(row.rater for row in self._written if row.rater) or None,
            sources=Counter(row.source for row in self._written),
            reward_groups=self._tally.counts() if self._form == TRAJECTORIES else None,
            tasks=tasks,
        )
        stored = self._objects.put(msgspec.json.format(encode(manifest), indent=1), PREFIX, ".json")
        return SnapshotRef(uri=stored.uri, digest=stored.sha256)


def decode_manifest(body: bytes, uri: str) -> SnapshotManifest:
    """Read a manifest. Raises `Rejected` when `body` is not the manifest of a snapshot."""
    try:
        manifest = decode(body, SnapshotManifest)
    except msgspec.DecodeError as error:
        raise Rejected(f"{uri} is not a snapshot manifest: {error}") from error
    if manifest.kind != SNAPSHOT:
        raise Rejected(f"{uri} is a {manifest.kind!r} manifest, not a snapshot")
    return manifest


REMEMBERED_IDS = 1_000_000
"""Ids of trajectories and preferences that stay in memory, some 100 MB."""


class Snapshots:
    """Reads manifests, also in several threads. Remembers the ids in those that were asked for last."""

    def __init__(self, objects: BlobStore, bucket: str, remembered: int = REMEMBERED_IDS) -> None:
        """`remembered`: the most ids of snapshots that stay in memory, but for those of one snapshot."""
        self._objects = objects
        self._bucket = bucket
        self._remembered = remembered
        self._changing = threading.Lock()
        self._consumed: dict[str, Consumed] = {}
        """Those that were asked for last stand at the end."""

    def writer(self, form: str) -> SnapshotWriter:
        """For a new snapshot of the format `form`."""
        return SnapshotWriter(self._objects, form)

    def manifest(self, ref: SnapshotRef) -> SnapshotManifest:
        """A verified manifest. Raises `NotFound`, `DigestMismatch`, or `Rejected` when it is not a snapshot's."""
        return decode_manifest(self._objects.get(ref.uri, ref.digest), ref.uri)

    def ref(self, digest: str) -> SnapshotRef:
        """The snapshot whose manifest has this digest, where we store it."""
        return SnapshotRef(uri=f"s3://{self._bucket}/{PREFIX}/{digest}.json", digest=digest)

    def consumed(self, digests: Iterable[str]) -> Consumed:
        """The data of the snapshots with these digests, together. Raises as `manifest` does."""
        parts = [self._consumed_by(digest) for digest in digests]
        return Consumed(
            trajectories=frozenset[str]().union(*(part.trajectories for part in parts)),
            preferences=frozenset[str]().union(*(part.preferences for part in parts)),
            labelled=frozenset[str]().union(*(part.labelled for part in parts)),
        )

    def _consumed_by(self, digest: str) -> Consumed:
        with self._changing:
            consumed = self._consumed.pop(digest, None)
        if consumed is None:
            manifest = self.manifest(self.ref(digest))
            trajectories = frozenset(manifest.trajectories)
            labelled = trajectories if manifest.format == LABELS else frozenset[str]()
            consumed = Consumed(trajectories, frozenset(manifest.preferences or ()), labelled)
        with self._changing:
            self._consumed[digest] = consumed
            ids = sum(len(part.trajectories) + len(part.preferences) for part in self._consumed.values())
            while len(self._consumed) > 1 and ids > self._remembered:
                oldest = self._consumed.pop(next(iter(self._consumed)))
                ids -= len(oldest.trajectories) + len(oldest.preferences)
        return consumed


class RemoteRows(io.RawIOBase):
    """The Parquet file of a snapshot, read where it lies: a page of rows fetches their row groups' columns alone.

    No digest vouches for what it reads, so nothing is learnt from it.
    """

    def __init__(self, objects: Objects, file: ParquetFile) -> None:
        super().__init__()
        self._objects = objects
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """In bytes."""
        return self._file.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any, /) -> int:  # `Any`: a buffer has no type in Python 3.11
        into = memoryview(buffer)
        most = min(len(into), max(0, self._file.size - self._place))
        part = self._objects.get_part(self._file.uri, self._place, most) if most else b""
        into[: len(part)] = part
        self._place += len(part)
        return len(part)
