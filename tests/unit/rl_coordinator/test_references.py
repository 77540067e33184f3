"""A snapshot, an adapter or a reflector of another role is refused before a job uses it."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.contract.http.jobs import JobIn
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.training import CallBudget, PromptSearch, SnapshotRef, TaskFileRef
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import Forbidden, Rejected
from ratchet.core.rules.access import Caller
from ratchet.core.stores.policies import publish_policy
from ratchet.rl_coordinator.http.jobs import require_own_reflector
from ratchet.rl_coordinator.jobs.exporter import own_snapshot
from ratchet.rl_coordinator.jobs.feasibility import require_own_policy
from tests.support.blobs import MemoryBlobs
from tests.support.hostile import DAMAGED_JSON
from tests.support.snapshot_rows import snapshot_manifest
from tests.support.training import NOON


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


def snapshot(blobs: MemoryBlobs, role: str) -> SnapshotRef:
    manifest = snapshot_manifest(role=role)
    stored = blobs.put(msgspec.json.encode(manifest), "snapshots", ".json")
    return SnapshotRef(uri=stored.uri, digest=stored.sha256)


def policy(blobs: MemoryBlobs, kind: str, role: str) -> str:
    manifest = PolicyManifest(kind=kind, base_model="org/model", files=[], role=role, created_at=NOON)
    return publish_policy(blobs, manifest).uri


def test_a_snapshot_of_the_role_is_taken_and_one_of_another_is_refused(blobs: MemoryBlobs) -> None:
    snapshots = Snapshots(blobs, "test")
    assert own_snapshot(snapshots, snapshot(blobs, "support"), "support", "sft").rows == 1
    with pytest.raises(Rejected, match=r"is of another role, not of support"):
        own_snapshot(snapshots, snapshot(blobs, "sales"), "support", "sft")


@pytest.mark.parametrize(("algorithm", "learns_from"), [("dpo", "pairs"), ("reward_model", "pairs"), ("kto", "labels")])
def test_a_snapshot_that_an_algorithm_does_not_learn_from_is_refused(
    blobs: MemoryBlobs, algorithm: str, learns_from: str
) -> None:
    with pytest.raises(Rejected, match=rf"holds trajectories: {algorithm} learns from {learns_from}$"):
        own_snapshot(Snapshots(blobs, "test"), snapshot(blobs, "support"), "support", algorithm)


def test_a_snapshot_that_does_not_exist_or_has_another_digest_is_refused(blobs: MemoryBlobs) -> None:
    snapshots, ref = Snapshots(blobs, "test"), snapshot(blobs, "support")
    for wrong in (SnapshotRef(uri="s3://test/none.json", digest="0" * 64), SnapshotRef(uri=ref.uri, digest="0" * 64)):
        with pytest.raises(Rejected, match=r"dataset\.snapshot"):
            own_snapshot(snapshots, wrong, "support", "sft")


@pytest.mark.parametrize("body", DAMAGED_JSON, ids=lambda body: repr(body[:20]))
def test_a_document_that_is_not_a_manifest_is_refused(blobs: MemoryBlobs, body: bytes) -> None:
    stored = blobs.put(body, "snapshots", ".json")
    with pytest.raises(Rejected, match="is not a snapshot manifest"):
        own_snapshot(Snapshots(blobs, "test"), SnapshotRef(uri=stored.uri, digest=stored.sha256), "support", "sft")


def test_an_adapter_must_be_the_roles_own_and_a_model_may_be_of_any_role(blobs: MemoryBlobs) -> None:
    require_own_policy(blobs, policy(blobs, "adapter", "support"), "support")
    require_own_policy(blobs, policy(blobs, "model", "sales"), "support")
    with pytest.raises(Rejected, match="is an adapter of another role, not of support"):
        require_own_policy(blobs, policy(blobs, "adapter", "sales"), "support")
    with pytest.raises(Rejected, match="does not exist"):
        require_own_policy(blobs, "s3://test/none.json", "support")


@pytest.mark.parametrize("scope", ["train:acme-*", "train"])
def test_reflector_is_of_an_upstream_or_of_the_roles_of_the_key(scope: str) -> None:
    caller, tasks = Caller("key_4f7k2m9q0z", "acme", frozenset({scope})), TaskFileRef(uri="s3://t/1", sha256="0" * 64)
    for reflector in ("acme-x", "acme-y@3", "openai/gpt", "sales", "sales@3-1a2b3c4d"):
        search = PromptSearch(
            reflector=reflector, train_tasks=tasks, validation_tasks=tasks, budget=CallBudget(calls=9)
        )
        body = JobIn(algorithm="gepa", role="acme-x", prompts=search)
        if reflector.startswith("sales") and scope != "train":
            with pytest.raises(Forbidden, match="lacks the scope `train:sales`"):
                require_own_reflector(body, caller)
        else:
            require_own_reflector(body, caller)
