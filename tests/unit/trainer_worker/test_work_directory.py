"""Whose a worker's directory is, and what of an earlier worker stays in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.trainer_worker.app import own_directory


def test_what_a_killed_worker_left_is_gone_and_another_workers_stays(tmp_path: Path) -> None:
    for worker in ("w1", "w2"):
        (tmp_path / worker / "job-1" / "checkpoints").mkdir(parents=True)
        (tmp_path / worker / "job-1" / "checkpoints" / "weights").write_bytes(b"1")
    with own_directory(tmp_path / "w1"):
        assert list((tmp_path / "w1").iterdir()) == []
        assert (tmp_path / "w2" / "job-1" / "checkpoints" / "weights").exists()


def test_a_second_worker_of_the_same_name_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    with own_directory(tmp_path / "w1"):
        running = tmp_path / "w1" / "job-1"
        running.mkdir()
        with pytest.raises(ConfigError, match="another worker named w1"), own_directory(tmp_path / "w1"):
            pass
        assert running.exists()
    with own_directory(tmp_path / "w1"):
        assert not running.exists()
