"""The digest of a base model in a directory: of its weights, read once for as long as the files stay the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.errors import DigestMismatch
from ratchet.stores.base_weights import REMEMBERED, require_same_weights, weights_digest


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    for name, content in (("config.json", "{}"), ("model.safetensors", "weights"), ("tokenizer.json", "words")):
        (directory / name).write_text(content)
    return directory


@pytest.mark.parametrize(
    ("name", "matters"), [("model.safetensors", True), ("config.json", True), ("tokenizer.json", False)]
)
def test_other_weights_have_another_digest(base: Path, tmp_path: Path, name: str, matters: bool) -> None:
    before = weights_digest(base, tmp_path)
    assert before == weights_digest(base, tmp_path / "elsewhere")
    (base / name).write_text("others")
    assert (weights_digest(base, tmp_path) != before) == matters


def test_a_file_that_did_not_change_is_not_read_again(base: Path, tmp_path: Path) -> None:
    weights = base / "model.safetensors"
    before, status = weights_digest(base, tmp_path), weights.stat()
    weights.write_text("WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights_digest(base, tmp_path) == before
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weights_digest(base, tmp_path) != before


def test_what_was_remembered_may_be_damaged_or_lost(base: Path, tmp_path: Path) -> None:
    before = weights_digest(base, tmp_path)
    (tmp_path / REMEMBERED).write_text("[")
    assert weights_digest(base, tmp_path) == before
    assert str(base) in (tmp_path / REMEMBERED).read_text()


def test_a_directory_without_weights_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path, tmp_path) is None


def test_only_two_known_digests_can_differ() -> None:
    for actual, expected in ((None, None), ("a", None), (None, "b"), ("a", "a")):
        require_same_weights("org/model", actual, expected)
    with pytest.raises(DigestMismatch, match=r"org/model has other weights here .* aaaaaaaa, not bbbbbbbb"):
        require_same_weights("org/model", "a" * 64, "b" * 64)
