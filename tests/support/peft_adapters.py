"""Adapters in PEFT's form without weights that mean anything, and the models that they are for, in a store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.core.contract.policy_manifest import ADAPTER, MODEL, PolicyManifest
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, tokenizer_digest, upload_files

AT = datetime(2026, 1, 5, tzinfo=UTC)


def write_model(directory: Path, weights: bytes = b"weights") -> Path:
    """What decides what a model computes and how it reads text."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text('{"hidden_size": 128}')
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def publish_model(objects: BlobStore, directory: Path, role: str = "support") -> Policy:
    """The model of a directory as a policy."""
    manifest = PolicyManifest(
        kind=MODEL, base_model="tiny", files=upload_files(objects, directory), role=role, created_at=AT
    )
    return publish_policy(objects, manifest)


def publish_adapter(objects: BlobStore, base: Policy, folder: Path, **changes: Any) -> Policy:
    """An adapter on a stored model. `changes`: of its manifest, `config` of PEFT's, `weights` its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **changes.pop("config", {})}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(changes.pop("weights", b"adapter"))
    manifest: dict[str, Any] = {
        "kind": ADAPTER,
        "base_model": base.uri,
        "base_digest": base.digest,
        "files": upload_files(objects, folder),
        "role": "support",
        "created_at": AT,
        **changes,
    }
    return publish_policy(objects, PolicyManifest(**manifest))


def digest_of_tokenizer(directory: Path) -> str:
    """Of a model that has one."""
    digest = tokenizer_digest(directory)
    assert digest is not None
    return digest
