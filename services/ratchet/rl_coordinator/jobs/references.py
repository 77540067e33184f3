"""What a request brings along, a snapshot or a policy to start from, must be of its own role. Blocking: use a thread.

A snapshot or adapter of another role is no accident to train through: what one role learned would serve another.
"""

from __future__ import annotations

from ratchet.contract.policy_manifest import ADAPTER
from ratchet.contract.snapshot import SnapshotManifest
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import DigestMismatch, NotFound, Rejected
from ratchet.stores.policies import BlobStore, read_policy


def given_snapshot(snapshots: Snapshots, given: SnapshotRef, role: str) -> SnapshotManifest:
    """The snapshot's manifest. Raises `Rejected` when there is none of this role, or `ObjectsUnavailable`."""
    try:
        manifest = snapshots.manifest(given)
    except NotFound as error:
        raise Rejected(f"dataset.snapshot {given.uri} does not exist") from error
    except DigestMismatch as error:
        raise Rejected(f"dataset.snapshot: {error}") from error
    if manifest.role != role:
        raise Rejected(f"dataset.snapshot {given.uri} is of role {manifest.role}, not of {role}")
    return manifest


def require_own_policy(objects: BlobStore, uri: str, role: str) -> None:
    """Raise `Rejected` unless the manifest at `uri` is a model, anybody's start, or the role's adapter."""
    try:
        manifest = read_policy(objects, uri).manifest
    except NotFound as error:
        raise Rejected(f"base_model {uri} does not exist") from error
    except DigestMismatch as error:
        raise Rejected(f"base_model: {error}") from error
    if manifest.kind == ADAPTER and manifest.role != role:
        raise Rejected(f"base_model {uri} is an adapter of role {manifest.role}, not of {role}")
