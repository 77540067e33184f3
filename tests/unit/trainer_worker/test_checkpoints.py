"""Checkpoints are whole or absent; the best and the newest survive; damage is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import CHECKPOINT_MANIFEST
from ratchet.trainer_worker.training.checkpoints import CheckpointStore, open_checkpoint
from tests.support.hostile import DAMAGED_JSON


def store(root: Path, keep: int = 1) -> CheckpointStore:
    return CheckpointStore(root, "job", 2, "sft", keep)


def write(text: str = "weights") -> Callable[[Path], object]:
    return lambda directory: (directory / "state.bin").write_text(text)


def steps(kept: CheckpointStore) -> list[int]:
    return [checkpoint.manifest.step for checkpoint in kept.all()]


def test_the_manifest_names_job_attempt_step_and_every_file(tmp_path: Path) -> None:
    checkpoint = store(tmp_path).save(7, -0.5, write())
    manifest = checkpoint.manifest
    assert (manifest.training_job_id, manifest.attempt, manifest.step, manifest.score) == ("job", 2, 7, -0.5)
    assert set(manifest.files) == {"state.bin"}
    assert open_checkpoint(checkpoint.directory, "job", "sft") == checkpoint


def test_the_best_and_the_newest_are_kept(tmp_path: Path) -> None:
    kept = store(tmp_path, keep=2)
    for step, score in enumerate([-3.0, -1.0, -2.0, -4.0, -5.0], start=1):
        kept.save(step, score, write())
    assert steps(kept) == [2, 3, 5]


def test_an_interrupted_save_leaves_no_checkpoint(tmp_path: Path) -> None:
    kept = store(tmp_path)

    def breaks(directory: Path) -> None:
        (directory / "state.bin").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kept.save(1, 0.0, breaks)
    assert steps(kept) == []
    kept.save(1, 0.0, write())
    assert steps(kept) == [1]


def test_a_damaged_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    checkpoint = store(tmp_path).save(1, 0.0, write())
    (checkpoint.directory / "state.bin").write_text("changed")
    with pytest.raises(DataUnusable, match="damaged: state"):
        open_checkpoint(checkpoint.directory, "job", "sft")


def test_a_checkpoint_without_its_manifest_is_not_resumed(tmp_path: Path) -> None:
    checkpoint = store(tmp_path).save(1, 0.0, write())
    (checkpoint.directory / CHECKPOINT_MANIFEST).unlink()
    with pytest.raises(DataUnusable, match="not a complete checkpoint"):
        open_checkpoint(checkpoint.directory, "job", "sft")


def test_another_jobs_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    checkpoint = store(tmp_path).save(1, 0.0, write())
    with pytest.raises(DataUnusable, match="belongs to sft job job"):
        open_checkpoint(checkpoint.directory, "other", "sft")


@pytest.mark.parametrize("body", DAMAGED_JSON, ids=lambda body: repr(body[:20]))
def test_a_checkpoint_whose_manifest_cannot_be_read_is_not_resumed(tmp_path: Path, body: bytes) -> None:
    checkpoint = store(tmp_path).save(1, 0.0, write())
    (checkpoint.directory / CHECKPOINT_MANIFEST).write_bytes(body)
    with pytest.raises(DataUnusable, match="is not a complete checkpoint"):
        open_checkpoint(checkpoint.directory, "job", "sft")


@pytest.mark.parametrize("damage", [b"changed", None], ids=["changed", "no manifest"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: bytes | None) -> None:
    kept = store(tmp_path)
    assert kept.newest() is None
    first, second = (kept.save(step, 0.0, write()) for step in (1, 2))
    if damage is None:
        (second.directory / CHECKPOINT_MANIFEST).write_bytes(b"{")
    else:
        (second.directory / "state.bin").write_bytes(damage)
    assert kept.newest() == first
    assert steps(kept) == [1]


def test_steps_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for step in (999_999, 1_000_000):
        newest = kept.save(step, 0.0, write())
    assert kept.newest() == newest
    assert steps(kept) == [999_999, 1_000_000]
