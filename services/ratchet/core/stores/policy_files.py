"""A stored policy as a directory for people and for other tools.

model/               weights, their configuration and the tokenizer: PEFT and transformers load it as it is
base/                of an adapter on a stored model: that model, named by the adapter as it lies here
tokenizer/           tokenizer and chat template alone
config.json          the effective training configuration
metrics.jsonl        one line per train step
README.md            the model card
logs/training.log    what the training process printed
ratchet-policy.json  the manifest, byte for byte: its sha256 is the policy's digest
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ratchet.core.contract.policy_manifest import ADAPTER_CONFIG, REWARD_MODEL, ArtifactFile, PolicyManifest
from ratchet.core.errors import Rejected
from ratchet.core.stores.policies import STORED, TOKENIZER_FILES, BlobStore, Policy, is_manifest_uri, read_policy

MANIFEST = "ratchet-policy.json"
BASE = "base"
ARTIFACTS = "artifacts"
"""Default folder of exports."""
REWARD_MODELS = "rm"
"""The folder of reward models in it."""
DESCRIPTIONS = ("config.json", "metrics.jsonl", "README.md")
CRITIC = "critic.safetensors"
"""What PPO learnt of the value of states. No engine needs it, and a loader of weights would take it for some."""


def export_policy(
    objects: BlobStore,
    uri: str,
    directory: Path,
    digest: str | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> list[str]:
    """Write the layout above into `directory`; returns the paths in it, the manifest's last.

    Every file has the bytes that the manifest says, except that an adapter on a stored model, whose uri no other tool
    can load, names its base in `base/`. One on a model that its job named keeps that name.

    Calls `on_progress` with (files done, of how many, path). Policies of early versions, which had no documents, have
    only `model/`, `tokenizer/` and the manifest. Raises `Rejected` when `directory` holds something already.
    """
    require_empty(directory)
    policy = read_policy(objects, uri, digest, STORED)
    placed, tokenizer = list(_placed(policy.manifest)), _tokenizer(policy.manifest)
    on_stored = policy.manifest.has_adapter and is_manifest_uri(policy.manifest.base_model)
    if on_stored:
        base = read_policy(objects, policy.manifest.base_model, policy.manifest.base_digest)
        placed += [(PurePosixPath(BASE, file.name), file) for file in base.manifest.files if file.name != CRITIC]
        tokenizer = tokenizer or _tokenizer(base.manifest)
    for folder in ("model", "tokenizer"):
        places = ((PurePosixPath(folder, file.name), file) for file in tokenizer)
        placed += [placing for placing in places if placing not in placed]
    for done, (place, file) in enumerate(placed):
        if on_progress is not None:
            on_progress(done, len(placed), str(place))
        target = directory / place
        target.parent.mkdir(parents=True, exist_ok=True)
        objects.get_file(file.uri, target, file.sha256)
    if on_stored:
        config = directory / "model" / ADAPTER_CONFIG
        named = json.loads(config.read_bytes()) | {"base_model_name_or_path": str((directory / BASE).resolve())}
        config.write_text(json.dumps(named, indent=2))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).write_bytes(objects.get(policy.uri, policy.digest))
    return [*(str(place) for place, _ in placed), MANIFEST]


def require_empty(directory: Path) -> None:
    """Raise `Rejected` when `directory` is a file or holds something already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Rejected(f"{directory} is there already, and not an empty directory")


def default_directory(policy: Policy, name: str) -> Path:
    """`artifacts/dpo/<name>`, `artifacts/rm/<name>` and so on: by how the policy was made."""
    scores = policy.manifest.kind == REWARD_MODEL
    return Path(ARTIFACTS, REWARD_MODELS if scores else policy.manifest.algorithm or "imported", name)


def _placed(manifest: PolicyManifest) -> Iterator[tuple[PurePosixPath, ArtifactFile]]:
    """Where each file goes, but for a tokenizer among the documents."""
    for file in manifest.files:
        yield PurePosixPath("critic" if file.name == CRITIC else "model", file.name), file
    for file in manifest.documents:
        if file.name.endswith(".log"):
            yield PurePosixPath("logs", file.name), file
        elif file.name == CRITIC:
            yield PurePosixPath("critic", file.name), file
        elif file.name in DESCRIPTIONS:
            yield PurePosixPath(file.name), file


def _tokenizer(manifest: PolicyManifest) -> list[ArtifactFile]:
    """A model has its tokenizer among its files, an adapter among its documents; empty: it has none of its own."""
    own = [file for file in manifest.files if file.name in TOKENIZER_FILES]
    others = (file for file in manifest.documents if file.name not in (*DESCRIPTIONS, CRITIC))
    return own or [file for file in others if not file.name.endswith(".log")]
