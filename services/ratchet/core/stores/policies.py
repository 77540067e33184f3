"""Policy artifacts: an adapter or a model as content-addressed files and one manifest, written last.

The digest of a policy is the sha256 of its manifest's bytes. The manifest names every file with its own sha256, so
the digest fixes the weights, the tokenizer and how they came to be. Nothing here loads weights: that needs torch.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ratchet.bus.message import decode
from ratchet.core.contract.policy_manifest import (
    ADAPTER_CONFIG,
    BUNDLE,
    DEPLOYABLE,
    REWARD_MODEL,
    WEIGHTS,
    ArtifactFile,
    PolicyManifest,
)
from ratchet.core.errors import DigestMismatch, NotFound, RatchetError, Rejected
from ratchet.core.rules.arms import parse_model
from ratchet.core.rules.bundles import check_bundle, model_name
from ratchet.core.rules.training_options import MOST_RANK
from ratchet.core.service.files import FileState, sha256_of, state_of

if TYPE_CHECKING:
    from ratchet.core.stores.objects import ObjectRef

COMPLETE_MARK = ".complete"
"""Empty file in a cached policy directory, written when every file was there and verified."""

MOST_NAME = 255
"""Bytes of a file's name: file systems take no more."""
STORED = DEPLOYABLE | {REWARD_MODEL}
"""Kinds of manifest that a training may store."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
"""Files that decide how text is rendered and encoded."""


class BlobStore(Protocol):
    """The part of `stores.objects.Objects` that artifacts need."""

    def put(self, blob: bytes, prefix: str, suffix: str = "") -> ObjectRef: ...

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef: ...

    def get(self, uri: str, sha256: str | None = None) -> bytes: ...

    def get_part(self, uri: str, begin: int, size: int) -> bytes: ...

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None: ...

    def find(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """A manifest, its uri, and its digest, which names the policy for ever."""

    uri: str
    digest: str
    manifest: PolicyManifest


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A policy and the directory that holds its verified files."""

    policy: Policy
    directory: Path


def is_manifest_uri(base_model: str) -> bool:
    """True for the uri of a policy manifest, false for a name or path that a model library loads."""
    return base_model.startswith("s3://") and base_model.endswith(".json")


def encode_manifest(manifest: PolicyManifest) -> bytes:
    """The bytes that are stored and hashed."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode_manifest(body: bytes, uri: str, kinds: Set[str] = DEPLOYABLE) -> PolicyManifest:
    """Read a manifest. Raises `Rejected` when `body` is not one of `kinds`, or names a file twice or as none can be, or
    has a bundle that could answer no call."""
    try:
        manifest = decode(body, PolicyManifest)
    except msgspec.DecodeError as error:
        raise Rejected(f"{uri} is not a policy manifest: {error}") from error
    if manifest.kind not in kinds:
        raise Rejected(f"{uri} is a {manifest.kind!r} manifest, not a policy")
    if manifest.kind == BUNDLE:
        if manifest.bundle is None:
            raise Rejected(f"{uri} is of kind bundle and holds none")
        check_bundle(manifest.bundle)
    for files in (manifest.files, manifest.documents):
        names = [file.name for file in files]
        for name in names:
            if not is_plain(name):
                raise Rejected(f"{uri} names the file {name[:300]!r}, which is not a plain file name")
        if len(set(names)) < len(names):
            raise Rejected(f"{uri} names a file twice")
    return manifest


def is_plain(name: str) -> bool:
    """Whether every file system takes `name` for one file of a directory, which lists it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half a character
        return False
    return 0 < size <= MOST_NAME and Path(name).name == name and not name.startswith(".") and "\0" not in name


def digest_in(uri: str) -> str | None:
    """The sha256 in the last segment of a content-addressed uri; None for any other uri."""
    stem = uri.rsplit("/", 1)[-1].removesuffix(".json")
    return stem if len(stem) == 64 and set(stem) <= set("0123456789abcdef") else None


def read_policy(objects: BlobStore, uri: str, digest: str | None = None, kinds: Set[str] = DEPLOYABLE) -> Policy:
    """Fetch and verify one manifest of `kinds`. Raises `NotFound`, `DigestMismatch` or `Rejected`."""
    body = objects.get(uri, digest or digest_in(uri))
    return Policy(uri=uri, digest=hashlib.sha256(body).hexdigest(), manifest=decode_manifest(body, uri, kinds))


def weights_behind(objects: BlobStore, uri: str) -> str:
    """The uri of the weights that a manifest stands for: itself, or the model of its bundle.

    Raises what `read_policy` and `find_policy` do, and `Rejected` where an upstream answers for the bundle.
    """
    manifest = read_policy(objects, uri, kinds=STORED).manifest
    if manifest.bundle is None:
        return uri
    model = manifest.bundle.model
    if model is None or model.digest is None:
        answers = model_name(manifest.bundle) or "whatever serves the role without it"
        raise Rejected(
            f"{uri} is a bundle that {answers} answers: it has no weights to train; name another base_model"
            " (`--base-model`)"
        )
    return find_policy(objects, model.name).uri


def is_policy_name(name: str) -> bool:
    """True for a policy's immutable name, `<role>@<version>-<sha8>`, which is its address in the object store too."""
    try:
        return parse_model(name).digest is not None
    except ValueError:
        return False


def find_policy(objects: BlobStore, name: str) -> Policy:
    """The policy called `<role>@<version>-<sha8>`: its role's one manifest whose digest begins so, verified.

    The version is the gateway's word: the digest fixes the weights. Raises `NotFound`, `ObjectsUnavailable`,
    `DigestMismatch`, and `Rejected` where the digest is another role's, or two of its role begin so, or the manifest is
    of no policy. What does not verify or cannot be read hides no manifest beside it.
    """
    if not is_policy_name(name):
        raise NotFound(f"{name!r} is not the full name of a policy, such as support@3-1a2b3c4d")
    asked = parse_model(name)
    digits = asked.digest or ""
    policies, failures = _readable(objects, _manifests(objects, digits))
    if not policies and failures:
        raise failures[0]
    if not policies:
        raise NotFound(
            f"the object store has no policy whose digest begins with {asked.digest}, as that of {name} does"
        )
    own = [policy for policy in policies if policy.manifest.role == asked.role]
    if not own:
        roles = ", ".join(sorted({policy.manifest.role for policy in policies}))
        raise Rejected(f"{name} names a policy of the role {roles}: its digest is not one of {asked.role}")
    if len(own) > 1:
        raise Rejected(
            f"{name} could be {len(own)} policies of its role, whose digests begin alike: no engine can tell"
        )
    if own[0].manifest.kind not in WEIGHTS:
        raise Rejected(f"{name} is a {own[0].manifest.kind}, which no engine holds")
    return own[0]


def find_reward_model(objects: BlobStore, digest: str) -> Policy:
    """The reward model whose manifest has that sha256. Raises `NotFound`, `ObjectsUnavailable`, `DigestMismatch`, and
    `Rejected` where it is a policy."""
    uris = [uri for uri in objects.find(f"policies/{digest}") if digest_in(uri) == digest]
    if not uris:
        raise NotFound(f"the object store has no reward model {digest}")
    return read_policy(objects, uris[0], digest, {REWARD_MODEL})


def _manifests(objects: BlobStore, digits: str) -> list[str]:
    return [uri for uri in objects.find(f"policies/{digits}") if (digest_in(uri) or "").startswith(digits)]


def _readable(objects: BlobStore, uris: Iterable[str]) -> tuple[list[Policy], list[RatchetError]]:
    """The policies behind `uris`, and why some are none."""
    policies: list[Policy] = []
    failures: list[RatchetError] = []
    for uri in uris:
        try:
            policies.append(read_policy(objects, uri, kinds=STORED))
        except (NotFound, DigestMismatch, Rejected) as error:
            failures.append(error)
    return policies, failures


def upload_files(objects: BlobStore, directory: Path) -> list[ArtifactFile]:
    """Store every plain file of `directory` as a blob, in name order."""
    files: list[ArtifactFile] = []
    for path in sorted(p for p in directory.iterdir() if p.is_file() and not p.name.startswith(".")):
        ref = objects.put_file(path, "blobs")
        files.append(ArtifactFile(name=path.name, uri=ref.uri, sha256=ref.sha256, size=ref.size))
    return files


def publish_policy(objects: BlobStore, manifest: PolicyManifest) -> Policy:
    """Store the manifest of files that are already stored; this write makes the policy visible.

    Raises `Rejected` where another manifest's digest begins as this one's: names could not tell the two apart, and an
    engine would serve neither.
    """
    body = encode_manifest(manifest)
    decode_manifest(body, "the new manifest", STORED)
    digest = hashlib.sha256(body).hexdigest()
    alike = [digest_in(uri) for uri in _manifests(objects, digest[:8])]
    if alike and digest not in alike:
        raise Rejected(
            f"the manifest's digest begins with {digest[:8]}, as that of another policy does, and names could not tell"
            " them apart: make the policy again"
        )
    ref = objects.put(body, "policies", ".json")
    return Policy(uri=ref.uri, digest=ref.sha256, manifest=manifest)


def fetch_policy(objects: BlobStore, uri: str, cache: Path, digest: str | None = None) -> LocalPolicy:
    """The policy's files in `cache/<digest>`, downloaded once, and verified once by each process.

    Several processes may fetch at a time.
    """
    return fetch_files(objects, read_policy(objects, uri, digest), cache)


def fetch_files(objects: BlobStore, policy: Policy, cache: Path) -> LocalPolicy:
    """The same of a policy whose manifest was read."""
    directory = cache / policy.digest
    if not is_whole(policy, directory):
        _download(objects, policy, directory)
    return LocalPolicy(policy=policy, directory=directory)


def ranks_of(directory: Path) -> list[int]:
    """The ranks that the config of the adapter in `directory` asks for: of all modules, then of single ones.

    A library allocates by them before it looks at the weights. Raises `Rejected` for one beyond `MOST_RANK`, and for
    what is no config of a LoRA.
    """
    try:
        config: Any = decode((directory / ADAPTER_CONFIG).read_bytes())
        ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
        kind = config.get("peft_type", "LORA")
        if not all(type(rank) is int and rank > 0 for rank in ranks):
            raise ValueError("a rank that is no positive number")
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Rejected(f"its {ADAPTER_CONFIG} is not PEFT's of a LoRA: {error!r}") from error
    if kind != "LORA":
        raise Rejected(f"its adapter is {kind}, and engines serve LoRA")
    if max(ranks) > MOST_RANK:
        raise Rejected(f"its rank is {max(ranks)}, and {MOST_RANK} is the most that engines serve")
    return ranks


def tokenizer_digest(directory: Path) -> str | None:
    """sha256 over the tokenizer's files in `directory`: equal digests render and encode equally."""
    files = [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest() if files else None


def is_whole(policy: Policy, directory: Path) -> bool:
    """Whether every file is there with the manifest's bytes: a machine that loses power may keep a name without them.

    This process reads each file once, and again where it has changed since. Blocking.
    """
    if not (directory / COMPLETE_MARK).exists():
        return False
    try:
        files = ((directory / file.name, file.sha256) for file in policy.manifest.files)
        return all(_sha256_in(path, state_of(path)) == sha256 for path, sha256 in files)
    except OSError:  # lost, or unreadable: fetched again
        return False


@lru_cache(maxsize=4096)
def _sha256_in(path: Path, _: FileState) -> str:
    return sha256_of(path)


def _download(objects: BlobStore, policy: Policy, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{policy.digest[:8]}-", dir=directory.parent))
    try:
        for file in policy.manifest.files:
            target = partial / file.name
            objects.get_file(file.uri, target, file.sha256, file.size)
        (partial / COMPLETE_MARK).touch()
        if directory.exists() and not is_whole(policy, directory):
            shutil.rmtree(directory, ignore_errors=True)  # half deleted, or bytes were lost
        try:
            partial.rename(directory)
        except OSError:  # fine when another process was quicker: its directory holds the same verified bytes
            if not is_whole(policy, directory):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
