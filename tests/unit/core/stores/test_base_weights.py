"""The digest of a base model in a directory: of its weights, read once for as long as the files stay the same."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from threading import Event

import pytest

from ratchet.core.errors import DigestMismatch, Unavailable
from ratchet.core.stores.base_weights import REMEMBERED, require_same_weights, weights_digest


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
    before, memory = weights_digest(base, tmp_path), tmp_path / REMEMBERED
    known = json.loads(memory.read_text())
    known[str(base / "model.safetensors")]["sha256"] = "0" * 64
    memory.write_text(json.dumps(known))
    assert weights_digest(base, tmp_path) != before


def test_weights_of_the_same_size_and_modification_time_are_read_again(base: Path, tmp_path: Path) -> None:
    weights = base / "model.safetensors"
    before, status = weights_digest(base, tmp_path), weights.stat()
    weights.write_text("WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights_digest(base, tmp_path) != before


def test_many_threads_remember_what_they_read(tmp_path: Path) -> None:
    bases = [tmp_path / f"base{number}" for number in range(40)]
    for directory in bases:
        directory.mkdir()
        (directory / "model.safetensors").write_text(directory.name)
    with ThreadPoolExecutor(4) as threads:
        digests = list(threads.map(weights_digest, bases, repeat(tmp_path / "cache")))
    assert len({*digests}) == len(bases)
    assert len(json.loads((tmp_path / "cache" / REMEMBERED).read_text())) == len(bases)


def test_a_cache_that_cannot_be_written_remembers_nothing(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    assert weights_digest(base, tmp_path / "file") == weights_digest(base, tmp_path)


def test_links_lead_to_weights_and_what_is_no_file_does_not_matter(base: Path, tmp_path: Path) -> None:
    before, blob = weights_digest(base, tmp_path), tmp_path / "blob"
    (base / "model.safetensors").rename(blob)
    (base / "model.safetensors").symlink_to(blob)
    (base / "old.bin").symlink_to("nowhere")
    (base / "folder.bin").mkdir()
    assert weights_digest(base, tmp_path) == before
    blob.write_text("others")
    assert weights_digest(base, tmp_path) != before


def test_weights_that_change_while_they_are_read_have_no_digest(base: Path, tmp_path: Path) -> None:
    weights, over = base / "model.safetensors", Event()
    weights.write_bytes(bytes(64 << 20))

    def touch() -> None:
        while not over.wait(0.001):
            os.utime(weights)

    with ThreadPoolExecutor(1) as threads:
        touching = threads.submit(touch)
        try:
            with pytest.raises(Unavailable, match=r"model\.safetensors changes while it is read"):
                weights_digest(base, tmp_path)
        finally:
            over.set()
        touching.result()


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
