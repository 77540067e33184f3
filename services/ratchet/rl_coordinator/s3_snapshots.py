"""Snapshots in the object store: a Parquet file and a manifest, named by their digests, never changed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.kernel.errors import Rejected
from ratchet.kernel.objects import Objects
from ratchet.messages.base import JsonObject, Value
from ratchet.messages.training import SnapshotRef
from ratchet.rl_coordinator.domain.rows import Row

# pyarrow ships no types: its members are unknown to the type checker.
_ARROW: Any = pa
_PARQUET: Any = pq

SCHEMA = _ARROW.schema(
    [
        _ARROW.field("trajectory_id", _ARROW.string(), nullable=False),
        _ARROW.field("task_key", _ARROW.string(), nullable=False),
        _ARROW.field("reward", _ARROW.float64(), nullable=False),
        _ARROW.field("raw_reward", _ARROW.float64(), nullable=False),
        _ARROW.field("baseline", _ARROW.float64()),
        _ARROW.field("success", _ARROW.bool_()),
        _ARROW.field("policy_version", _ARROW.int64()),
        _ARROW.field("source", _ARROW.string(), nullable=False),
        _ARROW.field("messages", _ARROW.string(), nullable=False),
        _ARROW.field("tools", _ARROW.string(), nullable=False),
        _ARROW.field("calls", _ARROW.string(), nullable=False),
    ]
)
"""One row per trajectory; `messages`, `tools` and `calls` are JSON lists."""

PREFIX = "snapshots"


class ParquetFile(Value, frozen=True, kw_only=True):
    """The rows."""

    uri: str
    sha256: str
    size: int


class Manifest(Value, frozen=True, kw_only=True):
    """Everything about a snapshot. Its digest names the data that a policy learned from."""

    kind: str
    """Always `snapshot`."""
    role: str
    training_job_id: str
    algorithm: str
    created_at: datetime
    filters: JsonObject
    sample_size: int
    reward_function: str
    """Name and version; several, separated by commas, where trajectories were scored by different ones."""
    reward_transform: str
    watermarks: dict[str, int]
    parent_policy: str | None
    left_out: dict[str, int]
    """Trajectories that were not taken, by reason."""
    trajectories: list[str]
    rows: int
    parquet: ParquetFile


@dataclass(frozen=True, slots=True)
class Origin:
    """What a manifest says besides naming its rows."""

    role: str
    training_job_id: str
    algorithm: str
    created_at: datetime
    filters: JsonObject
    sample_size: int
    reward_function: str
    reward_transform: str
    watermarks: dict[str, int]
    parent_policy: str | None


class SnapshotWriter:
    """Writes rows to a local file, then publishes it. For use in a `with` block; blocking: run it in a thread."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._directory = tempfile.TemporaryDirectory(prefix="ratchet-snapshot-")
        self._path = Path(self._directory.name) / "rows.parquet"
        self._writer = _PARQUET.ParquetWriter(self._path, SCHEMA, compression="zstd")
        self._ids: list[str] = []

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._directory.cleanup()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return len(self._ids)

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows as one row group."""
        if rows:
            self._writer.write_table(_ARROW.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA))
            self._ids.extend(row.trajectory_id for row in rows)

    def publish(self, origin: Origin, left_out: dict[str, int]) -> SnapshotRef:
        """Store the file, then the manifest: a snapshot is visible only when it is complete."""
        self._writer.close()
        file = self._objects.put_file(self._path, PREFIX, ".parquet")
        manifest = Manifest(
            kind="snapshot",
            parquet=ParquetFile(uri=file.uri, sha256=file.sha256, size=file.size),
            trajectories=self._ids,
            rows=self.rows,
            left_out=left_out,
            **asdict(origin),
        )
        stored = self._objects.put(msgspec.json.format(msgspec.json.encode(manifest), indent=1), PREFIX, ".json")
        return SnapshotRef(uri=stored.uri, digest=stored.sha256)


class Snapshots:
    """Reads manifests; they never change, so what was read is remembered."""

    def __init__(self, objects: Objects, bucket: str) -> None:
        self._objects = objects
        self._bucket = bucket
        self._ids: dict[str, frozenset[str]] = {}

    def writer(self) -> SnapshotWriter:
        """For a new snapshot."""
        return SnapshotWriter(self._objects)

    def manifest(self, ref: SnapshotRef) -> Manifest:
        """A verified manifest. Raises `NotFound`, `DigestMismatch`, or `Rejected` when it is none."""
        body = self._objects.get(ref.uri, ref.digest)
        try:
            manifest = msgspec.json.decode(body, type=Manifest)
        except msgspec.DecodeError as error:
            raise Rejected(f"{ref.uri} is not a snapshot manifest: {error}") from error
        if manifest.kind != "snapshot":
            raise Rejected(f"{ref.uri} is a {manifest.kind!r} manifest, not a snapshot")
        return manifest

    def trajectory_ids(self, digest: str) -> frozenset[str]:
        """Ids in the snapshot with this digest."""
        if digest not in self._ids:
            ref = SnapshotRef(uri=f"s3://{self._bucket}/{PREFIX}/{digest}.json", digest=digest)
            self._ids[digest] = frozenset(self.manifest(ref).trajectories)
        return self._ids[digest]
