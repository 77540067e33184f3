"""A stored policy becomes a directory that people and other tools read, every file verified."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.core.contract.policy_manifest import ADAPTER, MODEL, REWARD_MODEL, PolicyManifest
from ratchet.core.errors import DigestMismatch, Rejected
from ratchet.core.stores.policies import Policy, publish_policy, upload_files
from ratchet.core.stores.policy_files import MANIFEST, default_directory, export_policy
from tests.support.blobs import MemoryBlobs

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WEIGHTS = {"adapter_config.json": "{}", "adapter_model.safetensors": "weights"}
DOCUMENTS = {
    "README.md": "# card",
    "config.json": '{"algorithm": "dpo"}',
    "metrics.jsonl": "{}\n",
    "tokenizer.json": "{}",
    "chat_template.jinja": "{{ messages }}",
    "training.log": "done",
}


def stored(blobs: MemoryBlobs, folder: Path, kind: str, files: dict[str, str], documents: dict[str, str]) -> Policy:
    for name, texts in (("files", files), ("documents", documents)):
        (folder / name).mkdir(parents=True)
        for file, text in texts.items():
            (folder / name / file).write_text(text)
    manifest = PolicyManifest(
        kind=kind,
        base_model="base",
        files=upload_files(blobs, folder / "files"),
        documents=upload_files(blobs, folder / "documents"),
        role="support",
        created_at=NOW,
        algorithm="dpo",
    )
    return publish_policy(blobs, manifest)


def test_an_adapter_is_laid_out_with_its_documents(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    policy = stored(blobs, tmp_path / "stored", ADAPTER, WEIGHTS, DOCUMENTS)
    target = tmp_path / "artifacts" / "dpo" / "support"
    reported: list[str] = []
    written = export_policy(blobs, policy.uri, target, policy.digest, lambda _done, _total, path: reported.append(path))
    assert set(written) == {
        "model/adapter_config.json",
        "model/adapter_model.safetensors",
        "model/tokenizer.json",
        "model/chat_template.jinja",
        "tokenizer/tokenizer.json",
        "tokenizer/chat_template.jinja",
        "README.md",
        "config.json",
        "metrics.jsonl",
        "logs/training.log",
        MANIFEST,
    }
    assert reported == written[:-1]
    assert (target / "logs" / "training.log").read_text() == "done"
    assert hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest() == policy.digest


def test_the_tokenizer_of_a_model_lies_with_it_and_beside_it(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    files = {"model.safetensors": "w", "config.json": "model", "tokenizer.json": "{}"}
    policy = stored(blobs, tmp_path / "stored", MODEL, files, {"config.json": "training"})
    written = export_policy(blobs, policy.uri, tmp_path / "out")
    assert sorted(written) == sorted(set(written))
    assert (tmp_path / "out" / "model" / "config.json").read_text() == "model"
    assert (tmp_path / "out" / "model" / "tokenizer.json").read_text() == "{}"
    assert (tmp_path / "out" / "config.json").read_text() == "training"
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").read_text() == "{}"


def test_a_directory_that_holds_something_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    policy = stored(blobs, tmp_path / "stored", ADAPTER, WEIGHTS, {})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(Rejected, match="not an empty directory"):
        export_policy(blobs, policy.uri, tmp_path / "full")
    blobs.blobs[policy.manifest.files[0].uri] = b"other"
    with pytest.raises(DigestMismatch):
        export_policy(blobs, policy.uri, tmp_path / "out")


def test_a_reward_model_is_exported_among_reward_models(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    scores = stored(blobs, tmp_path / "stored", REWARD_MODEL, WEIGHTS, DOCUMENTS)
    assert default_directory(scores, "support-1a2b3c4d") == Path("artifacts/rm/support-1a2b3c4d")
    export_policy(blobs, scores.uri, tmp_path / "out", scores.digest)
    assert (tmp_path / "out" / "model" / "adapter_config.json").is_file()


def test_the_default_directory_is_named_by_algorithm_and_policy(tmp_path: Path) -> None:
    policy = stored(MemoryBlobs(), tmp_path / "stored", ADAPTER, WEIGHTS, {})
    assert default_directory(policy, "support@3-1a2b3c4d") == Path("artifacts/dpo/support@3-1a2b3c4d")
