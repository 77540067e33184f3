"""A file is written completely or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PosixPath

import pytest

from ratchet.core.service.files import PRIVATE, lock_at, staged, write_whole


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "runs.jsonl"
    with staged(path, durable=durable) as partial:
        partial.write_bytes(b"one\n")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("old")

    def interrupted() -> None:
        with staged(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_its_owner_can_read_a_private_file_whatever_mode_old_one_had(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    path.write_text("readable by all")
    path.chmod(0o644)
    write_whole(path, b"secret", mode=PRIVATE)
    assert path.read_bytes() == b"secret"
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_whole(tmp_path / "no" / "file", b"")
    assert error.value.filename == str(tmp_path / "no")


@pytest.mark.parametrize("name", ["", "."])
def test_a_directory_is_no_file_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsADirectoryError) as error:
        write_whole(Path(name), b"")
    assert error.value.filename == "."
    assert list(tmp_path.iterdir()) == []


class Replaced(PosixPath):
    """A file in whose place another one lies at each look."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return Path(os.sep).stat(follow_symlinks=follow_symlinks)


def test_a_lock_file_that_is_another_one_at_each_opening_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="another file each time"), lock_at(Replaced(tmp_path / "lock")):
        pass
