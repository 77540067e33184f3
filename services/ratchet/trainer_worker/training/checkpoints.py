"""Checkpoints on disk: whole or absent, the K best and the last kept, bound to one job and algorithm.

A directory `step-000120` counts once its manifest is there, which is written last and names every file with its sha256.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.bus.message import Value, decode
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import CHECKPOINT_MANIFEST


class CheckpointManifest(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a checkpoint holds and which training it belongs to."""

    training_job_id: str
    attempt: int
    """The attempt that wrote it; a later attempt may resume from it."""
    algorithm: str
    step: int
    score: float
    """Higher is better: the mean negative loss since the checkpoint before, or the step where losses do not compare."""
    files: dict[str, str]
    """File name -> sha256."""
    kind: str = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    directory: Path
    manifest: CheckpointManifest


class CheckpointStore:
    """The checkpoints of one run under `root`; `keep` of the best and the newest survive."""

    def __init__(self, root: Path, training_job_id: str, attempt: int, algorithm: str, keep: int = 1) -> None:
        self._root = root
        self._training_job_id = training_job_id
        self._attempt = attempt
        self._algorithm = algorithm
        self._keep = keep
        root.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, score: float, write: Callable[[Path], None]) -> Checkpoint:
        """Let `write` fill a directory, complete it, and remove the checkpoints that need not be kept."""
        partial = self._root / f".step-{step:06d}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        manifest = CheckpointManifest(
            training_job_id=self._training_job_id,
            attempt=self._attempt,
            algorithm=self._algorithm,
            step=step,
            score=score,
            files={path.name: _sha256(path) for path in sorted(partial.iterdir())},
        )
        (partial / CHECKPOINT_MANIFEST).write_bytes(msgspec.json.encode(manifest))
        directory = self._root / f"step-{step:06d}"
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
        *earlier, _newest = self.all()
        best = sorted(earlier, key=lambda checkpoint: checkpoint.manifest.score, reverse=True)
        for checkpoint in best[self._keep :]:
            # The manifest goes first, so that a half-removed directory is not taken for a checkpoint.
            (checkpoint.directory / CHECKPOINT_MANIFEST).unlink()
            shutil.rmtree(checkpoint.directory)
        return Checkpoint(directory, manifest)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint of this training that is undamaged. Removes what is newer: its steps are done again."""
        for path in self._directories():
            try:
                return open_checkpoint(path, self._training_job_id, self._algorithm)
            except DataUnusable:
                shutil.rmtree(path)
        return None

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest step first."""
        complete = [path for path in self._directories() if (path / CHECKPOINT_MANIFEST).is_file()]
        return [Checkpoint(path, _read(path)) for path in reversed(complete)]

    def _directories(self) -> list[Path]:
        """Newest step first."""
        return sorted(self._root.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def open_checkpoint(directory: Path, training_job_id: str, algorithm: str) -> Checkpoint:
    """A checkpoint to resume from. Raises `DataUnusable` when it is damaged or belongs to another training."""
    try:
        manifest = _read(directory)
        damaged = [name for name, digest in manifest.files.items() if _sha256(directory / name) != digest]
    except (OSError, msgspec.DecodeError) as error:
        raise DataUnusable(f"{directory.name} is not a complete checkpoint: {error}") from error
    if damaged:
        raise DataUnusable(f"the checkpoint is damaged: {', '.join(damaged)}")
    if (manifest.training_job_id, manifest.algorithm) != (training_job_id, algorithm):
        raise DataUnusable(f"the checkpoint belongs to {manifest.algorithm} job {manifest.training_job_id}")
    return Checkpoint(directory, manifest)


def _read(directory: Path) -> CheckpointManifest:
    return decode((directory / CHECKPOINT_MANIFEST).read_bytes(), CheckpointManifest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
