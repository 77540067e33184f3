"""Snapshots in the object store: a Parquet file and a manifest, named by their digests, never changed."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.bus.message import JsonObject, Value, decode
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.domain.rows import RowOrigin
from ratchet.datasets.selector import Learned, SnapshotRow
from ratchet.errors import Rejected
from ratchet.rules.training_options import LABELS, PAIRS, TRAJECTORIES
from ratchet.stores.policies import BlobStore

# pyarrow ships no types: its members are unknown to the type checker.
_ARROW: Any = pa
_PARQUET: Any = pq

_TEXT, _REAL = _ARROW.string(), _ARROW.float64()


def _schema(**columns: Any) -> Any:
    """Columns in order; a list of one type is a column without gaps. `Any`: see above."""
    return _ARROW.schema(
        [
            _ARROW.field(name, kind[0], nullable=False) if isinstance(kind, list) else _ARROW.field(name, kind)
            for name, kind in columns.items()
        ]
    )


SCHEMAS: Mapping[str, Any] = {
    TRAJECTORIES: _schema(
        trajectory_id=[_TEXT],
        task_key=[_TEXT],
        reward=[_REAL],
        raw_reward=[_REAL],
        baseline=_REAL,
        success=_ARROW.bool_(),
        policy_version=_ARROW.int64(),
        source=[_TEXT],
        messages=[_TEXT],
        tools=[_TEXT],
        calls=[_TEXT],
    ),
    PAIRS: _schema(
        preference_id=[_TEXT],
        prompt=[_TEXT],
        chosen=[_TEXT],
        rejected=[_TEXT],
        tools=[_TEXT],
        source=[_TEXT],
        rater=_TEXT,
        confidence=_REAL,
        domain=_TEXT,
        chosen_trajectory_id=_TEXT,
        rejected_trajectory_id=_TEXT,
        group_key=_TEXT,
    ),
    LABELS: _schema(
        trajectory_id=[_TEXT],
        prompt=[_TEXT],
        completion=[_TEXT],
        label=[_ARROW.bool_()],
        tools=[_TEXT],
        source=[_TEXT],
    ),
}
"""By format, one row per trajectory or pair; messages, prompts, answers, tools and calls are JSON lists."""

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
    """Those of the rows; of pairs, those that both answers come from."""
    rows: int
    parquet: ParquetFile
    format: str = TRAJECTORIES
    """`trajectories`, `pairs` or `labels`: which columns the rows have."""
    preferences: list[str] | None = None
    """Ids of the pairs, each followed by those that said the same and are learned with it."""
    raters: dict[str, int] | None = None
    """Pairs by who, or which rule, preferred."""
    sources: dict[str, int] | None = None
    """Rows by where they come from."""


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

    def __init__(self, objects: BlobStore, kind: str) -> None:
        """`kind`: the format."""
        self._objects = objects
        self._kind = kind
        self._directory = tempfile.TemporaryDirectory(prefix="ratchet-snapshot-")
        self._path = Path(self._directory.name) / "rows.parquet"
        self._writer = _PARQUET.ParquetWriter(self._path, SCHEMAS[kind], compression="zstd")
        self._written: list[RowOrigin] = []

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
        return len(self._written)

    def add(self, rows: Sequence[SnapshotRow]) -> None:
        """Append rows as one row group."""
        if rows:
            schema = SCHEMAS[self._kind]
            columns = [{name: getattr(row, name) for name in schema.names} for row in rows]
            self._writer.write_table(_ARROW.Table.from_pylist(columns, schema=schema))
            self._written.extend(row.origin for row in rows)

    def publish(self, origin: Origin, left_out: dict[str, int]) -> SnapshotRef:
        """Store the file, then the manifest: a snapshot is visible only when it is complete."""
        self._writer.close()
        file = self._objects.put_file(self._path, PREFIX, ".parquet")
        manifest = Manifest(
            kind="snapshot",
            parquet=ParquetFile(uri=file.uri, sha256=file.sha256, size=file.size),
            format=self._kind,
            trajectories=list(dict.fromkeys(one for row in self._written for one in row.trajectories)),
            preferences=[one for row in self._written for one in row.preferences] or None,
            raters=Counter(row.rater for row in self._written if row.rater) or None,
            sources=Counter(row.source for row in self._written),
            rows=self.rows,
            left_out=left_out,
            **asdict(origin),
        )
        stored = self._objects.put(msgspec.json.format(msgspec.json.encode(manifest), indent=1), PREFIX, ".json")
        return SnapshotRef(uri=stored.uri, digest=stored.sha256)


class Snapshots:
    """Reads manifests; they never change, so what was read is remembered."""

    def __init__(self, objects: BlobStore, bucket: str) -> None:
        self._objects = objects
        self._bucket = bucket
        self._learned: dict[str, Learned] = {}

    def writer(self, kind: str) -> SnapshotWriter:
        """For a new snapshot of the format `kind`."""
        return SnapshotWriter(self._objects, kind)

    def manifest(self, ref: SnapshotRef) -> Manifest:
        """A verified manifest. Raises `NotFound`, `DigestMismatch`, or `Rejected` when it is none."""
        body = self._objects.get(ref.uri, ref.digest)
        try:
            manifest = decode(body, Manifest)
        except msgspec.DecodeError as error:
            raise Rejected(f"{ref.uri} is not a snapshot manifest: {error}") from error
        if manifest.kind != "snapshot":
            raise Rejected(f"{ref.uri} is a {manifest.kind!r} manifest, not a snapshot")
        return manifest

    def ref(self, digest: str) -> SnapshotRef:
        """The snapshot whose manifest has this digest, where we store it."""
        return SnapshotRef(uri=f"s3://{self._bucket}/{PREFIX}/{digest}.json", digest=digest)

    def learned(self, digest: str) -> Learned:
        """What whoever learned from the snapshot with this digest has learned from."""
        if digest not in self._learned:
            manifest = self.manifest(self.ref(digest))
            trajectories = frozenset(manifest.trajectories)
            labelled = trajectories if manifest.format == LABELS else frozenset[str]()
            self._learned[digest] = Learned(trajectories, frozenset(manifest.preferences or ()), labelled)
        return self._learned[digest]
