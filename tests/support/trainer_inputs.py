"""The inputs of a training in an object store in memory: base model, adapter, snapshot, and a dispatch of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.policy_manifest import ADAPTER, MODEL, PolicyManifest
from ratchet.core.contract.snapshot import ParquetFile
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.stores.policies import Policy, publish_policy, upload_files
from tests.support.blobs import MemoryBlobs
from tests.support.snapshot_rows import snapshot_manifest
from tests.support.training import request

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def model(blobs: MemoryBlobs, directory: Path) -> Policy:
    return policy(blobs, model_files(directory), MODEL, "random")


def model_files(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text('{"vocab": 1}')
    return directory


def adapter(
    blobs: MemoryBlobs, directory: Path, base: str, role: str = "support", base_digest: str | None = None
) -> Policy:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text("{}")
    return policy(blobs, directory, ADAPTER, base, role, base_digest)


def policy(
    blobs: MemoryBlobs, directory: Path, kind: str, base: str, role: str = "support", base_digest: str | None = None
) -> Policy:
    files = upload_files(blobs, directory)
    manifest = PolicyManifest(
        kind=kind, base_model=base, base_digest=base_digest, files=files, role=role, created_at=NOW
    )
    return publish_policy(blobs, manifest)


def dispatch(blobs: MemoryBlobs, base: str, **changes: Any) -> TrainingDispatch:
    rows = blobs.put(b"rows", "snapshots", ".parquet")
    form = {name: changes.pop(name) for name in ("format", "role") if name in changes}
    manifest = snapshot_manifest(parquet=ParquetFile(uri=rows.uri, sha256=rows.sha256, size=rows.size), **form)
    stored = blobs.put(msgspec.json.encode(manifest), "snapshots", ".json")
    asked = request()
    config = asked.training_config
    dataset = msgspec.structs.replace(config.dataset, snapshot=SnapshotRef(uri=stored.uri, digest=stored.sha256))
    config = msgspec.structs.replace(config, base_model=base, dataset=dataset)
    values: dict[str, Any] = {
        "attempt": 2,
        "pool": "default",
        "timestamp": NOW,
        "parent": "support@7-1a2b3c4d",
        **changes,
    }
    return TrainingDispatch(
        training_job_id=asked.training_job_id,
        request=msgspec.structs.replace(asked, training_config=config),
        **values,
    )
