"""Policies are their manifests: the digest fixes every file, and nothing damaged or foreign is taken for one."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, Instructions
from ratchet.core.contract.policy_manifest import ADAPTER, BUNDLE, REWARD_MODEL, ArtifactFile, PolicyManifest, Probe
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.rules.arms import policy_name
from ratchet.core.stores.policies import (
    STORED,
    Policy,
    encode_manifest,
    fetch_policy,
    find_policy,
    is_manifest_uri,
    publish_policy,
    read_policy,
    tokenizer_digest,
    upload_files,
    weights_behind,
)
from tests.support.blobs import MemoryBlobs
from tests.support.hostile import DAMAGED_JSON

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def published(blobs: MemoryBlobs, directory: Path, **changes: object) -> Policy:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"weights")
    values = {
        "kind": ADAPTER,
        "base_model": "s3://test/policies/base.json",
        "files": upload_files(blobs, directory),
        "role": "support",
        "created_at": NOW,
        "probe": Probe(prompt_token_ids=[1], output_token_ids=[2], logprobs=[-0.5]),
    }
    return publish_policy(blobs, PolicyManifest(**{**values, **changes}))  # type: ignore[arg-type]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def policy(blobs: MemoryBlobs, tmp_path: Path) -> Policy:
    return published(blobs, tmp_path / "files")


def test_a_published_policy_is_read_back_whole(blobs: MemoryBlobs, policy: Policy) -> None:
    assert policy.uri == f"s3://test/policies/{policy.digest}.json"
    assert is_manifest_uri(policy.uri)
    assert not any(map(is_manifest_uri, ("meta-llama/Llama-3.2-1B", "/models/base")))
    assert read_policy(blobs, policy.uri) == policy
    assert [file.name for file in policy.manifest.files] == ["adapter_config.json", "adapter_model.safetensors"]


def test_the_digest_changes_with_any_file(blobs: MemoryBlobs, tmp_path: Path) -> None:
    one = published(blobs, tmp_path / "files")
    changed = msgspec.structs.replace(one.manifest.files[0], sha256="0" * 64)
    other = publish_policy(blobs, msgspec.structs.replace(one.manifest, files=[changed]))
    assert one.digest != other.digest


def test_fetching_gives_the_verified_files_once(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    local = fetch_policy(blobs, policy.uri, tmp_path / "cache")
    assert (local.directory / "adapter_model.safetensors").read_bytes() == b"weights"
    assert local.directory == tmp_path / "cache" / policy.digest
    weights = next(file for file in policy.manifest.files if file.name == "adapter_model.safetensors")
    del blobs.blobs[weights.uri]
    assert fetch_policy(blobs, policy.uri, tmp_path / "cache").directory == local.directory


def named(policy: Policy, role: str = "support", version: int = 3) -> str:
    return policy_name(role, version, policy.digest)


def test_a_policys_name_is_its_address_whatever_its_version(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    published(blobs, tmp_path / "files", role="planner")
    assert find_policy(blobs, named(policy)) == find_policy(blobs, named(policy, version=9)) == policy


@pytest.mark.parametrize("name", ["support@3-00000000", "support@3", "support", "gpt-4o", "../x@1-00000000"])
def test_a_name_without_a_manifest_is_not_found(blobs: MemoryBlobs, tmp_path: Path, name: str) -> None:
    published(blobs, tmp_path / "files")
    with pytest.raises(NotFound, match=name):
        find_policy(blobs, name)


def test_a_name_with_the_digest_of_another_roles_policy_is_refused(blobs: MemoryBlobs, tmp_path: Path) -> None:
    policy = published(blobs, tmp_path / "files", role="planner")
    with pytest.raises(Rejected, match="of the role planner: its digest is not one of support"):
        find_policy(blobs, named(policy))


def alike(blobs: MemoryBlobs, directory: Path, other_role: str) -> Policy:
    """Publish a policy of support, and one of `other_role` whose digest begins with the same eight digits."""
    plain = published(blobs, directory, algorithm="0" * 9).manifest
    other = msgspec.structs.replace(plain, role=other_role, created_at=NOW + timedelta(days=1))
    bodies = [encode_manifest(one).partition(b"0" * 9) for one in (plain, other)]
    seen: list[dict[str, bytes]] = [{}, {}]
    for number in range(10**6):  # a birthday in 32 bits: after some 70,000 of each
        for mine, (before, _, after) in enumerate(bodies):
            body = b"%b%09d%b" % (before, number, after)
            digits = hashlib.sha256(body).hexdigest()[:8]
            seen[mine][digits] = body
            if digits in seen[1 - mine]:
                blobs.put(seen[1][digits], "policies", ".json")
                ref = blobs.put(seen[0][digits], "policies", ".json")
                return read_policy(blobs, ref.uri)
    raise AssertionError("no two digests begin alike")


def test_of_policies_whose_digests_begin_alike_the_role_decides(blobs: MemoryBlobs, tmp_path: Path) -> None:
    policy = alike(blobs, tmp_path / "files", other_role="planner")
    assert find_policy(blobs, named(policy)) == policy


def test_two_policies_of_a_role_whose_digests_begin_alike_are_refused(blobs: MemoryBlobs, tmp_path: Path) -> None:
    policy = alike(blobs, tmp_path / "files", other_role="support")
    with pytest.raises(Rejected, match="2 policies of its role"):
        find_policy(blobs, named(policy))


def test_manifest_digest_that_begins_as_anothers_is_not_published(blobs: MemoryBlobs, tmp_path: Path) -> None:
    """A refused candidate would take stable down with the engine's next start."""
    policy = alike(blobs, tmp_path / "files", other_role="support")
    assert publish_policy(blobs, policy.manifest).digest == policy.digest  # a repetition
    (other,) = set(blobs.find(f"policies/{policy.digest[:8]}")) - {policy.uri}
    manifest = read_policy(blobs, other).manifest
    del blobs.blobs[other]
    with pytest.raises(Rejected, match=f"begins with {policy.digest[:8]}, as that of another policy"):
        publish_policy(blobs, manifest)
    assert find_policy(blobs, named(policy)) == policy


@pytest.mark.parametrize("body", [b"junk", b"{}"])
def test_invalid_manifest_hides_no_policy_of_a_digest_alike(blobs: MemoryBlobs, policy: Policy, body: bytes) -> None:
    junk = f"s3://test/policies/{policy.digest[:8]}{'0' * 56}.json"
    blobs.blobs[junk] = body
    assert find_policy(blobs, named(policy)) == policy
    assert publish_policy(blobs, policy.manifest) == policy
    del blobs.blobs[policy.uri]
    with pytest.raises(DigestMismatch):
        find_policy(blobs, named(policy))


def test_policy_key_that_only_begins_like_the_name_is_anothers(blobs: MemoryBlobs, policy: Policy) -> None:
    blobs.put(encode_manifest(policy.manifest), "policies/1a2b3c4dX", ".json")
    with pytest.raises(NotFound, match="support@3-1a2b3c4d"):
        find_policy(blobs, "support@3-1a2b3c4d")


def test_policy_name_of_a_damaged_manifest_is_refused(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    scores = published(blobs, tmp_path / "files", kind=REWARD_MODEL)
    with pytest.raises(Rejected, match="is a reward_model, which no engine holds"):
        find_policy(blobs, named(scores))
    blobs.blobs[policy.uri] += b" "
    with pytest.raises(DigestMismatch):
        find_policy(blobs, named(policy))
    with pytest.raises(DigestMismatch):
        read_policy(blobs, policy.uri)


def test_policy_file_damaged_leaves_nothing_behind(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    weights = next(file for file in policy.manifest.files if file.name == "adapter_model.safetensors")
    blobs.blobs[weights.uri] = b"damaged"
    with pytest.raises(DigestMismatch):
        fetch_policy(blobs, policy.uri, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_policy_file_of_another_size_is_refused(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    longer = [msgspec.structs.replace(file, size=file.size + 1) for file in policy.manifest.files]
    wrong = publish_policy(blobs, msgspec.structs.replace(policy.manifest, files=longer))
    with pytest.raises(DigestMismatch, match="its manifest says"):
        fetch_policy(blobs, wrong.uri, tmp_path / "cache")


def test_policy_directory_half_filled_is_filled_again(blobs: MemoryBlobs, policy: Policy, tmp_path: Path) -> None:
    partial = tmp_path / "cache" / policy.digest
    partial.mkdir(parents=True)
    (partial / "adapter_config.json").write_text("half")
    local = fetch_policy(blobs, policy.uri, tmp_path / "cache")
    assert (local.directory / "adapter_config.json").read_text() == "{}"


@pytest.mark.parametrize("known", [False, True], ids=["after a start", "verified by this process before"])
def test_policy_file_with_other_bytes_is_fetched_again(
    blobs: MemoryBlobs, policy: Policy, tmp_path: Path, known: bool
) -> None:
    weights = fetch_policy(blobs, policy.uri, tmp_path / "cache").directory / "adapter_model.safetensors"
    if known:
        fetch_policy(blobs, policy.uri, tmp_path / "cache")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"wEights")
    damaged.replace(weights)
    fetch_policy(blobs, policy.uri, tmp_path / "cache")
    assert weights.read_bytes() == b"weights"


def bytes_read() -> int:
    """By this process, since it began."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


def test_a_process_reads_a_cached_file_once(blobs: MemoryBlobs, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "base.safetensors").write_bytes(bytes(4_000_000))
    policy = published(blobs, tmp_path / "files")
    for _ in range(2):
        fetch_policy(blobs, policy.uri, tmp_path / "cache")
    before = bytes_read()
    fetch_policy(blobs, policy.uri, tmp_path / "cache")
    assert bytes_read() - before < 1_000_000


def test_reward_model_is_read_only_by_its_kind(blobs: MemoryBlobs, tmp_path: Path) -> None:
    scores = published(blobs, tmp_path / "files", kind=REWARD_MODEL)
    assert read_policy(blobs, scores.uri, kinds=STORED) == scores
    assert scores.manifest.has_adapter
    for read in (read_policy, lambda objects, uri: fetch_policy(objects, uri, tmp_path / "cache")):
        with pytest.raises(Rejected, match="is a 'reward_model' manifest, not a policy"):
            read(blobs, scores.uri)


def test_an_object_that_is_not_a_policy_is_refused(blobs: MemoryBlobs, policy: Policy) -> None:
    snapshot = blobs.put(
        encode_manifest(msgspec.structs.replace(policy.manifest, kind="snapshot")), "policies", ".json"
    )
    with pytest.raises(Rejected, match="'snapshot' manifest, not a policy"):
        read_policy(blobs, snapshot.uri)
    with pytest.raises(NotFound):
        read_policy(blobs, "s3://test/policies/unknown.json")


@pytest.mark.parametrize("body", DAMAGED_JSON, ids=lambda body: repr(body[:20]))
def test_a_body_that_cannot_be_read_is_refused(blobs: MemoryBlobs, body: bytes) -> None:
    with pytest.raises(Rejected, match="is not a policy manifest"):
        read_policy(blobs, blobs.put(body, "policies", ".json").uri)


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "/etc/passwd", "", "x" * 256, "é" * 128, "a\0b"])
def test_a_manifest_cannot_name_a_file_outside_its_directory(blobs: MemoryBlobs, policy: Policy, name: str) -> None:
    bad = ArtifactFile(name=name, uri="s3://test/blobs/x", sha256="0" * 64, size=1)
    with pytest.raises(Rejected, match="length >= 1" if not name else "not a plain file name"):
        publish_policy(blobs, msgspec.structs.replace(policy.manifest, files=[bad]))


def test_a_manifest_cannot_name_a_file_twice(blobs: MemoryBlobs, policy: Policy) -> None:
    twice = [*policy.manifest.files, msgspec.structs.replace(policy.manifest.files[0], sha256="0" * 64)]
    with pytest.raises(Rejected, match="names a file twice"):
        publish_policy(blobs, msgspec.structs.replace(policy.manifest, files=twice))


def test_the_tokenizer_digest_changes_with_vocabulary_and_template(tmp_path: Path) -> None:
    assert tokenizer_digest(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    first = tokenizer_digest(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert first is not None
    assert tokenizer_digest(tmp_path) not in (None, first)


def bundled(blobs: MemoryBlobs, model: BundleModel | None) -> Policy:
    bundle = Bundle(model=model, instructions=Instructions(text="Be polite."))
    return publish_policy(
        blobs, PolicyManifest(kind=BUNDLE, base_model="", files=[], role="support", created_at=NOW, bundle=bundle)
    )


def test_weights_behind_a_bundle_are_those_that_it_names(blobs: MemoryBlobs, policy: Policy) -> None:
    named = BundleModel(name=policy_name("support", 1, policy.digest), digest=policy.digest)
    assert weights_behind(blobs, bundled(blobs, named).uri) == policy.uri
    assert weights_behind(blobs, policy.uri) == policy.uri


@pytest.mark.parametrize("model", [None, BundleModel(name="small", upstream="openai")])
def test_a_bundle_that_an_upstream_answers_has_no_weights(blobs: MemoryBlobs, model: BundleModel | None) -> None:
    with pytest.raises(Rejected, match=r"it has no weights to train; name another base_model \(`--base-model`\)$"):
        weights_behind(blobs, bundled(blobs, model).uri)


def test_an_engine_finds_no_bundle_by_its_name(blobs: MemoryBlobs) -> None:
    with pytest.raises(Rejected, match="is a bundle, which no engine holds"):
        find_policy(blobs, policy_name("support", 2, bundled(blobs, None).digest))


@pytest.mark.parametrize("bundle", [None, NO_BUNDLE, Bundle(instructions=Instructions(text="{{name}}"))])
def test_a_bundle_that_could_answer_no_call_is_not_stored(blobs: MemoryBlobs, bundle: Bundle | None) -> None:
    manifest = PolicyManifest(kind=BUNDLE, base_model="", files=[], role="support", created_at=NOW, bundle=bundle)
    with pytest.raises(Rejected):
        publish_policy(blobs, manifest)
