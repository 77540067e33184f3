"""What an erasure removes from the object store: bodies of messages, and rows of snapshots. Blocking."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.envelope import unseal
from ratchet.bus.message import decode, encode
from ratchet.core.contract.erasure import Erasure, RewrittenSnapshot
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.snapshot import ROWS, ParquetFile, SnapshotManifest
from ratchet.core.datasets.domain.executions import WORKFLOWS
from ratchet.core.datasets.parquet import RowWriter, read_rows
from ratchet.core.datasets.s3_snapshots import PREFIX, decode_manifest
from ratchet.core.errors import DigestMismatch, InvalidMessage, NotFound, Rejected
from ratchet.core.rules.erasing import is_of, names_in
from ratchet.core.stores.listing import BODIES, StoredObject
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import digest_in
from ratchet.rl_coordinator.erasures.domain import Ids, is_theirs, theirs_in, without

log = structlog.get_logger()

ROWS_AT_ONCE = 250
ZSTD = b"\x28\xb5\x2f\xfd"
"""How a packed body begins."""


@dataclass(frozen=True)
class ErasedObjects:
    """Every step may be repeated, also after a crash. Raises `ObjectsUnavailable`."""

    objects: Objects

    def remove_bodies(self, erasures: Mapping[str, tuple[Erasure, Ids]]) -> Counter[str]:
        """Read every body once, and remove those of messages that are erased; returns how many, by erasure."""
        removed = Counter[str]()
        for uri, body in self._all(f"{BODIES}/"):
            try:
                names = names_in(unseal({"content-encoding": "zstd"} if body.startswith(ZSTD) else {}, body))
            except InvalidMessage:
                continue
            named = {(str(names.role), name) for name in names.ids}
            theirs = [key for key, (own, ids) in erasures.items() if is_of(own, names) or not named.isdisjoint(ids)]
            if theirs:
                self._remove(uri)
                removed.update(theirs)
        return removed

    def rewrite_snapshots(self, ids: Ids) -> list[RewrittenSnapshot]:
        """Store the other rows of every snapshot that has some of theirs, then remove its rows. Manifests stay."""
        rewritten: list[RewrittenSnapshot] = []
        for uri, body in self._all(f"{PREFIX}/", ".json"):
            try:
                manifest = decode_manifest(body, uri)
            except Rejected as error:
                log.warning("a snapshot cannot be read", uri=uri, reason=str(error))
                continue
            if number := theirs_in(manifest, ids):
                after = self._rewritten(manifest, ids)
                self._remove(manifest.parquet.uri)
                log.info("rows of a snapshot erased", uri=uri, trajectories=number)
                rewritten.append(
                    RewrittenSnapshot(
                        before=digest_in(uri) or "",
                        after=after,
                        trajectories=len(manifest.trajectories),
                        erased=number,
                    )
                )
        return rewritten

    def policy_manifests(self) -> dict[str, PolicyManifest]:
        """Every manifest of a policy, bundle or reward model, by digest."""
        manifests: dict[str, PolicyManifest] = {}
        for uri, body in self._all("policies/", ".json"):
            try:
                manifests[digest_in(uri) or ""] = decode(body, PolicyManifest)
            except msgspec.DecodeError as error:
                log.warning("a policy's manifest cannot be read", uri=uri, reason=str(error))
        return manifests

    def remove_policies(self, digests: AbstractSet[str]) -> None:
        """Remove the files of policies that no other one has, and keep their manifests."""
        manifests = self.policy_manifests()
        shared = {
            file.uri
            for digest, manifest in manifests.items()
            if digest not in digests
            for file in (*manifest.files, *manifest.documents)
        }
        for digest in digests & manifests.keys():
            for file in (*manifests[digest].files, *manifests[digest].documents):
                if file.uri not in shared:
                    self._remove(file.uri)

    def _rewritten(self, manifest: SnapshotManifest, ids: Ids) -> str | None:
        """Digest of the manifest of the other rows; None where there are none, the rows were removed before, or are
        damaged."""
        kind, kept = ROWS[manifest.format], list[dict[str, str | None]]()
        with tempfile.TemporaryDirectory(prefix="ratchet-erasure-") as directory:
            old, new = Path(directory) / "old.parquet", Path(directory) / "new.parquet"
            try:
                self.objects.get_file(manifest.parquet.uri, old, manifest.parquet.sha256)
            except NotFound:
                return None
            except DigestMismatch as error:  # no training can read it, and no one knows whose words are in it
                log.warning("rows of a snapshot are damaged: removed as a whole", reason=str(error))
                return None
            writer = RowWriter(new, kind)
            rows = (row for row in read_rows(old, kind) if not is_theirs(row, manifest.role, ids))
            while part := list(islice(rows, ROWS_AT_ONCE)):
                writer.add(part)
                kept += [
                    {"source": getattr(row, "source", WORKFLOWS), "rater": getattr(row, "rater", None)} for row in part
                ]
            writer.close()
            if not kept:
                return None
            ref = self.objects.put_file(new, PREFIX, ".parquet")
        file = ParquetFile(uri=ref.uri, sha256=ref.sha256, size=ref.size)
        body = msgspec.json.format(encode(without(manifest, ids, kept, file)), indent=1)
        return self.objects.put(body, PREFIX, ".json").sha256

    def _all(self, prefix: str, suffix: str = "") -> Iterator[tuple[str, bytes]]:
        """All objects of a prefix with their bytes, one at a time; also those that were set aside, which stay so."""
        listed = [(stored, self.objects.get) for stored in self.objects.objects(prefix)]
        aside = [(stored, self.objects.get_aside) for stored in self._aside(prefix)]
        for stored, read in (*listed, *aside):
            if stored.uri.endswith(suffix):
                try:
                    yield stored.uri, read(stored.uri)
                except NotFound:  # removed meanwhile
                    continue

    def _remove(self, uri: str) -> None:
        """Remove an object for good, wherever it lies."""
        self.objects.remove(uri)
        for stored in self._aside(uri.split("/", 3)[3]):
            self.objects.remove_aside(stored)

    def _aside(self, prefix: str) -> list[StoredObject]:
        return [stored for stored in self.objects.aside() if stored.uri.split("/", 3)[3].startswith(prefix)]
