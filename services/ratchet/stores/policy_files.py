"""A stored policy as a directory for people and for other tools.

model/               weights and their configuration, as PEFT and transformers load them
tokenizer/           tokenizer and chat template
config.json          the effective training configuration
metrics.jsonl        one line per train step
README.md            the model card
logs/training.log    what the training process printed
ratchet-policy.json  the manifest, byte for byte: its sha256 is the policy's digest
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ratchet.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.errors import Rejected
from ratchet.stores.policies import TOKENIZER_FILES, BlobStore, Policy, read_policy

MANIFEST = "ratchet-policy.json"
ARTIFACTS = "artifacts"
"""Default folder of exports."""
REWARD_MODEL = "rm"


def export_policy(
    objects: BlobStore,
    uri: str,
    directory: Path,
    digest: str | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> list[str]:
    """Write the layout above into `directory`; returns the paths in it, the manifest's last.

    Calls `on_progress` with (files done, of how many, path). Policies of early versions, which had no documents, have
    only `model/`, `tokenizer/` and the manifest. Raises `Rejected` when `directory` holds something already.
    """
    require_empty(directory)
    policy = read_policy(objects, uri, digest)
    placed = list(_placed(policy.manifest))
    for done, (place, file) in enumerate(placed):
        if on_progress is not None:
            on_progress(done, len(placed), str(place))
        target = directory / place
        target.parent.mkdir(parents=True, exist_ok=True)
        objects.get_file(file.uri, target, file.sha256)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).write_bytes(objects.get(policy.uri, policy.digest))
    return [*(str(place) for place, _ in placed), MANIFEST]


def require_empty(directory: Path) -> None:
    """Raise `Rejected` when `directory` is a file or holds something already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Rejected(f"{directory} is there already, and not an empty directory")


def default_directory(policy: Policy, name: str) -> Path:
    """`artifacts/dpo/<name>`, `artifacts/rm/<name>` and so on: by how the policy was made."""
    algorithm = policy.manifest.algorithm or "imported"
    return Path(ARTIFACTS, REWARD_MODEL if algorithm == "reward_model" else algorithm, name)


def _placed(manifest: PolicyManifest) -> Iterator[tuple[PurePosixPath, ArtifactFile]]:
    """Where each file goes. A model brings its tokenizer along: then it lies in both folders."""
    for file in manifest.files:
        yield PurePosixPath("model", file.name), file
        if file.name in TOKENIZER_FILES:
            yield PurePosixPath("tokenizer", file.name), file
    for file in manifest.documents:
        if file.name.endswith(".log"):
            yield PurePosixPath("logs", file.name), file
        elif file.name in ("config.json", "metrics.jsonl", "README.md"):
            yield PurePosixPath(file.name), file
        else:
            yield PurePosixPath("tokenizer", file.name), file
